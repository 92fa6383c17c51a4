"""The book for readers who ask an assistant: what its files hold, here and on the built site."""

import posixpath
import re
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pytest
from nbformat import NotebookNode, v4

import as_markdown
import book_markdown
import notebooks
from notebooks import CHAPTERS, NOTEBOOKS, code_cells, read, tags, texts
from test_site import PAGES, TOC

LISTS = [book_markdown.LIST, book_markdown.CONDENSED]
SAME = lambda target: target  # noqa: E731
CARD = """<table class="prediction-card"><tr role="row"><th>Prediction</th><th>Measured</th></tr>
<tr><th>64 MiB<br><span>because a|b &lt; 1</span></th><td><b style="x">✓ 1.10 hit</b></td></tr>
</table>\n<p>\nmeasured on A, 2026\n<br>\nmeasured on B, 2026\n</p>"""


def cell(source: str, *tags: str, outputs=(), **metadata) -> NotebookNode:
    if not tags:
        return v4.new_markdown_cell(source)
    metadata = {"tags": list(tags), "mystnb": metadata}
    return v4.new_code_cell(source, metadata=metadata, outputs=list(outputs))


def printed(text: str) -> list[NotebookNode]:
    return [v4.new_output("stream", text=text)]


def output(kind: str, text: str) -> NotebookNode:
    return v4.new_output("display_data", {kind: text})


# --- a page --------------------------------------------------------------------------------------


def test_order_and_what_is_left_out() -> None:
    """What a page folds away and what it shows, tests of the site's files look at."""
    figure = output("image/png", "iVBOR")
    page = [
        cell("# Title\n\nPromise."),
        cell("import a", "hide-input", outputs=[figure, figure], image={"alt": "A *rising* line."}),
        cell("(Dashed: a limit.)\n\n**In short**\n\n- One."),
        cell("keep()", "keep", outputs=printed("kept")),
        cell("## Why?\n\nBecause."),
        cell("secret = 1", "hide-input", outputs=printed("measured on A\nmore")),
        cell("also()", "keep", outputs=[output("text/plain", "3")]),
        cell("noisy()", "hide-output", outputs=printed("noise")),
        cell("draft()", "hide-input", outputs=[figure]),
        cell("## Exercises"),
        cell(":::{admonition} Exercise 1: Try\n:class: exercise\n\nDo it.\n:::"),
        cell("solve()", "hide-cell", outputs=printed("42"), code_prompt_show="Show the check"),
    ]
    shown = as_markdown.page(page, SAME)
    names, box = ("keep", "also", "noisy", "solve"), "**In short**\n\n- One."
    keep, also, noisy, solve = (f"```python\n{name}()\n```" for name in names)
    assert shown.start == ["# Title\n\nPromise.", box, keep, "```\nkept\n```"]
    assert shown.opening == ["> Figure: A *rising* line.", "(Dashed: a limit.)"]
    assert shown.keep == ["### Why?", also, "```\n3\n```"]
    why = ["## Why?\n\nBecause.", "*measured on A*", "```\nmore\n```", also, "```\n3\n```", noisy]
    exercise = ["**Exercise 1: Try**\n\nDo it.", "*The check:*", solve, "```\n42\n```"]
    assert shown.sections == [*why, "> Figure: not described yet", "## Exercises", *exercise]


@pytest.mark.parametrize(
    "myst, plain",
    [
        ("Up.\n\n::::{grid} 1 2\n:gutter: 3\n\n:::{grid-item}\nIn.\n:::\n::::", "Up.\n\nIn."),
        ("![A [small] line.](images/a.svg)", "> Figure: A [small] line."),
        ("See {mod}`utils.a` and `{b}`.", "See `utils.a` and `{b}`."),
        ("<!-- chapters -->\nText.", "Text."),
        ("[a](x.ipynb#y) and `[b](x.ipynb, c)`", "[a](X.IPYNB#Y) and `[b](x.ipynb, c)`"),
        (
            "```{glossary}\nGPU\n  A card.\n\nSM\n  Part.\n```",
            "- **GPU**: A card.\n\n- **SM**: Part.",
        ),
        ("```text\n:::{note}\n[a](b)\n```\n\n[a](b)", "```text\n:::{note}\n[a](b)\n```\n\n[a](B)"),
        ("$$t = {a}$$", "$$t = {a}$$"),
    ],
)
def test_myst_becomes_plain(myst, plain) -> None:
    assert as_markdown.prose(myst, str.upper) == plain


