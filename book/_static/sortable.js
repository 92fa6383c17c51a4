// Tables of cells with the tag `sortable`: a click on a header sorts, a field above a long one filters.
addEventListener("DOMContentLoaded", () => {
  const LONG = 40; // rows
  // Amounts are sorted in one unit, times apart from bytes and from plain numbers; ratios by their distance from 1.
  const KINDS = [
    { ns: 1e-9, µs: 1e-6, ms: 1e-3, s: 1 },
    { bytes: 1, KiB: 2 ** 10, MB: 1e6, MiB: 2 ** 20, GB: 1e9, GiB: 2 ** 30 },
  ];
  const order = (text, isRatio) => {
    const [, digits, unit] = text.trim().match(/^([-−]?[\d,]*\.?\d+)(?:\s(\S+))?/) ?? [];
    if (digits === undefined) return null;
    const value = Number(digits.replace("−", "-").replaceAll(",", ""));
    if (isRatio) return value > 0 ? Math.abs(Math.log(value)) : 1e3;
    const kind = KINDS.findIndex((units) => unit in units);
    const amount = value * (KINDS[kind]?.[unit] ?? 1);
    const group = kind < 0 && unit ? -unit.charCodeAt(0) : kind; // all else by its unit
    return 100 * group + Math.sign(amount) * (Math.log10(Math.abs(amount) || 1e-12) + 20);
  };
  for (const table of document.querySelectorAll(".tag_sortable table")) {
    const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, i) => {
        const place = order(cell.textContent, heads[i].includes("÷"));
        if (place !== null && heads[i] !== "chapter") cell.dataset.order = place;
      });
    }
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
