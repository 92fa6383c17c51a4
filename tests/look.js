// What the tests of the pages ask of one that is open, each as one question: each takes its time.
({
  // What there is, to compare with the page's source.
  async seen() {
    const all = (selector, what) => [...document.querySelectorAll(selector)].map(what);
    const count = (selector) => document.querySelectorAll(selector).length;
    const text = document.querySelector("article").cloneNode(true);
    text.querySelectorAll("pre, code, script, mjx-container").forEach((e) => e.remove());
    const icons = "[class*='fa-']:is(.fas, .far, .fab, .fa-solid, .fa-regular, .fa-brands)";
    const loads = async (image) => {
      const copy = new Image(); // what is far down, or for the other theme, has not been loaded
      copy.src = image.src;
      return copy.decode().then(() => copy.naturalWidth > 0, () => false);
    };
    return {
      title: document.querySelector("article h1").innerText,
      chapters: count("nav.bd-links a"),
      links: all("a[href]", (a) => a.href),
      meta: Object.fromEntries(
        all("meta", (m) => [m.name || m.getAttribute("property"), m.content])),
      icons: all(icons, (i) => [i.className, getComputedStyle(i).maskImage]),
      captions: all(".cell_output figure figcaption", (c) => c.textContent.trim()),
      pictures: count(".cell_output img.only-light"),
      images: await Promise.all(
        all("article img", async (i) => [i.getAttribute("src"), i.alt, await loads(i)])),
      formulas: count("article .math"),
      unset: count("article .math:not(:has(mjx-container)), mjx-merror"),
      tex: text.textContent.match(/\\[()[\]]|\$\$|\$[^$\n]*\\[a-z]+[^$\n]*\$/g),
      cells: count(".cell_input .highlight"),
      buttons: count(".cell_input .highlight button.copybtn"),
      folds: {
        "hide-input": count(".tag_hide-input:is(:has(> details.above-input), details *)"),
        "hide-output": count(".tag_hide-output details.below-input"),
        "hide-cell": count("article .tag_hide-cell:is(:has(> details), details *)"),
      },
      open: count("article .cell details[open]"),
    };
  },

  // What is too wide: for the page; code in a table that is broken within words; code that does
  // not scroll, show it and stop the keyboard; a table that is cut off; a cell that covers others.
  async wide() {
    const soon = async (condition) => {
      for (let i = 0; i < 100 && !condition(); i++)
        await new Promise((then) => setTimeout(then, 10));
      return condition();
    };
    await document.fonts.ready;
    const all = (selector) => [...document.querySelectorAll(selector)];
    const wide = (e) => e.scrollWidth > e.clientWidth + 1 && e.checkVisibility();
    const shows = (e) => getComputedStyle(e).maskImage !== "none" && e.tabIndex >= 0;
    const found = document.documentElement.scrollWidth <= innerWidth ? [] : all("article *")
      .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5);
    const tables = ".pst-scrollable-table-container, .output.text_html:has(table)";
    await soon(() => !all(`article :is(${tables})`).some(wide)); // looks.js makes cards of rows
    found.push(...all(`article :is(${tables}, td, th)`).filter(wide));
    const broken = (e) => e.getClientRects().length > 1 && !e.closest(".cards");
    found.push(...all("article td code .pre").filter(broken));
    await soon(() => all("article pre").filter(wide).every(shows));
    found.push(...all("article pre").filter((e) => wide(e) && !shows(e)));
    return found.map((e) => e.outerHTML.slice(0, 100));
  },

  // Words that are hard to read, with their contrast as WCAG 2 defines it, and links that only
  // their color tells. Words of one color, size and ground are the same: one of each is looked at.
  // https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio
  pale(within) {
    const still = "* { transition: none !important; animation: none !important }";
    if (!document.querySelector("#still")) // so that no color is on its way
      document.head.insertAdjacentHTML("beforeend", `<style id="still">${still}</style>`);
    const parts = (color) => color.match(/[\d.]+/g).map(Number);
    const over = ([r, g, b, a = 1], back) => [r, g, b].map((c, i) => a * c + (1 - a) * back[i]);
    const once = (of) => ((known) => (element) => {
      if (!known.has(element)) known.set(element, of(element));
      return known.get(element);
    })(new Map());
    const ground = once((e) => e
      ? over(parts(getComputedStyle(e).backgroundColor), ground(e.parentElement))
      : [255, 255, 255]);
    const opacity = once((e) => e ? getComputedStyle(e).opacity * opacity(e.parentElement) : 1);
    const light = (color) => {
      const [r, g, b] = color.map((c) => c / 255)
        .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const speaks = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    const kinds = new Map();
    for (const element of document.querySelectorAll(`${within} *`)) {
      if (!speaks(element) || !element.checkVisibility({ opacityProperty: true })) continue;
      const { color, fontSize, fontWeight } = getComputedStyle(element);
      const [r, g, b, a = 1] = parts(color), back = ground(element);
      const seen = over([r, g, b, a * opacity(element)], back);
      const kind = [seen, fontSize, fontWeight, back].join();
      if (kinds.has(kind)) continue;
      const [dark, bright] = [light(seen), light(back)].sort((a, b) => a - b);
      const large = parseFloat(fontSize) >= (fontWeight >= 700 ? 18.66 : 24);
      kinds.set(kind, [(bright + 0.05) / (dark + 0.05), large ? 3 : 4.5, element.outerHTML]);
    }
    const pale = [...kinds.values()].filter(([ratio, limit]) => ratio < limit)
      .map(([ratio, limit, html]) => `${ratio.toFixed(1)}, not ${limit}: ${html.slice(0, 150)}`);
    const links = [...document.querySelectorAll(`${within} :is(p, li, td, dd, figcaption) > a`)]
      .filter((a) => speaks(a.parentElement) && speaks(a) && !a.matches(".headerlink"))
      .filter((a) => !getComputedStyle(a).textDecorationLine.includes("underline"))
      .map((a) => `only its color tells that this is a link: ${a.outerHTML.slice(0, 150)}`);
    return [...pale, ...links];
  },

  // What axe finds, which is loaded. Code loses its colors: look at nothing else afterwards.
  // A rule's impact is that of all its findings: what is never serious is not looked for. Nor are
  // colors, which take most of axe's time: see above. Nothing is preloaded: only rules on sound and
  // on turned phones would ask for it, and none of them is serious.
  async serious(within) {
    for (const code of document.querySelectorAll(`${within} .highlight pre`))
      code.textContent = code.textContent;
    const light = axe._audit.rules.filter((rule) => /minor|moderate/.test(rule.impact));
    const off = ["color-contrast", "link-in-text-block", ...light.map((rule) => rule.id)];
    const rules = Object.fromEntries(off.map((id) => [id, { enabled: false }]));
    rules["label-content-name-mismatch"] = { enabled: true }; // to axe still an experiment
    const options = { rules, resultTypes: ["violations"], selectors: false, preload: false };
    const { violations } = await axe.run(within === "body" ? document : within, options);
    return violations.filter((v) => ["serious", "critical"].includes(v.impact))
      .map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200))}`);
  },
})