def test_the_head_of_a_page_is_left_out(tmp_path) -> None:
    (tmp_path / "page.md").write_text("---\nlang: zh-CN\n---\n\n# 页\n\n---\n\n---\n", "utf-8")
    (shown,) = as_markdown.cells(tmp_path / "page.md")
    assert shown.source == "# 页\n\n---\n\n---\n"


def test_a_card_is_a_table_with_its_origins() -> None:
    row = r"| 64 MiB, because a\|b < 1 | ✓ 1.10 hit |"
    origins = "*measured on A, 2026*\n\n*measured on B, 2026*"
    head = "| Prediction | Measured |\n| :-- | --: |"
    assert as_markdown.table(CARD) == f"{head}\n{row}\n\n{origins}"


def test_a_table_with_code_is_a_section_for_each_row() -> None:
    """And the lines of its code stay lines."""
    cells = [
        "a<pre>x = 1  # one\ny &lt; x</pre>",
        "<b>fails</b>: no",
        '<pre>pip z</pre>1 (<a href="b.html">1</a>)',
    ]
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for _ in range(2))
    table = f"<p>Two.</p><table><tbody>{rows}</tbody></table>"
    summary, *sections = as_markdown.rows_with_code(table, str.upper)
    code = ["```python\nx = 1  # one\ny < x\n```", "```bash\npip z\n```"]
    row = ["**a**", code[0], "fails: no", "Today:", code[1], "1 ([1](B.IPYNB))"]
    assert (summary, sections) == ("Two.", ["\n\n".join(row)] * 2)


def test_no_backtick_ends_a_block() -> None:
    assert as_markdown.fenced("x\n", "python") == "```python\nx\n```"
    assert as_markdown.fenced("a\n```\nb") == "````\na\n```\nb\n````"


# --- all files -----------------------------------------------------------------------------------


@pytest.fixture
def book(tmp_path) -> Path:
    """A book to change, without the page of the helpers, which takes seconds to import them."""
    notebooks.replace(notebooks.linked(tmp_path) / "_toc.yml", ("      - file: book/api\n", ""))
    return tmp_path


def test_a_changed_number_changes_every_file_that_has_it(book) -> None:
    made = book_markdown.files(book, {}, "")
    rule = "**Send megabytes from reused pinned memory**: 35 to 55"
    assert rule in made["book/15_transfers.md"]
    notebooks.replace(book / "book" / "15_transfers.ipynb", (rule, rule.replace("55", "56")))
    after = book_markdown.files(book, {}, "")
    assert after.keys() == made.keys()
    changed = {name for name in made if made[name] != after[name]}
    assert changed == {"book/15_transfers.md", *LISTS}
    assert all(rule not in text for text in after.values() if "# 1.5 · " in text)


def test_addresses_are_absolute_where_the_site_has_one(book) -> None:
    there = book_markdown.files(book, {}, "https://a.b/c/")
    for name in LISTS:
        assert "](https://a.b/c/book/15_transfers.md)" in there[name]
        assert not re.search(r"\]\((?!https?://)", without_code(there[name]))
    assert "](32_amp.md)" in there["book/31_formats.md"]
    assert there["book/31_formats.md"].endswith("(https://a.b/c/book/31_formats.html).*\n")


def test_downloads_are_where_the_site_has_them() -> None:
    places = {"book/traces/a.json.gz": "_downloads/1f/a.json.gz", "book/b.ipynb": "book/b.md"}
    lead = partial(book_markdown.led, "book/a.md", places, lambda p: posixpath.relpath(p, "book"))
    targets = ["traces/a.json.gz", "b.ipynb#c", "b.html", "https://b.ipynb", "#d"]
    led = ["../_downloads/1f/a.json.gz", "b.md#c", "b.html", "https://b.ipynb", "#d"]
    assert [lead(target) for target in targets] == led


# --- the site ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(site) -> dict[str, str]:
    """What the build wrote."""
    paths = [*site.glob("book/*.md"), *(site / name for name in LISTS)]
    return {p.relative_to(site).as_posix(): p.read_text(encoding="utf-8") for p in paths}


