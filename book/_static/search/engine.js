/* What a query finds: pages and sections in their order, and excerpts of them.

   The index was made with the pages (tools/search/book_index.py): of pages as a whole, so that a
   query's words may stand in different sections of one, and of sections, so that a result can open
   where they stand. A term is weighed by how rare it is, where it stands and how often: BM25+. */
(() => {
  "use strict";

  const { WORD, HAN, words, sequence, terms, pieces, cut } = globalThis.bookSearch.text;
  const { Phrases, Query, asked } = globalThis.bookSearch;

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
  const QUOTED = 10; // times its score: a section whose heading is a message that the query quotes
  const NEAR = 0.4; // of the page's best section's score: others that are named with it
  const MOST_MARKS = 12;

  // Of BM25+ (Lv and Zhai, 2011): https://doi.org/10.1145/2063576.2063584
  const [K, B, DELTA] = [1.2, 0.7, 0.5];

  const spell = (text) => parseInt(text, 36);

  /** One kind of documents: what score each has for a term. */
  class Index {
    constructor({ lengths, means, terms }, places, boosts) {
      Object.assign(this, { lengths, means, terms, places, count: lengths[0].length });
      this.boosts = Object.values(boosts); // in the order of the fields
    }

    score(term) {
      const found = new Map();
      const place = this.places.get(term);
      if (place === undefined || !this.terms[place]) return found;
      for (const text of this.terms[place].split(";")) {
        const [field, entries] = text.split(":");
        const documents = entries.split(" ");
        const many = documents.length + 0.5;
        const rarity = Math.log(1 + (this.count + 1 - many) / many);
        let id = 0;
        for (const entry of documents) {
          const [step, times = "1"] = entry.split("*");
          id += spell(step);
          const often = spell(times);
          const length = this.lengths[field][id] / this.means[field];
          const worth = DELTA + (often * (K + 1)) / (often + K * (1 - B + B * length));
          found.set(id, (found.get(id) ?? 0) + this.boosts[field] * rarity * worth);
        }
      }
      return found;
    }
  }

  /** An object with search(query), over what data.js holds. */
  function create(data) {
    const phrases = new Phrases(data.synonyms);
    const asides = new Map(Object.entries(data.asides));
    const [spelt, often] = data.index.words;
    const vocabulary = new Map(spelt.map((word, i) => [word, often[i]]));
    const numbers = new Map(data.index.terms.map((term, i) => [term, i]));
    const spoken = new Set(phrases.spoken.values());
    const known = { has: (term) => numbers.has(term) || spoken.has(term) };
    const pages = new Index(data.index.pages, numbers, PAGE_FIELDS);
    const sections = new Index(data.index.sections, numbers, SECTION_FIELDS);
    const places = data.pages.flatMap((page, number) =>
      page.sections.map((section) => {
        return { page: number, section, weight: asides.get(section.heading) ?? 1 };
      })
    );

    const leads = data.leads.flatMap(([said, url, anchor]) =>
      [said, ...said.split(/[;:]/)].map((part) => ({ terms: asked(part), url, anchor }))
    );

    /** Where the front leads whoever sees this; nothing, if it does not say it. */
    function lead(query) {
      const wanted = asked(query);
      let best = { alike: 0.65 };
      for (const { terms, url, anchor } of leads) {
        const common = [...wanted].filter((term) => terms.has(term)).length;
        const alike = common / (wanted.size + terms.size - common);
        if (common > 1 && alike > best.alike) best = { alike, url, anchor };
      }
      return best;
    }

    const read = (query) => new Query(query, phrases, vocabulary, known);

    return {
      /** Pages for a query, best first, each with its best sections. */
      search(query, { pages: most = 12, sections: each = 3 } = {}) {
        const { concepts, unknown, corrected } = read(query);
        const bySection = score(sections, concepts);
        const byPage = score(pages, concepts);
        const quoted = ` ${sequence(query).join(" ")} `;
        const isQuoted = ({ heading }) =>
          heading.split("…").every((part) => quoted.includes(` ${sequence(part).join(" ")} `));
        let message = false; // the query quotes one: that goes before what the front says
        const best = new Map();
        for (const [id, found] of bySection) {
          const { page, section, weight: own } = places[id];
          const isMessage = data.pages[page].messages?.includes(section.id);
          const weight = isMessage && isQuoted(section) ? own * QUOTED : own;
          message ||= weight > own;
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
        const { url, anchor } = lead(query);
        const first = results.findIndex(({ page }) => page.url === url);
        if (first >= 0 && !message) {
          const [found] = results.splice(first, 1);
          found.hits.sort((a, b) => (b.section.id === anchor) - (a.section.id === anchor));
          results.unshift({ ...found, score: Math.max(found.score, results[0]?.score ?? 0) });
        }
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
    function score(index, concepts) {
      const found = new Map();
      let all = 0;
      for (const concept of concepts) {
        const hits = new Map();
        for (const { term, weight } of concept.terms) {
          for (const [id, score] of index.score(term)) {
            const before = hits.get(id) ?? { score: 0, weight: 0, terms: new Set() };
            before.score = Math.max(before.score, weight * score);
            before.weight = Math.max(before.weight, weight);
            before.terms.add(term);
            hits.set(id, before);
          }
        }
        const counts = hits.size && !concept.bonus;
        const rarity = counts ? Math.log(1 + index.count / hits.size) : 0;
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
