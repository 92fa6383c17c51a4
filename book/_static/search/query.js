/* What a query asks for: concepts, each with the terms that stand for it, weighted. */
(() => {
  "use strict";

  const { HAN, stem, terms, words, sequence, pair, distance } = globalThis.bookSearch.text;

  const LONGEST = 300; // characters; the rest of a query is not read
  const MOST_WORDS = 32;
  const MOST_ENDINGS = 12; // of a word that is being typed
  const MANY_WORDS = 8; // a message that was pasted: its numbers are sizes, lines and processes

  // How much a match counts.
  const EXACT = 1;
  const BEGINNING = 0.7; // the page's word begins with what is typed
  const SYNONYM = 0.9;
  const WORD_OF_PHRASE = 0.35; // "memory", where "out of memory" was asked for
  const PART = 0.4; // "memory", where "pin_memory" was asked for
  const OWNER = 0.4; // "model", where "model.eval" was asked for
  const PAIR = 0.6; // two words that stand together in a heading, too
  const FULL_NAME = 10; // "utils.timing.measure"

  // Words of questions: they say nothing of what is looked for, unless there are no others.
  const STOPWORDS = new Set(
    `a about after all am an and any are as at be been before but by can cannot could d did do does
     doesn doing don for from get getting give gives got had has have having how i if in into is isn
     it its ll m me must my no not of on or our please re s shall should so some still such t than
     that the their them then there these they this to too use using ve very was we were what when
     where which while who why will with won would you your pytorch torch`.split(/\s+/)
  );

  const FILLERS = /怎么办|怎么样?|怎样|如何|为什么|为何|什么|哪些|多少|可以|应该|的|吗|呢|了/gu;

  // What stands in many a message, and says nothing of its cause.
  const NOISE = [
    /CUDA kernel errors might be asynchronously reported .{0,200}?CUDA_LAUNCH_BLOCKING=1\.?/gs,
    /Compile with .?TORCH_USE_CUDA_DSA.? to enable device-side assertions\.?/g,
    /Search for .?cudaError\w+.? in \S+ for more information\.?/g,
    /\[rank\d+\]:/g,
  ];
  const LONGEST_PASTE = 20_000;

  /** What of a pasted message says its cause: of a traceback the last error, and no set phrases. */
  function cause(pasted) {
    let text = pasted.slice(0, LONGEST_PASTE);
    if (/Traceback \(most recent|\bFile "[^"\n]{1,300}", line \d/.test(text)) {
      const errors = [...text.matchAll(/(?<![\w.])[\w.]{0,80}(?:Error|Exception|Warning): /g)];
      text = text.slice(errors.at(-1)?.index ?? 0);
    }
    const rest = NOISE.reduce((said, noise) => said.replace(noise, " "), text);
    return /[\p{L}\p{N}]/u.test(rest) ? rest : text;
  }

  /** The words without the numbers of a long message. */
  function telling(typed) {
    const named = typed.filter(({ text }) => !/^\d[\dx]*$/.test(text));
    return named.length < MANY_WORDS ? typed : named;
  }

  /** The terms of a text's words that say something. */
  function asked(text) {
    const telling = words(cause(text)).filter((word) => !STOPWORDS.has(word.text.toLowerCase()));
    return new Set(telling.map((word) => word.terms[0]));
  }

  /** Phrases of the synonyms: each is one term of the index, where its words stand together. */
  class Phrases {
    constructor(synonyms) {
      this.byFirst = new Map(); // first term of a phrase -> phrases, longest first
      this.meanings = new Map(); // term of a phrase or word -> what else to look for
      this.chinese = []; // [what is typed, its term], longest first
      this.spoken = new Map(); // words of `say`, never misspelt, and their terms
      for (const { say, mean } of synonyms) {
        const wanted = mean.map((text) => this.add(text));
        for (const text of say) {
          let term;
          if (HAN.test(text)) this.chinese.push([text.toLowerCase(), (term = text)]);
          else {
            term = this.add(text).term;
            for (const word of words(text)) this.spoken.set(word.text.toLowerCase(), word.terms[0]);
          }
          this.meanings.set(term, [...(this.meanings.get(term) ?? []), ...wanted]);
        }
      }
      this.chinese.sort(([a], [b]) => b.length - a.length);
      for (const found of this.byFirst.values()) {
        found.sort((a, b) => b.sequence.length - a.sequence.length);
      }
    }

    add(text) {
      const parts = sequence(text);
      const phrase = { sequence: parts, term: parts.length > 1 ? `=${parts.join(" ")}` : parts[0] };
      if (parts.length > 1) {
        const found = this.byFirst.get(parts[0]) ?? this.byFirst.set(parts[0], []).get(parts[0]);
        if (!found.some(({ term }) => term === phrase.term)) found.push(phrase);
      }
      return phrase;
    }

    /** Phrases that begin at word i of a text. */
    at(places, i) {
      return (this.byFirst.get(places[i].terms[0]) ?? []).filter(({ sequence }) =>
        sequence.every((term, k) => places[i + k]?.terms.includes(term))
      );
    }
  }

  /** What a query asks for: concepts, each with the terms that stand for it. */
  class Query {
    constructor(text, phrases, vocabulary, known) {
      Object.assign(this, { phrases, vocabulary, known });
      this.concepts = [];
      this.unknown = []; // words that no page has, nor any like them
      const query = cause(text).slice(0, LONGEST).normalize("NFKC");
      const ended = /[^\p{L}\p{N}_]$/u.test(query); // else the last word may be half typed
      const spaces = /(?<=\p{Script=Han})\s+|\s+(?=\p{Script=Han})/gu;
      const rest = this.chinese(query.replace(spaces, ""));
      const typed = telling(words(rest)).slice(0, MOST_WORDS);
      for (const word of typed) {
        // In model.eval() or torch.cuda.empty_cache(), what comes last says what is meant.
        word.owner = /^\.[\p{L}_]/u.test(rest.slice(word.from + word.text.length));
      }
      const meant = typed.flatMap((word, i) => this.meant(word, i === typed.length - 1 && !ended));
      this.corrected = meant.some(({ meant }) => meant) ? meant.map((w) => w.text).join(" ") : "";
      this.latin(meant, ended);
      for (const [name] of rest.matchAll(/[\w]+(\.[\w]+)+/g)) {
        const terms = [{ term: name.toLowerCase(), weight: FULL_NAME }];
        this.concepts.push({ bonus: true, phrases: [], terms });
      }
    }

    /** Take the Chinese terms that the synonyms know out of the query. */
    chinese(query) {
      if (!HAN.test(query)) return query;
      let rest = "";
      for (let at = 0; at < query.length; ) {
        const lower = query.slice(at).toLowerCase();
        const [typed, term] = this.phrases.chinese.find(([key]) => lower.startsWith(key)) ?? [];
        if (typed) {
          const wanted = this.bigrams(typed);
          this.add({ phrases: [], wanted, meanings: this.phrases.meanings.get(term) });
          rest += " ";
        } else rest += query[at];
        at += typed ? typed.length : 1;
      }
      return rest;
    }

    /** Chinese, as far as pages are written in it: pairs of characters. */
    bigrams(text) {
      const han = words(text).filter((word) => HAN.test(word.text));
      const found = han.flatMap((word) => word.terms).filter((term) => this.known.has(term));
      return found.map((term) => ({ term, weight: EXACT / found.length }));
    }

    latin(places, ended) {
      const isStop = ({ text }) => STOPWORDS.has(text.toLowerCase());
      const asked = places.every(isStop) && !this.concepts.length ? () => true : (w) => !isStop(w);
      for (let i = 0; i < places.length; ) {
        const phrase = this.phrases.at(places, i)[0];
        if (phrase) {
          const parts = places.slice(i, i + phrase.sequence.length).filter(asked);
          const share = WORD_OF_PHRASE / Math.max(1, parts.length) ** 0.5;
          this.add({
            phrases: [phrase],
            wanted: parts.map((word) => ({ term: word.terms[0], weight: share })),
            meanings: this.phrases.meanings.get(phrase.term),
          });
          i += phrase.sequence.length;
        } else {
          const unfinished = i + 1 === places.length && !ended;
          if (asked(places[i])) this.word(places[i], places[i + 1], unfinished);
          i += 1;
        }
      }
      for (let i = 1; i < places.length; i += 1) {
        if (!isStop(places[i - 1]) || !isStop(places[i])) {
          const term = pair(places[i - 1], places[i]);
          this.concepts.push({ bonus: true, phrases: [], terms: [{ term, weight: PAIR }] });
        }
      }
    }

    /** One word: itself, what it may be the beginning of, and its synonyms. */
    word(word, next, unfinished) {
      if (HAN.test(word.text)) {
        // Only a page in Chinese can say it: the others do not lose by saying nothing of it.
        const wanted = this.bigrams(word.text.replace(FILLERS, " "));
        if (wanted.length) this.concepts.push({ bonus: true, phrases: [], terms: wanted });
        return;
      }
      const [whole, ...pieces] = word.terms;
      const parts = pieces.filter((term) => !STOPWORDS.has(term)); // of OutOfMemoryError
      const lower = word.text.toLowerCase();
      const meanings = [...(this.phrases.meanings.get(whole) ?? [])];
      const exact = word.owner ? OWNER : EXACT;
      const wanted = [{ term: whole, weight: exact }];
      if (unfinished && lower.length > 1) {
        for (const other of this.begunBy(lower)) {
          wanted.push({ term: terms(other)[0], weight: BEGINNING });
          const said = this.phrases.spoken.get(other);
          if (!this.known.has(whole)) meanings.push(...(this.phrases.meanings.get(said) ?? []));
        }
      }
      const share = this.known.has(whole) ? PART : exact;
      parts.forEach((term) => wanted.push({ term, weight: share / (parts.length + 1) }));
      const joined = next && stem((word.text + next.text).toLowerCase());
      if (this.known.has(joined)) wanted.push({ term: joined, weight: EXACT });
      this.add({ phrases: [], wanted, meanings });
    }

    /** Words that begin with what is typed, the most frequent first. */
    begunBy(typed) {
      const longer = ([word]) => word.length > typed.length && word.startsWith(typed);
      const found = [...this.vocabulary].filter(longer).sort(([, a], [, b]) => b - a);
      return found.slice(0, MOST_ENDINGS).map(([word]) => word);
    }

    /** A word as it was typed or, if no page has it, the words that are most like it. */
    meant(word, unfinished) {
      const lower = word.text.toLowerCase();
      const has = (text) => this.vocabulary.has(text);
      const same = (term) => this.known.has(term);
      if (HAN.test(lower) || word.terms.some(same)) return [word];
      const all = [...this.vocabulary.keys()];
      if (unfinished && all.some((other) => other.startsWith(lower))) return [word];
      for (let i = 3; i <= lower.length - 3; i += 1) {
        const halves = [lower.slice(0, i), lower.slice(i)];
        if (halves.every(has)) return halves.map((half) => ({ ...words(half)[0], meant: true }));
      }
      const most = lower.length < 4 ? 0 : lower.length < 8 ? 1 : 2;
      let best = null;
      for (const [other, count] of this.vocabulary) {
        const edits = distance(lower, other, best ? best.edits : most);
        if (edits < (best?.edits ?? most + 1) || (edits === best?.edits && count > best.count)) {
          best = { other, edits, count };
        }
      }
      if (best) return [{ ...words(best.other)[0], meant: true }];
      this.unknown.push(word.text);
      return [word];
    }

    add({ phrases, wanted, meanings = [] }) {
      const all = [...phrases, ...meanings].filter(({ sequence }) => sequence.length > 1);
      this.concepts.push({
        phrases: all,
        terms: [
          ...phrases.map(({ term }) => ({ term, weight: EXACT })),
          ...wanted,
          ...meanings.map(({ term }) => ({ term, weight: SYNONYM })),
        ],
      });
    }
  }

  Object.assign(globalThis.bookSearch, { Phrases, Query, asked });
})();
