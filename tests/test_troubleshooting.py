"""The page of error messages: its exhibits show what their headings say, and lead to a chapter."""

import ast
import copy
import re

import pytest
from nbformat import NotebookNode, v4

from notebooks import BOOK, read, tags, texts

PAGE = BOOK / "troubleshooting.ipynb"
EXHIBIT = re.compile(r"^### `(.+)`$", re.MULTILINE)
CHAPTER = re.compile(r"\]\((\d\d_\w+\.ipynb)(?:#([^)]+))?\)")
HELPERS = ("fails", "replay", "in_library", "in_package", "in_runtime", "in_count", "say")
REPAIR = re.compile(r"\s*```(python|bash)\n(.+?)```\n", re.DOTALL)
LEAST = 30


def slug(heading: str) -> str:
    """The anchor that the built page gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-")


def prose(notebook: NotebookNode) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def anchors(notebook: NotebookNode) -> set[str]:
    return set(map(slug, re.findall(r"^#{2,3} +(.+?) *$", prose(notebook), re.MULTILINE)))


def exhibits(notebook: NotebookNode) -> list[tuple[str, str, NotebookNode | None]]:
    """Of each exhibit the message, the text below it, and the cell that provokes it."""
    found = []
    for cell, following in zip(notebook.cells, [*notebook.cells[1:], None], strict=True):
        if cell.cell_type == "markdown":
            for words in EXHIBIT.findall(cell.source):
                code = following if following and following.cell_type == "code" else None
                found.append((words, cell.source.split(f"### `{words}`")[1], code))
    return found


def said(words: str, text: str) -> bool:
    """Whether ``text`` has ``words``: … is anything, ends of lines and backticks do not count."""
    line = " ".join(text.replace("`", "").split())
    return bool(re.search(".*?".join(map(re.escape, words.split("…"))), line))


def problems(notebook: NotebookNode) -> list[str]:
    """What is wrong with the page."""
    found, shown = [], exhibits(notebook)
    if len(shown) < LEAST:
        found.append(f"{len(shown)} exhibits (### `message`), of {LEAST} at least")
    for words, text, code in shown:
        if code is None or not any(f"{helper}(" in code.source for helper in HELPERS):
            found.append(f"{words}: no code cell provokes it with one of {', '.join(HELPERS)}")
            continue
        output = " ".join(texts(code))
        if words not in code.source:
            found.append(f"{words}: the cell does not ask for these words, so it may show others")
        if not said(words, output):
            found.append(f"{words}: not in the output, where a reader looks for it")
        repair = REPAIR.match(text)
        if not repair or "repair" not in output:
            found.append(f"{words}: no repair is shown, as a block below the heading to copy")
        elif repair[1] == "python":
            ast.parse(repair[2], f"the repair of {words}")
        if "hide-cell" not in tags(code):
            found.append(f"{words}: the failure is not folded")
        links = CHAPTER.findall(text)
        if not links:
            found.append(f"{words}: leads to no chapter")
        for name, anchor in links:
            if not (BOOK / name).exists() or (anchor and anchor not in anchors(read(BOOK / name))):
                found.append(f"{words}: {name}#{anchor} does not exist")
    index = next(c.source for c in notebook.cells if "## Find your message" in c.source)
    listed = re.findall(r"^\| \[`(.+?)`\]\(#(.+?)\)", index, re.MULTILINE)
    if listed != [(words, slug(words)) for words, *_ in shown]:
        left = {words for words, *_ in shown} ^ {words for words, _ in listed}
        found.append(f"the table at the top is not the list of the exhibits: {left or 'order'}")
    return found


def test_the_page() -> None:
    assert problems(read(PAGE)) == []


def test_at_most_a_few_exhibits_depend_on_the_machine() -> None:
    ignored = [w for w, _, code in exhibits(read(PAGE)) if "nbval-ignore-output" in tags(code)]
    assert len(ignored) <= 2, ignored


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        (r"See \[chapter[^)]*\)", "See there", "leads to no chapter"),
        ("#install-pytorch-with", "#install-tensorflow-with", "does not exist"),
        ("### `invalid device", "### `valid device", "the table at the top is not"),
        ("### ", "#### ", "of 30 at least"),
    ],
)
def test_what_is_missing_is_noticed(old, new, complaint) -> None:
    page = copy.deepcopy(read(PAGE))
    for cell in page.cells:
        cell.source = re.sub(old, new, cell.source)
    assert complaint in "\n".join(problems(page))


def test_a_message_or_a_repair_that_the_output_lacks_is_noticed() -> None:
    page = copy.deepcopy(read(PAGE))
    words, _, code = exhibits(page)[3]
    for printed, lacks in ((words, "no repair is shown"), ("repair: none", "not in the output")):
        code.outputs = [v4.new_output("stream", text=printed)]
        assert f"{words}: {lacks}" in "\n".join(problems(page))


def test_a_message_finds_its_exhibit_first(open_page) -> None:
    """The words in the heading, and the message as the exhibit shows it."""
    visit = open_page("search", query="?q=memory")
    visit.page.locator(".book-search-hit").first.wait_for(timeout=60_000)
    visit.page.evaluate("async () => { window.engine = await bookSearch.load(); }")
    page = read(PAGE)
    own, missed = {slug(words): words for words, *_ in exhibits(page)}, []
    for words, _, code in exhibits(page):
        message = re.split(r"\n\(|\nrepair", "\n".join(texts(code)))[0]
        for query in (words, " ".join(message.replace("…", " ").split())):
            first = visit.page.evaluate("query => engine.search(query).results[0]", query)
            anchor = first["sections"][0]["anchor"]
            found = said(own.get(anchor, words), query) or slug(words) == anchor
            if PAGE.stem not in first["url"] or not found:
                missed.append(f"{query}: {first['url']}#{anchor}")
    assert missed == [], "is the page in _toc.yml?"
