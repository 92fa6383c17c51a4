"""Figures for a dark page: the light parts turned dark and the letters light, every hue kept.

Inverting a picture would swap its colors: blue for light blue, orange for brown, and the prose
speaks of them. Here each color is read as ink on paper, some black and some of one of the
palette's colors, and the same ink is put on a dark paper.
"""

import io
import re
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from utils.record.notebooks import shrink

PAPER = ("#FCFCFA", "#14181B")  # the background of figures and pages: light, dark
BLACK = ("#000000", "#F2F2F0")
# utils.plotting's colors, and the same hues for dark paper: lighter, so that they can be read
# there, each by as much as keeps the six apart for the color-blind.
INKS = (
    ("#0072B2", "#2788C0"),
    ("#E69F00", "#E7A40D"),
    ("#009E73", "#30B08E"),
    ("#D55E00", "#DA711F"),
    ("#56B4E9", "#A2D6F3"),
    ("#CC79A7", "#DBA1C1"),
)
DOUBT = 40  # by how much closer black and an ink together must come than one of them alone


def _rgb(color: str) -> np.ndarray:
    return np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)], dtype=float)


def darkened(colors: np.ndarray, black: str = BLACK[1]) -> np.ndarray:
    """Return the colors that stand for ``colors`` on a dark page.

    Parameters
    ----------
    colors : array of shape (n, 3)
        Red, green and blue, 0 to 255.
    black : str
        What stands for black.

    Returns
    -------
    array of shape (n, 3), uint8
    """
    paper, dark_paper = map(_rgb, PAPER)
    dark_black = _rgb(black) - dark_paper
    black = _rgb(BLACK[0]) - paper
    wanted = np.asarray(colors, dtype=float) - paper
    best = np.full(len(wanted), np.inf)
    result = np.zeros_like(wanted)
    for light, dark in INKS:
        ink, dark_ink = _rgb(light) - paper, _rgb(dark) - dark_paper
        # How much of black and of this ink comes closest, neither below none.
        amounts = wanted @ np.linalg.pinv(np.stack([black, ink]))
        alone = [wanted @ one / (one @ one) for one in (black, ink)]
        amounts = np.where(amounts[:, :1] < 0, np.stack([0 * alone[1], alone[1]], 1), amounts)
        amounts = np.where(amounts[:, 1:] < 0, np.stack([alone[0], 0 * alone[0]], 1), amounts)
        amounts = amounts.clip(0, None)
        off = np.abs(amounts @ np.stack([black, ink]) - wanted).sum(axis=1)
        # A tint of blue is not sky blue with some black in it.
        off += DOUBT * np.sqrt(amounts.min(axis=1))
        closer = off < best - 1e-6
        best[closer] = off[closer]
        result[closer] = amounts[closer] @ np.stack([dark_black, dark_ink])
    return (dark_paper + result).round().clip(0, 255).astype(np.uint8)


def dark_png(png: bytes) -> bytes:
    """Return the picture for a dark page: its palette changed, and letters on a bar kept dark."""
    picture = Image.open(io.BytesIO(png))
    if picture.mode != "P":
        picture = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    palette = np.array(picture.getpalette("RGB")).reshape(-1, 3)
    places = np.array(picture)
    on_ink = _letters_on_ink(places, palette)
    used = np.unique(places[on_ink])
    dark, kept = darkened(palette), darkened(palette, black=PAPER[1])
    if len(palette) + len(used) > 256:
        pixels = np.where(on_ink[..., None], kept[places], dark[places])
        return shrink(_saved(Image.fromarray(pixels)))
    # The letters on ink get colors of their own, behind the others.
    moved = np.arange(256, dtype=np.uint8)
    moved[used] = len(palette) + np.arange(len(used))
    places[on_ink] = moved[places[on_ink]]
    changed = Image.fromarray(places, "P")
    changed.putpalette(np.concatenate([dark, kept[used]]).tobytes())
    return _saved(changed)


def _saved(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _letters_on_ink(places: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """Where there is black, or its edge, with much more ink than paper around it."""
    spread = palette.max(axis=1).astype(int) - palette.min(axis=1)
    kinds = {
        "ink": (spread > 90) & (darkened(palette).max(axis=1) > 150),  # no tint that gets dark
        "paper": np.abs(palette - _rgb(PAPER[0])).max(axis=1) < 30,
        "black": palette.max(axis=1) < 100,
    }
    around = {}
    for name, kind in kinds.items():
        blurred = Image.fromarray((np.uint8(255) * kind)[places]).filter(ImageFilter.BoxBlur(12))
        around[name] = np.asarray(blurred).astype(np.int16)
    on_ink = (around["ink"] > 3 * around["paper"]) & (around["black"] > 0)
    return on_ink & (around["ink"] > 60)


def dark_svg(svg: str) -> str:
    """Return the drawing for a dark page: all its colors are six hexadecimal digits."""
    if not re.match(r"[^>]*\bfill=", svg):  # what has no color is black
        svg = svg.replace("<svg", f'<svg fill="{BLACK[0]}"', 1)
    dark = lambda color: "#" + darkened(_rgb(color[0])[None])[0].tobytes().hex()  # noqa: E731
    return re.sub("#[0-9A-Fa-f]{6}", dark, svg)


def svg_size(svg: str) -> tuple[int, int]:
    """Return the width and height at which a browser shows the drawing.

    Raises
    ------
    ValueError
        If it has no ``viewBox``: without one it does not shrink on a phone either.
    """
    box = re.search(r'viewBox="\S+ \S+ ([\d.]+) ([\d.]+)"', svg)
    if not box:
        raise ValueError("the drawing has no viewBox")
    width, height = map(float, box.groups())
    shown = re.match(r'[^>]*<svg[^>]*\bwidth="([\d.]+)"', svg)
    scale = float(shown[1]) / width if shown else 1
    return round(width * scale), round(height * scale)


def darken_file(source: Path, target: Path) -> tuple[int, int] | None:
    """Write the dark variant of a PNG or SVG file; return its size, None for any other kind."""
    if source.suffix == ".png":
        png = source.read_bytes()
        target.write_bytes(dark_png(png))
        return Image.open(io.BytesIO(png)).size
    if source.suffix == ".svg":
        svg = source.read_text(encoding="utf-8")
        target.write_text(dark_svg(svg), encoding="utf-8")
        return svg_size(svg)
    return None
