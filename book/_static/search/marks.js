/* Marks, on the page that a result opens, the words for which it was found: ?mark=word|some words.

   Escape takes the marks away. */
(() => {
  "use strict";

  const { WORD } = globalThis.bookSearch.text;
  const MOST = 20; // words and phrases

  function markWords() {
    const address = new URL(location.href);
    const wanted = (address.searchParams.get("mark") ?? "").split("|", MOST);
    const phrases = wanted.map((text) => text.match(WORD) ?? []).filter((words) => words.length);
    if (!phrases.length) return;
    address.searchParams.delete("mark");
    history.replaceState(null, "", address); // a link that is copied, or a reload, marks nothing
    const target = document.getElementById(decoded(address.hash.slice(1)));
    const section =
      (target?.matches("dt") ? target.parentElement : target?.closest("section")) ??
      document.querySelector("article section");
    if (!section) return;
    const marks = mark(section, phrases.map((words) => words.map((word) => word.toLowerCase())));
    bringIntoView(marks, target);
    const clear = (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      marks.forEach((element) => element.replaceWith(...element.childNodes));
      document.removeEventListener("keydown", clear);
    };
    document.addEventListener("keydown", clear);
  }

  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  }

  /** Mark phrases in what a section holds itself; returns the marks. */
  function mark(section, phrases) {
    const others = "section section, .math, mjx-container, script, style, button, .headerlink";
    const own = (node) => {
      const inside = node.parentElement.closest(others);
      return !inside || inside.contains(section);
    };
    const walker = document.createTreeWalker(section, NodeFilter.SHOW_TEXT);
    const words = [];
    while (walker.nextNode()) {
      if (!own(walker.currentNode)) continue;
      for (const { 0: text, index } of walker.currentNode.data.matchAll(WORD)) {
        words.push({ text: text.toLowerCase(), node: walker.currentNode, from: index });
      }
    }
    const ranges = [];
    for (let i = 0; i < words.length; i += 1) {
      const fits = (phrase) => phrase.every((word, k) => words[i + k]?.text === word);
      const phrase = phrases.filter(fits).sort((a, b) => b.length - a.length)[0];
      if (!phrase) continue;
      for (const { node, from, text } of words.slice(i, i + phrase.length)) {
        const last = ranges.at(-1);
        if (last?.node === node && last.word === i) last.to = from + text.length;
        else ranges.push({ node, from, to: from + text.length, word: i });
      }
      i += phrase.length - 1;
    }
    // From the last to the first, so that the places before stay what they are.
    const marks = ranges.reverse().map(({ node, from, to }) => {
      const range = document.createRange();
      range.setStart(node, from);
      range.setEnd(node, to);
      const element = document.createElement("mark");
      element.className = "book-mark";
      range.surroundContents(element);
      return element;
    });
    return marks.reverse();
  }

  /** The section's heading stays at the top if a mark can be seen below it. */
  function bringIntoView(marks, target) {
    target?.scrollIntoView();
    const open = marks.filter((element) => !element.closest("details:not([open])"));
    const first = open[0] ?? marks[0];
    if (!first) return;
    for (let fold = first.closest("details"); fold; fold = fold.parentElement.closest("details")) {
      fold.open = true;
    }
    const seen = ({ top, bottom }) => top >= 0 && bottom <= innerHeight && bottom > top;
    if (!open.some((element) => seen(element.getBoundingClientRect()))) {
      first.scrollIntoView({ block: "center" });
    }
  }

  markWords();
})();
