"""The page of error messages: its exhibits show what their headings say, and lead to a chapter."""

import ast
import functools
import itertools
import re
from pathlib import Path

import pytest

from notebooks import BOOK, read, tags, texts

PAGE = BOOK / "troubleshooting.ipynb"
EXHIBIT = re.compile(r"^### `(.+)`$", re.MULTILINE)
CHAPTER = re.compile(r"\]\((\d\d_\w+\.ipynb)(?:#([^)]+))?\)")
HELPERS = ("fails", "replay", "in_library", "in_package", "in_runtime", "in_count", "say")
REPAIR = re.compile(r"\s*```(python|bash)\n(.+?)```\n", re.DOTALL)


def slug(heading: str) -> str:
    """The anchor that the built page gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-")


@functools.cache
def anchors(path: Path) -> set[str]:
    prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    return set(map(slug, re.findall(r"^#{2,3} +(.+?) *$", prose, re.MULTILINE)))


CELLS = read(PAGE).cells
EXHIBITS = [  # of each the message, the text below it, and the cell that provokes it
    (words, cell.source.split(f"### `{words}`")[1], following)
    for cell, following in itertools.pairwise(CELLS)
    if cell.cell_type == "markdown"
    for words in EXHIBIT.findall(cell.source)
]


def said(words: str, text: str) -> bool:
    """Whether ``text`` has ``words``: … is anything, ends of lines and backticks do not count."""
    line = " ".join(text.replace("`", "").split())
    return bool(re.search(".*?".join(map(re.escape, words.split("…"))), line))


@pytest.mark.parametrize("words, text, code", EXHIBITS, ids=[words for words, *_ in EXHIBITS])
def test_an_exhibit_shows_its_message_and_a_repair_and_leads_to_a_chapter(words, text, code):
    is_code = code.cell_type == "code" and any(f"{helper}(" in code.source for helper in HELPERS)
    assert is_code, f"no code cell below provokes it with one of {', '.join(HELPERS)}"
    output = " ".join(texts(code))
    assert words in code.source, "the cell does not ask for these words, so it may show others"
    assert said(words, output), "a reader looks for it in the output"
    repair = REPAIR.match(text)
    assert repair and "repair" in output, "no repair is shown, as a block below the heading to copy"
    if repair[1] == "python":
        ast.parse(repair[2])
    assert "hide-cell" in tags(code), "the failure is not folded"
    links = CHAPTER.findall(text)
    assert links, "it leads to no chapter"
    for name, anchor in links:
        assert anchor in {"", *anchors(BOOK / name)}, f"{name} has no {anchor}"


def test_the_table_at_the_top_lists_the_exhibits_few_of_which_depend_on_the_machine() -> None:
    index = next(cell.source for cell in CELLS if "## Find your message" in cell.source)
    listed = re.findall(r"^\| \[`(.+?)`\]\(#(.+?)\)", index, re.MULTILINE)
    assert listed == [(words, slug(words)) for words, *_ in EXHIBITS] and len(listed) >= 30
    assert sum("nbval-ignore-output" in tags(code) for *_, code in EXHIBITS) <= 2


def test_a_message_finds_its_exhibit_first(open_page) -> None:
    """The words in the heading, and the message as the exhibit shows it."""
    visit = open_page("search", query="?q=memory")
    visit.page.locator(".book-search-hit").first.wait_for(timeout=60_000)
    visit.page.evaluate("async () => { window.engine = await bookSearch.load(); }")
    own, missed = {slug(words): words for words, *_ in EXHIBITS}, []
    for words, _, code in EXHIBITS:
        message = re.split(r"\n\(|\nrepair", "\n".join(texts(code)))[0]
        for query in (words, " ".join(message.replace("…", " ").split())):
            first = visit.page.evaluate("query => engine.search(query).results[0]", query)
            anchor = first["sections"][0]["anchor"]
            found = said(own.get(anchor, words), query) or slug(words) == anchor
            if PAGE.stem not in first["url"] or not found:
                missed.append(f"{query}: {first['url']}#{anchor}")
    assert missed == [], "is the page in _toc.yml?"
