/* Words of a text: where they stand, the terms that stand for them, and how alike they are.

   A term is what the index holds: a word's stem, or a pair of Chinese characters. */
(() => {
  "use strict";

  const WORD = /\p{Script=Han}+|(?:(?!\p{Script=Han})[\p{L}\p{N}_])+/gu;
  const HAN = /\p{Script=Han}/u;

  let stemmer;

  /** The stem of a lower-case word: singular, without -ing and -ed, American spelling. */
  function stem(word) {
    if (word.length < 4 || /[^a-z]/.test(word)) return word;
    if (word === "utils") return word; // the package; util is the stem of utilization
    stemmer ??= new Stemmer(); // Martin Porter's, which Sphinx ships
    return stemmer.stemWord(word.replace(/is(e[ds]?|ing|ations?)$/, "iz$1"));
  }

  const cache = new Map();

  /** A word's terms, the whole first: DataLoader gives dataloader, data, loader. */
  function terms(word) {
    let found = cache.get(word);
    if (!found) cache.set(word, (found = split(word)));
    return found;
  }

  function split(word) {
    if (HAN.test(word)) {
      const characters = [...word];
      return characters.length < 2
        ? characters
        : characters.slice(1).map((character, i) => characters[i] + character);
    }
    const plain = word.normalize("NFKC");
    const whole = plain.replace(/_/g, "").toLowerCase();
    if (!whole) return [];
    const found = [stem(whole)];
    if (/_|\p{Ll}\p{Lu}|\p{Lu}{2}\p{Ll}{2}/u.test(plain)) {
      for (const part of plain.match(/\p{Lu}+(?!\p{Ll})|\p{Lu}?\p{Ll}+|\p{N}+/gu) || []) {
        if (part.length > 1) found.push(stem(part.toLowerCase()));
      }
    }
    return [...new Set(found)];
  }

  /** Words of a text with their places; several terms can stand in one place. */
  function words(text) {
    const found = [];
    for (const match of text.matchAll(WORD)) {
      const word = { text: match[0], from: match.index, terms: terms(match[0]) };
      if (word.terms.length) found.push(word);
    }
    return found;
  }

  /** The first terms of each word, to be compared as a sequence. */
  const sequence = (text) => words(text).map((word) => word.terms[0]);

  const pair = (a, b) => `${a.terms[0]} ${b.terms[0]}`;

  /** A text of at most about 180 characters around the most hits, in pieces. */
  function cut(text, found, length = 180) {
    let from = 0;
    if (text.length > length && found.length) {
      const fits = (start) => ([a, b]) => a >= start && b <= start + length - 30;
      const inside = (start) => found.filter(fits(start)).length;
      const starts = found.map(([a]) => a);
      from = starts.reduce((best, start) => (inside(start) > inside(best) ? start : best));
      from = Math.max(0, Math.min(from - 30, text.length - length));
      if (from) from = text.indexOf(" ", from) + 1 || from;
    }
    let to = Math.min(text.length, from + length);
    if (to < text.length) to = Math.max(text.lastIndexOf(" ", to), from + length / 2);
    return [
      ...(from ? [{ text: "… ", mark: false }] : []),
      ...pieces(text, found, from, to),
      ...(to < text.length ? [{ text: " …", mark: false }] : []),
    ];
  }

  /** A part of a text as pieces: what was found is to be marked. */
  function pieces(text, found, from = 0, to = text.length) {
    const all = [];
    let at = from;
    for (const [a, b] of found.filter(([a, b]) => a >= from && b <= to)) {
      all.push({ text: text.slice(at, a), mark: false }, { text: text.slice(a, b), mark: true });
      at = b;
    }
    all.push({ text: text.slice(at, to), mark: false });
    return all.filter((piece) => piece.text);
  }

  /** Letters to change, insert, leave out or swap to make one word of the other; at most `most`. */
  function distance(a, b, most) {
    if (Math.abs(a.length - b.length) > most) return Infinity;
    let [before, row] = [[], [...Array(b.length + 1).keys()]];
    for (let i = 1; i <= a.length; i += 1) {
      const next = [i];
      for (let j = 1; j <= b.length; j += 1) {
        const other = a[i - 1] === b[j - 1] ? 0 : 1;
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + other);
        const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
        if (swapped) next[j] = Math.min(next[j], before[j - 2] + 1);
      }
      [before, row] = [row, next];
    }
    return row[b.length] <= most ? row[b.length] : Infinity;
  }

  const text = { WORD, HAN, stem, terms, words, sequence, pair, distance, pieces, cut };
  (globalThis.bookSearch ??= {}).text = text;
})();
