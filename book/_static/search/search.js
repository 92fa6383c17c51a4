/* The search field: in a dialog on every page (the button, or Ctrl+K), and on the page search.html.

   What it needs to find anything is loaded when the field is first used. A result opens at its
   section, and there the words that were found are marked. What comes from a query, from the index
   or from an address is only ever shown as text. */
(() => {
  "use strict";

  const ROOT = document.documentElement.dataset.content_root ?? "./";
  const PARTS = ["stemmer", "data", "text", "query", "engine"].map((name) => `search/${name}`);
  const PAUSE = 60; // milliseconds without a key before the pages are searched

  // --- the engine, loaded once -----------------------------------------------------------------

  let engine = null;

  function load() {
    engine ??= Promise.all(PARTS.map(script)).then(() =>
      window.bookSearch.create(window.bookSearchData)
    );
    return engine;
  }

  const scripts = {};

  function script(name) {
    scripts[name] ??= new Promise((done, failed) => {
      const element = document.createElement("script");
      element.async = false; // executed in this order
      element.src = `${ROOT}_static/${name}.js`;
      element.onload = done;
      element.onerror = () => {
        delete scripts[name]; // the next use tries again
        failed(new Error(`${element.src} does not load`));
      };
      document.head.append(element);
    });
    return scripts[name];
  }

  // --- a field with its results ----------------------------------------------------------------

  /** An element with a class, a text, attributes and children. */
  function make(name, className = "", text = "", attributes = {}) {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text) element.textContent = text;
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    return element;
  }

  /** Form, status and list in `place`; `most` pages are shown. Returns the field. */
  function field(place, most, onSubmit, name = "Search this book") {
    const action = `${ROOT}search.html`;
    const form = make("form", "book-search-form", "", { role: "search", action });
    const input = make("input", "", "", {
      type: "text",
      name: "q",
      placeholder: "A question, an error message, a function …",
      "aria-label": name,
      enterkeyhint: "search",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
    });
    const status = make("p", "book-search-status", "", { role: "status" });
    const list = make("ol", "book-search-results", "", { "aria-label": "Results" });
    form.append(input);
    place.append(form, status, list);

    /** Who has gone down into the list stays in it when a later answer replaces it. */
    function renew(found, query) {
      const below = list.contains(document.activeElement);
      show(list, status, found, query, most);
      if (below) (list.querySelector("a") ?? input).focus();
    }

    let timer = 0;
    let latest = 0;
    async function update() {
      const number = (latest += 1);
      const query = input.value;
      if (!/[\p{L}\p{N}]/u.test(query)) return renew(null, query);
      status.textContent ||= "Loading …";
      try {
        const search = await load();
        if (number !== latest) return;
        renew(search.search(query, { pages: most }), query);
      } catch (error) {
        engine = null; // the next key tries again
        status.textContent = "Search could not be loaded.";
      }
    }
    input.addEventListener("focus", () => load().catch(() => (engine = null)), { once: true });
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(update, PAUSE);
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      clearTimeout(timer);
      await update();
      onSubmit(input, list);
    });
    place.addEventListener("keydown", (event) => move(event, input, list));
    return { input, update };
  }

  /** Arrows go from the field through the links, and back. */
  function move(event, input, list) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.isComposing || event.ctrlKey || event.altKey || event.metaKey) return;
    const stops = [input, ...list.querySelectorAll("a")];
    const next = stops[stops.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }

  function show(list, status, found, query, most) {
    list.replaceChildren();
    status.textContent = found ? summary(found) : "";
    for (const page of found?.results ?? []) {
      const item = make("li");
      const [first, ...others] = page.sections;
      const link = make("a", "book-search-hit", "", { href: address(page, first) });
      link.append(make("span", "book-search-title", page.title));
      if (!first.top) link.append(marked("book-search-heading", first.headingPieces));
      link.append(marked(`book-search-excerpt${first.code ? " code" : ""}`, first.excerpt));
      item.append(link);
      if (others.length) {
        const more = make("ul", "book-search-more", "", { "aria-label": "On the same page" });
        for (const section of others) {
          const entry = make("li");
          entry.append(make("a", "", section.heading, { href: address(page, section) }));
          more.append(entry);
        }
        item.append(more);
      }
      list.append(item);
    }
    if (found && found.total > found.results.length && most < ALL) {
      const item = make("li", "book-search-all");
      const href = `${ROOT}search.html?q=${encodeURIComponent(query.slice(0, 300))}`;
      item.append(make("a", "", `All ${found.total} pages`, { href }));
      list.append(item);
    }
  }

  function marked(className, pieces) {
    const element = make("span", className);
    for (const { text, mark } of pieces) element.append(mark ? make("mark", "", text) : text);
    return element;
  }

  function summary({ total, unknown, corrected }) {
    const missing = unknown.map((word) => `“${word}”`).join(", ");
    const sentences = [total ? `${total} ${total === 1 ? "page" : "pages"}` : "Nothing found"];
    if (corrected) sentences.push(`for “${corrected}”`);
    return sentences.join(" ") + (missing && total ? `; no page has ${missing}` : "") + ".";
  }

  /** Where a result leads: its section, with the words to be marked there. */
  function address({ url, sections }, { anchor, top, marks }) {
    const words = marks.length ? `?mark=${encodeURIComponent(marks.join("|"))}` : "";
    return `${ROOT}${url}${words}${top ? "" : `#${encodeURIComponent(anchor)}`}`;
  }

  // --- the dialog, and the page ----------------------------------------------------------------

  const SOME = 8; // pages in the dialog
  const ALL = 100;

  let dialog = null;
  let inDialog = null;

  function open() {
    if (!dialog) {
      dialog = make("dialog", "book-search-dialog", "", { "aria-label": "Search" });
      const name = { type: "button", "aria-label": "Close" };
      const close = make("button", "book-search-close", "×", name);
      close.addEventListener("click", () => dialog.close());
      inDialog = field(dialog, SOME, (input, list) => list.querySelector("a")?.click());
      dialog.querySelector("form").append(close);
      dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
      document.body.append(dialog);
    }
    dialog.showModal();
    inDialog.input.focus();
    inDialog.input.select();
  }

  function searchPage(place) {
    const { input, update } = field(place, ALL, () => {
      history.replaceState(null, "", `?q=${encodeURIComponent(input.value.slice(0, 300))}`);
    });
    input.value = new URLSearchParams(location.search).get("q") ?? "";
    input.focus();
    if (input.value) update();
    return input;
  }

  /** On the front: a question, and a field below it. */
  function searchFront(place) {
    const asked = "What do you see?";
    place.append(make("p", "book-search-asked", asked, { "aria-hidden": "true" }));
    field(place, SOME, (input, list) => list.querySelector("a")?.click(), asked);
  }

  // --- the page ----------------------------------------------------------------------------------

  (globalThis.bookSearch ??= {}).load = load;
  const place = document.getElementById("book-search");
  const onPage = place && searchPage(place);
  const front = document.getElementById("front-search");
  if (front) searchFront(front);
  const begin = (event) => {
    event.preventDefault();
    event.stopImmediatePropagation(); // the theme would open a dialog of its own
    if (onPage) onPage.focus();
    else if (dialog?.open) dialog.close();
    else open();
  };
  // Before the theme's own listeners.
  addEventListener("keydown", (event) => {
    const control = event.ctrlKey !== event.metaKey && !event.shiftKey && !event.altKey;
    if (control && event.key.toLowerCase() === "k") begin(event);
  }, true);
  addEventListener("click", (event) => {
    if (event.target.closest?.(".search-button__button")) begin(event);
  }, true);
  if (location.search.includes("mark=")) ["search/text", "search/marks"].forEach(script);
})();
