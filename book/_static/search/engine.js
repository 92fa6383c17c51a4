/* What a query finds: pages and sections in their order, and excerpts of them.

   MiniSearch finds a term, and weighs it by how rare it is, where it stands and how often. Pages
   are indexed whole, so that a query's words may stand in different sections of one, and by
   section, so that a result can open where they stand. */
(() => {
  "use strict";

  const { WORD, HAN, stem, words, sequence, pair, terms, pieces, cut } = globalThis.bookSearch.text;
  const { Phrases, Query } = globalThis.bookSearch;

  // How much a word counts by where it stands.
  const PAGE_FIELDS = {
    name: 5, // of the file
    topic: 4, // the title up to its first : or ?
    title: 6,
    headings: 4,
    lead: 1.6, // what stands before the first section: rules, each with its number
    prose: 1.2,
    code: 0.4,
    api: 0.1,
  };
  const SECTION_FIELDS = { topic: 4, heading: 5, prose: 1.2, code: 0.4, api: 0.1 };
  const SECTION_SHARE = 0.5; // of a page's score: its best section, beside the page as a whole
  const LEAST = 0.03; // of the best page's score: what is below is not shown
  const FOREIGN = 0.1; // of its score: a page in Chinese, where the query has none
  const NEAR = 0.4; // of the page's best section's score: others that are named with it
  const MOST_MARKS = 12;

  const nextTask = () => new Promise((resolve) => setTimeout(resolve));

  /** An object with search(query), over what data.js holds. */
  async function create(MiniSearch, data) {
    const phrases = new Phrases(data.synonyms);
    const asides = new Map(Object.entries(data.asides));

    const vocabulary = new Map(); // words as they are written, and how often
    const count = (word) => {
      const lower = word.toLowerCase();
      vocabulary.set(lower, (vocabulary.get(lower) ?? 0) + 1);
      return lower;
    };
    for (const word of phrases.spoken.keys()) count(word);

    /** All terms of a text: of its words, phrases, and in headings pairs of words. */
    const tokenize = (text, heading = false) => {
      const found = [];
      for (const block of text.split("\n")) {
        const places = words(block);
        places.forEach((word, i) => {
          count(word.text);
          found.push(...word.terms, ...phrases.at(places, i).map((phrase) => phrase.term));
          if (!i) return;
          const before = places[i - 1];
          if (heading) found.push(pair(before, word));
          if (block.slice(before.from + before.text.length, word.from) === "-") {
            found.push(stem(count(before.text + word.text))); // all-reduce: allreduce
          }
        });
      }
      return found;
    };
    const fields = ({ heading, prose = "", code = "", api = "" }) => {
      const named = [tokenize(heading, true), tokenize(prose), tokenize(code)];
      if (api) return { heading: [api.toLowerCase()], prose: [], code: [], api: named.flat() };
      return { heading: named[0], prose: named[1], code: [...new Set(named[2])], api: [] };
    };
    const index = (boosts) =>
      new MiniSearch({
        fields: Object.keys(boosts),
        stringifyField: (found) => found, // terms already
        tokenize: (found) => found,
        processTerm: (term) => term,
      });

    const pages = index(PAGE_FIELDS);
    const sections = index(SECTION_FIELDS);
    const places = []; // of sections: which page, which of its sections
    for (const [number, page] of data.pages.entries()) {
      const all = { headings: [], lead: [], prose: [], code: [], api: [] };
      all.name = tokenize(page.url.match(/([^/]*?)(\.\w+)?$/)[1].replace(/_/g, " "));
      all.title = tokenize(page.title, true);
      all.topic = tokenize(page.title.match(/^[^:?]*/)[0]);
      page.sections.forEach((section, i) => {
        const weight = asides.get(section.heading) ?? 1;
        const found = fields(section);
        if (!i) found.topic = [...all.name, ...all.topic];
        sections.add({ id: places.length, ...found });
        places.push({ page: number, section, weight });
        if (weight < 0.5) return; // it points at other pages
        if (i && weight === 1) all.headings.push(...found.heading);
        all[i ? "prose" : "lead"].push(...found.prose);
        all.code.push(...found.code);
        all.api.push(...found.api);
      });
      pages.add({ id: number, ...all });
      await nextTask(); // so that keys are heard in between
    }

    const known = new Set([...vocabulary.keys()].flatMap(terms));
    const read = (query) => new Query(query, phrases, vocabulary, known);

    return {
      /** Pages for a query, best first, each with its best sections. */
      search(query, { pages: most = 12, sections: each = 3 } = {}) {
        const { concepts, unknown, corrected } = read(query);
        const bySection = score(sections, concepts, SECTION_FIELDS);
        const byPage = score(pages, concepts, PAGE_FIELDS);
        const best = new Map();
        for (const [id, found] of bySection) {
          const { page, section, weight } = places[id];
          const hits = best.get(page) ?? best.set(page, []).get(page);
          hits.push({ section, score: found.score * weight, matched: found.matched });
        }
        const chinese = HAN.test(query);
        const results = [...best].map(([number, hits]) => {
          hits.sort((a, b) => b.score - a.score);
          const page = data.pages[number];
          const weight = page.weight * (HAN.test(page.title) && !chinese ? FOREIGN : 1);
          const score = (byPage.get(number)?.score ?? 0) + SECTION_SHARE * hits[0].score;
          return { number, page, hits, score: weight * score };
        });
        results.sort((a, b) => b.score - a.score || a.number - b.number);
        const worth = results.filter(({ score }) => score > LEAST * results[0].score);
        return {
          total: worth.length,
          unknown, // words that no page has
          corrected, // the query as it was read, if a word was taken for another
          results: worth.slice(0, most).map(({ page, hits, score }) => ({
            url: page.url,
            title: page.title,
            score,
            sections: [hits[0], ...others(hits, page)]
              .slice(0, each)
              .map((hit) => present(hit, page)),
          })),
        };
      },
    };

    /** Sections to name below the best; the top of the page is named by the page's title. */
    function others([best, ...rest], page) {
      const near = rest.filter(({ score }) => score > NEAR * best.score);
      return near.filter(({ section }) => section !== page.sections[0]);
    }

    function present({ section, score, matched }, page) {
      const wanted = shown(section.prose ?? "", matched);
      const { heading, id } = section;
      return {
        anchor: id,
        top: section === page.sections[0],
        score,
        heading,
        headingPieces: pieces(heading, spans(heading, wanted)),
        ...excerpt(section, wanted),
        marks: surfaces(section, wanted),
      };
    }

    /** Score and matches of each document: the sum over concepts, less for those that miss some. */
    function score(mini, concepts, boost) {
      const found = new Map();
      let all = 0;
      for (const concept of concepts) {
        const hits = new Map();
        for (const { term, weight } of concept.terms) {
          const options = { boost, tokenize: (text) => [text] };
          for (const hit of mini.search(term, options)) {
            const before = hits.get(hit.id) ?? { score: 0, weight: 0, terms: new Set() };
            before.score = Math.max(before.score, weight * hit.score);
            before.weight = Math.max(before.weight, weight);
            hit.terms.forEach((found) => before.terms.add(found));
            hits.set(hit.id, before);
          }
        }
        const counts = hits.size && !concept.bonus;
        const rarity = counts ? Math.log(1 + mini.documentCount / hits.size) : 0;
        all += rarity;
        for (const [id, hit] of hits) {
          const document = found.get(id) ?? { sum: 0, covered: 0, matched: [] };
          document.sum += hit.score;
          document.covered += rarity * hit.weight;
          document.matched.push({ concept, terms: hit.terms });
          found.set(id, document);
        }
      }
      for (const document of found.values()) {
        document.score = document.sum * (all ? document.covered / all : 1);
      }
      return found;
    }

    // --- excerpts ------------------------------------------------------------------------------

    /** Terms to be shown. Where prose has a whole phrase, its words alone would say less. */
    function shown(prose, matched) {
      const wanted = new Set(matched.flatMap(({ terms }) => [...terms]));
      const said = ` ${sequence(prose).join(" ")} `;
      for (const { concept, terms } of matched) {
        const kept = new Set(matched.flatMap((m) => (m.concept === concept ? [] : [...m.terms])));
        for (const phrase of concept.phrases) {
          if (!terms.has(phrase.term) || !said.includes(` ${phrase.sequence.join(" ")} `)) continue;
          phrase.sequence.forEach((word) => kept.has(word) || wanted.delete(word));
        }
      }
      return wanted;
    }

    /** Where a text holds what is wanted: [from, to] of each word or phrase. */
    function spans(text, wanted) {
      const places = words(text);
      const found = [];
      for (let i = 0; i < places.length; i += 1) {
        const phrase = phrases.at(places, i).find(({ term }) => wanted.has(term));
        const length = phrase ? phrase.sequence.length : places[i].terms.some((t) => wanted.has(t));
        if (!length) continue;
        const last = places[i + length - 1];
        found.push([places[i].from, last.from + last.text.length]);
        i += length - 1;
      }
      return found;
    }

    /** Words and phrases of a section as they are written there, to be marked on the page. */
    function surfaces({ heading, prose = "", code = "" }, wanted) {
      const found = new Set();
      for (const text of [heading, prose, code]) {
        for (const [from, to] of spans(text, wanted)) {
          found.add(text.slice(from, to).match(WORD).join(" ").toLowerCase());
        }
      }
      return [...found].slice(0, MOST_MARKS);
    }

    /** The place of a section that says most of what was looked for, as pieces to show or mark. */
    function excerpt({ prose = "", code = "" }, wanted) {
      for (const [text, isCode] of [[prose, false], [code, true]]) {
        let best = null;
        for (const block of text.split("\n")) {
          const found = spans(block, wanted);
          const first = ([a, b]) => terms(block.slice(a, b).match(WORD)[0])[0];
          const distinct = new Set(found.map(first));
          if (found.length && (!best || distinct.size > best.value)) {
            best = { value: distinct.size, block, found };
          }
        }
        if (best) return { code: isCode, excerpt: cut(best.block, best.found) };
      }
      return { code: false, excerpt: cut(prose.split("\n")[0], []) };
    }
  }

  globalThis.bookSearch.create = create;
})();