def without_blocks(text: str) -> str:
    return re.sub(r"^(```+).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)


def without_code(text: str) -> str:
    """Prose and tables without code, in blocks or in lines."""
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", without_blocks(text))


def test_the_list_is_as_llmstxt_org_describes_it(files) -> None:
    """A title, a quote, prose, and sections of nothing but links with a line about each."""
    title, quote, about, *rest = files[book_markdown.LIST].strip().split("\n\n")
    assert re.fullmatch(r"# .+", title) and re.fullmatch(r"> .+", quote)
    assert about[0].isalpha() and "\n" not in about and f"]({PAGES[0]}.md)" in about
    captions = [part["caption"].replace("Appendix", "Optional") for part in TOC["parts"]]
    assert rest[::2] == [f"## {caption}" for caption in captions]
    links = "\n".join(rest[1::2]).splitlines()
    listed = [re.fullmatch(r"- \[.+?\]\((book/\w+)\.md\): \S.{20,}", link) for link in links]
    assert [found and found[1] for found in listed] == PAGES[1:]


def test_every_page_has_its_markdown(files, site) -> None:
    assert files.keys() == {f"{name}.md" for name in PAGES} | set(LISTS)
    for name in PAGES:
        link = f'<link rel="alternate" type="text/markdown" href="{Path(name).name}.md">'
        assert (site / f"{name}.html").read_text(encoding="utf-8").count(link) == 1
    assert "text/markdown" not in (site / "search.html").read_text(encoding="utf-8")


def test_the_box_stands_first_and_word_for_word(files) -> None:
    lost = []
    for path in CHAPTERS:
        notebook, text = read(path), files[f"book/{path.stem}.md"]
        title, (_, rules) = notebook.cells[0].source.strip(), notebooks.box(notebook)
        beside = re.sub(r"(?<=\]\()(\w+)\.ipynb", r"\1.md", rules).rstrip()
        lead = lambda m, own=path.stem: f"book/{(m[1] or f'{own}.').replace('.ipynb', '.')}md"  # noqa: E731
        below = re.sub(r"(?<=\]\()(\w+\.ipynb|(?=#))", lead, rules).strip()
        keep = [cell.source.strip() for cell in notebooks.keep_cells(notebook)]
        condensed = files[book_markdown.CONDENSED]
        whole = text.startswith(f"{title}\n\n**In short**{beside}\n\n") and below in condensed
        kept = keep[0] in text.split("\n## ")[0] and all(c in text and c in condensed for c in keep)
        lost += [] if whole and kept else [path.stem]
    assert lost == []


def test_no_link_is_broken(files, site) -> None:
    def anchor_of(heading: str) -> str:
        return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")

    anchors = {
        name: {anchor_of(h) for h in re.findall(r"^#+ (.+)$", without_blocks(text), re.MULTILINE)}
        for name, text in files.items()
    }
    local = re.compile(r"\]\(((?!https?:)[^()\s]+)\)")
    links = [(name, to) for name in files for to in local.findall(without_code(files[name]))]
    broken = []
    for name, target in links:
        path, _, anchor = unquote(target).partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(name), path) if path else name)
        there = (site / file).is_file() and (not anchor or anchor in anchors[file])
        broken += [] if there else [f"{name}: {target}"]
    assert broken == [] and len(links) > 500


def test_nothing_hidden_leaks_and_nothing_visible_is_lost(files) -> None:
    def lines(found: list[str]) -> set[str]:
        return {line for text in found for line in text.splitlines() if len(line) > 8}

    leaked, lost = set(), set()
    for path in NOTEBOOKS:
        notebook, text = read(path), files[f"book/{path.stem}.md"]
        solutions = [cell.id for cell in notebooks.under(notebook, "Exercises")]
        folded = lambda c, open_=solutions: "hide-cell" in tags(c) and c.id not in open_  # noqa: E731
        code = code_cells(notebook)
        hidden = [c for c in code if "hide-input" in tags(c) or folded(c)]
        open_ = [c.source for c in notebook.cells if c not in hidden]
        printed = [said for c in code if not folded(c) for said in texts(c)]
        seen = set(text.splitlines())
        leaked |= seen & (lines([c.source for c in hidden]) - lines(open_ + printed))
        lost |= lines([c.source for c in code if c not in hidden]) - seen
        assert "in_short(" not in text and "| In short says |" not in text
    assert (leaked, lost) == (set(), set())


def test_figures_are_described(files) -> None:
    for path in NOTEBOOKS:
        for cell in code_cells(read(path)):
            if notebooks.pictures(cell) and "hide-cell" not in tags(cell):
                described = f"\n\n> Figure: {cell.metadata.mystnb.image.alt}\n\n"
                assert files[f"book/{path.stem}.md"].count(described) == 1
    drawn = "> Figure: Two paths from host memory to GPU memory"
    assert drawn in files["book/15_transfers.md"]


def test_nothing_of_myst_is_left(files) -> None:
    syntax = re.compile(r"^:::.*|^```+\{.*|\{[\w:-]+\}$|!\[|<!--|</t[dr]>", re.MULTILINE)
    assert [found for text in files.values() for found in syntax.findall(without_code(text))] == []
