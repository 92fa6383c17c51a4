"""The index of the search, made while the pages are built: what each term is found in, how often.

A browser would need seconds for it on a slow machine, before the first answer. What a term is, says
``text.js`` beside the engine, which reads queries; here the same is said for the pages, and a test
compares the two.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from operator import contains
from unicodedata import normalize

import numpy as np
from sphinx.search.en import SearchEnglish

CHINESE = "々〇〡-〩〸-〻⺀-⿟㐀-䶿一-鿿豈-﫿𠀀-𳎯"
HAN = re.compile(f"[{CHINESE}]")
WORD = re.compile(rf"[{CHINESE}]+|(?:(?![{CHINESE}])\w)+")
MIXED = re.compile("_|lU|UUll")  # letters' kinds in pin_memory, DataLoader, NVMe
PARTS = re.compile("U+(?!l)|U?l+|n+")
PAGE = ("name", "topic", "title", "headings", "lead", "prose", "code", "api")
SECTION = ("topic", "heading", "prose", "code", "api")
STEMMER = SearchEnglish({})
Word = tuple[str, int, list[str]]  # as it is written, where, its terms


@cache
def stem(word: str) -> str:
    """Return the stem of a lower-case word: singular, without -ing and -ed, American spelling."""
    if len(word) < 4 or re.search("[^a-z]", word) or word == "utils":
        return word
    word = re.sub("is(e[ds]?|ing|ations?)$", r"iz\1", word)
    # What the browser's Porter does, and this one only to -ably.
    return STEMMER.stem(re.sub("(?<=...)logy$", "log", re.sub("(?<=...)bly$", "ble", word)))


@cache
def terms(word: str) -> list[str]:
    """Return a word's terms, the whole first: DataLoader gives dataloader, data, loader."""
    if HAN.match(word):
        return [word] if len(word) < 2 else [word[i : i + 2] for i in range(len(word) - 1)]
    plain = normalize("NFKC", word)
    whole = plain.replace("_", "").lower()
    if not whole:
        return []
    found = [stem(whole)]
    kinds = "".join(_kind(character) for character in plain)
    if MIXED.search(kinds):
        spans = (part.span() for part in PARTS.finditer(kinds))
        found += [stem(plain[a:b].lower()) for a, b in spans if b - a > 1]
    return list(dict.fromkeys(found))


def _kind(character: str) -> str:
    if character.isnumeric():
        return "n"
    return "U" if character.isupper() else "l" if character.islower() else character


def words(text: str) -> list[Word]:
    """Return the words of a text with their places; several terms can stand in one place."""
    found = ((match[0], match.start(), terms(match[0])) for match in WORD.finditer(text))
    return [word for word in found if word[2]]


