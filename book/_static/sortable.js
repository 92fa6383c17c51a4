// Tables of cells with the tag `sortable`: a click on a header sorts, a field above a long one filters.
addEventListener("DOMContentLoaded", () => {
  const LONG = 40; // rows
  for (const table of document.querySelectorAll(".tag_sortable table")) {
    const filter = table.tBodies[0].rows.length > LONG;
    new DataTable(table, {
      autoWidth: false,
      info: filter,
      layout: { topStart: filter ? "search" : null, topEnd: filter ? "info" : null, bottomStart: null, bottomEnd: null },
      language: { search: "Filter", searchPlaceholder: " ", info: "_TOTAL_ rows", infoFiltered: "of _MAX_", infoEmpty: "0 rows", zeroRecords: "No row has these words." },
      order: [], // as it was written, until somebody clicks
      paging: false,
      searching: filter,
    });
    // Its clicks carry a mark that the copy buttons' script, further out, takes for its own.
    table.closest(".dt-container").addEventListener("click", (event) => {
      if (event.target.closest("thead")) event.stopPropagation();
    });
  }
});
