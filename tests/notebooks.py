"""What the tests read from the notebooks without running them."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
NOTEBOOKS = sorted(BOOK.glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.name[0].isdigit()]


@functools.cache
def read(path: Path) -> nbformat.NotebookNode:
    """The notebook at ``path``, read once for all tests: do not change it."""
    return nbformat.read(path, as_version=4)


def is_quickstart(notebook: nbformat.NotebookNode) -> bool:
    """Chapter 0 is one script and what it is worth, for readers with ten minutes.

    So it is shorter than a chapter and has no pitfalls and no exercises, which are in the chapters
    that it links; and its code to keep, a whole training script, is longer.
    """
    return notebook.cells[0].source.startswith("# 0 · ")


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """All text that the outputs of ``cell`` show."""
    found = []
    for output in cell.outputs:
        data = output.get("data", {"text/": output.get("text")})
        found += [v for k, v in data.items() if k.startswith("text/") and isinstance(v, str)]
    return found


def text_lines(notebook: nbformat.NotebookNode) -> list[str]:
    """All lines that the outputs of the notebook show."""
    return [line for c in code_cells(notebook) for text in texts(c) for line in text.splitlines()]


def pictures(cell: nbformat.NotebookNode) -> int:
    """How many figures a cell shows."""
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


def cards(cell: nbformat.NotebookNode) -> list[list[str]]:
    """The rows of each card of predictions (see ``utils.cards``) that ``cell`` shows."""
    found = [text.splitlines() for text in texts(cell) if text.startswith("Prediction")]
    return [[line for line in card if re.search("[✓✗]", line)] for card in found]


# --- what a notebook is made of ----------------------------------------------------------------


def headings(cell: nbformat.NotebookNode) -> list[str]:
    """The headings ``## …`` of a cell."""
    if cell.cell_type != "markdown":
        return []
    prose = re.sub(r"^(`{3,}).*?^\1", "", cell.source, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^## +(.+?) *$", prose, re.MULTILINE)


def under(notebook: nbformat.NotebookNode, heading: str) -> list[nbformat.NotebookNode]:
    """The cells from the one that holds ``## heading`` up to the next that holds another."""
    found, inside = [], False
    for cell in notebook.cells:
        inside = heading in headings(cell) if headings(cell) else inside
        found += [cell] * inside
    return found


def box(notebook: nbformat.NotebookNode) -> tuple[int, str] | None:
    """The rules under **In short**, and the index of their cell."""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown" and "**In short**" in cell.source:
            return index, cell.source.split("**In short**")[1].split("**The code to keep**")[0]
    return None


def keep_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cells of the code to keep."""
    return [cell for cell in code_cells(notebook) if "keep" in tags(cell)]


def code_lines(source: str) -> int:
    """How many lines of code: without blank lines, comments and docstrings."""
    written = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        holds = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if holds and ast.get_docstring(node):
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            written[first:last] = [""] * (last - first)
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in written)


def exercises(notebook: nbformat.NotebookNode) -> list[tuple[str, list]]:
    """The text of each exercise, with the collapsed code cells that solve it."""
    found: list[tuple[str, list]] = []
    for cell in under(notebook, "Exercises"):
        if cell.cell_type == "markdown":
            begin = r"^:{3,}\{admonition\} Exercise.*?^:{3,} *$"
            for text in re.findall(begin, cell.source, re.MULTILINE | re.DOTALL):
                found.append((text, []))
        elif "hide-cell" in tags(cell) and found:
            found[-1][1].append(cell)
    return found


# --- a book to change --------------------------------------------------------------------------


def linked(folder: Path) -> Path:
    """Make a book of links to the pages of this one in ``folder``."""
    (folder / "book").mkdir()
    for path in [*NOTEBOOKS, *BOOK.glob("*.md"), BOOK / "records"]:
        (folder / "book" / path.name).symlink_to(path)
    for name in ("_toc.yml", "README.md", "tools"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def replace(path: Path, *pairs: tuple[str, str]) -> None:
    """Replace texts of a file; a link becomes a file of its own."""
    text = path.read_text(encoding="utf-8")
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.unlink()
    path.write_text(text, encoding="utf-8")


# --- code --------------------------------------------------------------------------------------


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a cell, parsed once for all tests: do not change it."""
    return ast.parse(source)


def experiments(notebook: nbformat.NotebookNode) -> dict[str, list[str]]:
    """Name of each ``@experiment`` of a notebook, with the sources of the cells up to it."""
    found, sources = {}, []
    for cell in code_cells(notebook):
        sources.append(cell.source)
        for node in parsed(cell.source).body:
            marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", [])]
            if any(mark.startswith("experiment(") for mark in marks):
                found[node.name] = list(sources)
    return found


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Each call below ``tree``, with the last part of the name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node
