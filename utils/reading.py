"""How long a chapter takes to read, computed from what stands in it.

words/200 + visible lines of code/20 + printed lines/60 + figures/4, in minutes: near what patient
readers took. Notes, drop-downs and collapsed experiments count; what is hidden does not.
"""

import re

import nbformat

HIDDEN = ("hide-cell", "hide-input", "remove-cell", "remove-input")  # tags that collapse the code
# Code, HTML tags, the addresses of links, and formulas on their own line are no prose.
_NOT_PROSE = re.compile(r"```(?!\{).*?```|<[^>]+>|\]\([^)]*\)|\$\$.*?\$\$", re.DOTALL)
_WORD = re.compile(r"[A-Za-z][\w'’-]*|\d[\d.,]*")
_LINE = re.compile(r"^(\*reads in )(\d+)(?= min\b)", re.MULTILINE)


def lines(text: str) -> list[str]:
    """Return the lines of ``text`` that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def is_visible(cell: nbformat.NotebookNode) -> bool:
    """Return whether a reader sees the code of ``cell``; an experiment's is always open."""
    hidden = any(tag in HIDDEN for tag in cell.metadata.get("tags", []))
    return not hidden or "@experiment" in cell.source


def is_figure(output: nbformat.NotebookNode) -> bool:
    """Return whether an output of a cell is an image."""
    return not {"image/png", "image/svg+xml"}.isdisjoint(output.get("data", {}))


def printed(output: nbformat.NotebookNode) -> str:
    """Return the text that a reader sees of an output: of a figure none, of a table its rows."""
    data = output.get("data", {})
    plain = "" if is_figure(output) else data.get("text/plain", "")
    return output.get("text", "") + (data.get("text/markdown") or plain)


def minutes(notebook: nbformat.NotebookNode) -> float:
    """Return the minutes that a patient reader takes for ``notebook``, by the formula above."""
    words = code = text = figures = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = _NOT_PROSE.sub(" ", cell.source)
            words += len(_WORD.findall(prose))
            figures += "![" in prose or "<img" in prose
        elif cell.cell_type == "code":
            code += len(lines(cell.source)) if is_visible(cell) else 0
            text += sum(len(lines(printed(output))) for output in cell.outputs)
            figures += sum(map(is_figure, cell.outputs))
    return words / 200 + code / 20 + text / 60 + figures / 4


def stated_minutes(notebook: nbformat.NotebookNode) -> int | None:
    """Return the N of "reads in N min" in the first cell, None if there is no such line."""
    found = _LINE.search(notebook.cells[0].source) if notebook.cells else None
    return int(found[2]) if found else None


def set_reading_time(notebook: nbformat.NotebookNode) -> None:
    """Write the computed minutes into the line "reads in N min"; do nothing if there is none."""
    if stated_minutes(notebook) is not None:
        first = notebook.cells[0]
        first.source = _LINE.sub(rf"\g<1>{round(minutes(notebook))}", first.source, count=1)
