"""How notebooks are stored: small pictures, and collapsed cells collapsed in JupyterLab too."""

import base64
import io

import nbformat
import numpy as np
from PIL import Image

from utils.reading import HIDDEN

CLOSED = ("hide-cell", "remove-cell")  # tags of cells of which neither code nor output is open
SEEN = 16  # of 255: no color of a figure may change by more
PLAIN = 8  # colors that do not change at all: those of the background, the bars, the letters


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

    JupyterLab does not read the tags ``hide-input`` and ``hide-cell`` of the built pages, but the
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
