"""How notebooks are stored: small pictures, collapsed cells collapsed in JupyterLab, too; and how
long a chapter takes to read, computed from what stands in it.

words/200 + visible lines of code/20 + printed lines/60 + figures/4, in minutes: near what patient
readers took. Notes, drop-downs and collapsed experiments count; what is hidden does not.
"""

import base64
import io
import re

import nbformat
import numpy as np
from PIL import Image

HIDDEN = ("hide-cell", "hide-input", "remove-cell", "remove-input")  # tags that collapse the code
CLOSED = ("hide-cell", "hide-output", "remove-cell")  # tags that collapse the output
SEEN = 16  # of 255: no color of a figure may change by more
PLAIN = 8  # colors that do not change at all: those of the background, the bars, the letters
# Code, HTML tags, the addresses of links, and formulas on their own line are no prose.
_NOT_PROSE = re.compile(r"```(?!\{).*?```|<[^>]+>|\]\([^)]*\)|\$\$.*?\$\$", re.DOTALL)
_WORD = re.compile(r"[A-Za-z][\w'’-]*|\d[\d.,]*")
_LINE = re.compile(r"^(\*reads in )(\d+)(?= min\b)", re.MULTILINE)


def shrink(png: bytes) -> bytes:
    """Return the picture with as few colors as it needs; the original if that saves nothing.

    128 colors, else 256, chosen so that no channel of any pixel changes by more than :data:`SEEN`.
    There is no dithering, so that plain areas stay plain and letters crisp.
    """
    picture = Image.open(io.BytesIO(png))
    if picture.mode == "P":  # small already
        return png
    picture = picture.convert("RGB")  # figures are opaque
    exact = np.asarray(picture).astype(int)
    for colors in (128, 256):
        small = picture.quantize(
            colors - PLAIN, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        small = _with_plain_areas(small, exact)
        if np.abs(np.asarray(small.convert("RGB")) - exact).max() <= SEEN:
            file = io.BytesIO()
            small.save(file, "PNG", optimize=True)
            return min(file.getvalue(), png, key=len)
    return png


def _with_plain_areas(small: Image.Image, exact: np.ndarray) -> Image.Image:
    """``small`` with the commonest colors of ``exact`` as they were, at the palette's end.

    Pillow's palette holds means, which would tint the background of a figure.
    """
    packed = exact @ [1 << 16, 1 << 8, 1]
    colors, counts = np.unique(packed, return_counts=True)
    places, palette = np.array(small), small.getpalette()
    for color in colors[np.argsort(counts)[-PLAIN:]].tolist():
        places[packed == color] = len(palette) // 3
        palette += [color >> 16, color >> 8 & 255, color & 255]
    small = Image.fromarray(places, "P")
    small.putpalette(palette)
    return small


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Shrink the figures of ``notebook`` and close, in JupyterLab, what its tags close in the page.

    JupyterLab does not read the tags of the built pages, ``hide-input`` and the like, but the
    metadata ``jupyter.source_hidden`` and ``jupyter.outputs_hidden``.
    """
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # timing
        tags = cell.metadata.get("tags", [])
        wanted = {
            "source_hidden": any(tag in HIDDEN for tag in tags),
            "outputs_hidden": any(tag in CLOSED for tag in tags),
        }
        jupyter = {k: v for k, v in cell.metadata.pop("jupyter", {}).items() if k not in wanted}
        jupyter |= {key: True for key, value in wanted.items() if value}
        if jupyter:
            cell.metadata.jupyter = jupyter
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                png = shrink(base64.b64decode(data["image/png"]))
                data["image/png"] = base64.b64encode(png).decode() + "\n"


# --- reading time ---------------------------------------------------------------------------------


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