class Index:
    """What terms pages and sections hold, of texts that were divided as ``book_search`` does it.

    Parameters
    ----------
    synonyms : list of dict
        Each with ``say`` and ``mean``; their phrases are terms of the index.
    """

    def __init__(self, synonyms: list[dict[str, list[str]]]) -> None:
        self.vocabulary: Counter[str] = Counter()  # words as they are written
        self.phrases: dict[str, list[list[str]]] = {}  # first term of a phrase -> phrases
        for entry in synonyms:
            for text in (*entry["mean"], *(say for say in entry["say"] if not HAN.search(say))):
                found = words(text)
                sequence = [of_word[0] for *_, of_word in found]
                if len(sequence) > 1:
                    self.phrases.setdefault(sequence[0], []).append(sequence)
                if text in entry["say"]:
                    self.vocabulary.update(dict.fromkeys((word.lower() for word, *_ in found), 0))
        spoken = dict.fromkeys(self.vocabulary, 1)  # never misspelt
        self.vocabulary.update(spoken)

    def tokens(self, text: str, heading: bool = False) -> Iterator[str]:
        """Yield all terms of a text: of its words, phrases, and in headings pairs of words."""
        for block in text.split("\n"):
            found = words(block)
            for i, (word, start, own) in enumerate(found):
                self.vocabulary[word.lower()] += 1
                yield from own
                yield from {f"={' '.join(phrase)}" for phrase in self._at(found, i)}
                if not i:
                    continue
                before, place, others = found[i - 1]
                if heading:
                    yield f"{others[0]} {own[0]}"
                if block[place + len(before) : start] == "-":  # all-reduce: allreduce
                    self.vocabulary[(before + word).lower()] += 1
                    yield stem((before + word).lower())

    def _at(self, found: list[Word], i: int) -> Iterator[list[str]]:
        for phrase in self.phrases.get(found[i][2][0], []):
            here = [own for *_, own in found[i : i + len(phrase)]]
            if len(here) == len(phrase) and all(map(contains, here, phrase)):
                yield phrase

    def of(self, pages: list[dict], asides: dict[str, float]) -> dict[str, object]:
        """Return what the engine needs: words and terms, and of both kinds of texts their postings.

        Parameters
        ----------
        pages : list of dict
            As the search's data has them.
        asides : dict
            How much sections of some headings count.
        """
        whole, parts = [], []
        for page in pages:
            name = re.search(r"([^/]*?)(\.\w+)?$", page["url"])[1].replace("_", " ")
            every = {field: [] for field in PAGE}
            every["name"] = list(self.tokens(name))
            every["title"] = list(self.tokens(page["title"], heading=True))
            every["topic"] = list(self.tokens(re.match("[^:?]*", page["title"])[0]))
            for i, section in enumerate(page["sections"]):
                found = self._fields(section)
                if not i:
                    found["topic"] = every["name"] + every["topic"]
                parts.append(found)
                weight = asides.get(section["heading"], 1)
                if weight < 0.5:  # it points at other pages
                    continue
                if i and weight == 1:
                    every["headings"] += found["heading"]
                every["prose" if i else "lead"] += found["prose"]
                every["code"] += found["code"]
                every["api"] += found["api"]
            whole.append(every)
        known = sorted({term for of in (*whole, *parts) for field in of.values() for term in field})
        return {
            "words": [list(self.vocabulary), list(self.vocabulary.values())],
            "terms": known,
            "pages": postings(whole, PAGE, known),
            "sections": postings(parts, SECTION, known),
        }

    def _fields(self, section: dict[str, str]) -> dict[str, list[str]]:
        heading = list(self.tokens(section["heading"], heading=True))
        prose, code = (list(self.tokens(section.get(kind, ""))) for kind in ("prose", "code"))
        if api := section.get("api"):
            whole = heading + prose + code
            return {"heading": [api.lower()], "prose": [], "code": [], "api": whole}
        return {"heading": heading, "prose": prose, "code": list(dict.fromkeys(code)), "api": []}


def postings(
    documents: list[dict[str, list[str]]], fields: tuple[str, ...], known: list[str]
) -> dict[str, object]:
    """Return which of the documents hold each term, in which field, and how often.

    Returns
    -------
    dict
        ``lengths``: for each field how many terms each document has; ``means``: how many those
        that have the field have; ``terms``: for each of the known terms a text such as
        ``1:4 2*3;3:0``: in field 1 documents 4 and 6, the latter three times, in field 3 document
        0. Numbers have the base 36, and a document is written as its distance from the one before.
    """
    found: dict[str, list[dict[int, int]]] = {term: [{} for _ in fields] for term in known}
    lengths, means = [], []
    for place, field in enumerate(fields):
        counts = [Counter(document.get(field, ())) for document in documents]
        lengths.append([len(count) for count in counts])
        having = [len(count) for count, one in zip(counts, documents, strict=True) if field in one]
        means.append(sum(having) / max(1, len(having)))
        for number, count in enumerate(counts):
            for term, times in count.items():
                found[term][place][number] = times
    return {"lengths": lengths, "means": means, "terms": [_written(found[term]) for term in known]}


def _written(places: list[dict[int, int]]) -> str:
    texts = []
    for place, documents in enumerate(places):
        before, entries = 0, []
        for number, times in documents.items():
            distance, often = (np.base_repr(n, 36).lower() for n in (number - before, times))
            entries.append(distance + (f"*{often}" if times > 1 else ""))
            before = number
        if entries:
            texts.append(f"{place}:{' '.join(entries)}")
    return ";".join(texts)
