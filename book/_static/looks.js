// What is wider than its place scrolls by itself: by keyboard too, and it shows that there is more.
(() => {
  const WIDE = "article :is(pre, .pst-scrollable-table-container, .output, mjx-container[display])";

  // On a telephone a table of sentences, or one that does not fit, is shown row by row, each cell with
  // its column's name.
  const phone = matchMedia("(max-width: 600px)");
  const stack = (box) => {
    const other = ".prediction-card, .then-and-now, .cards";
    for (const table of box.querySelectorAll(`table:not(${other})`)) {
      const isWordy = [...(table.tBodies[0]?.querySelectorAll("td") ?? [])].some((cell) => cell.textContent.length > 40);
      if (!phone.matches || (!isWordy && table.offsetWidth <= box.clientWidth + 1)) continue;
      const heads = [...table.querySelectorAll("thead tr:last-child > *")];
      const names = heads.map((cell) => cell.textContent.trim());
      for (const { cells } of table.tBodies[0]?.rows ?? []) {
        [...cells].forEach((cell, i) => {
          const { length } = cell.textContent.trim();
          if (i && names[i] && length) cell.dataset.label = names[i];
          if (i && length < 16) cell.classList.add(length ? "short" : "blank");
        });
      }
      table.classList.add("cards");
    }
  };
  phone.addEventListener("change", () => {
    for (const table of document.querySelectorAll("table.cards")) table.classList.remove("cards");
  });

  const look = (box) => {
    stack(box);
    const rest = box.scrollWidth - box.clientWidth;
    box.classList.toggle("more-right", rest > 1 && box.scrollLeft < rest - 1);
    box.classList.toggle("more-left", rest > 1 && box.scrollLeft > 1);
    if (rest > 1) box.tabIndex = 0;
    else if (box.tabIndex === 0) box.removeAttribute("tabindex");
  };

  document.addEventListener("DOMContentLoaded", () => {
    const sizes = new ResizeObserver((changes) => {
      for (const { target } of changes) {
        const box = target.closest(WIDE);
        if (box) look(box); // a row that a filter takes out of its table has none
      }
    });
    for (const box of document.querySelectorAll(WIDE)) {
      sizes.observe(box); // also tells when a fold opens
      for (const table of box.querySelectorAll(":scope > table")) sizes.observe(table);
      box.addEventListener("scroll", () => look(box), { passive: true });
    }
  });

  // The theme marks a section when its heading comes into view; after a leap, no heading has.
  const heading = (link) => document.getElementById(decodeURIComponent(link.hash.slice(1)));
  const mark = () => {
    const links = [...document.querySelectorAll(":is(#pst-page-toc-nav, .page-toc) a")];
    const top = (link) => heading(link)?.getBoundingClientRect().top ?? Infinity;
    const seen = (link) => top(link) >= 0 && top(link) < innerHeight;
    if (links.some((link) => link.classList.contains("active") && seen(link))) return;
    const here = links.filter((link) => top(link) < 0.3 * innerHeight).pop();
    for (const link of links) {
      link.classList.toggle("active", link === here);
      if (link === here) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
      const entry = link.closest(".toc-entry");
      entry.classList.toggle("active", entry.contains(here ?? null));
    }
  };
  let rest;
  addEventListener("scroll", () => {
    clearTimeout(rest);
    rest = setTimeout(mark, 200);
  }, { passive: true });

  // Paper is light.
  const root = document.documentElement;
  let theme;
  addEventListener("beforeprint", () => {
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    for (const picture of document.querySelectorAll("img.only-light")) picture.loading = "eager";
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = theme;
  });
})();
