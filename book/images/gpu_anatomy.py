"""Draw gpu_anatomy.svg: what a kernel is made of, and what of an H100 or H200 SXM runs it.

python book/images/gpu_anatomy.py [TARGET]

Sizes and speeds: NVIDIA's Hopper whitepaper and tuning guide, the H100 and H200 datasheets.
"""

import sys
from pathlib import Path

WIDTH, HEIGHT = 400, 590
ORANGE, ORANGE_FILL = "#E69F00", "#F4DDB0"
BLUE, BLUE_FILL = "#0072B2", "#CFE6F5"
GREEN, GREEN_FILL = "#009E73", "#C9EBDF"
GREY, GREY_FILL, INK = "#AAAAAA", "#EEEEEE", "#222222"


def rect(x, y, width, height, fill="none", stroke=GREY, radius=3) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def text(x, y, words, *, anchor="middle", bold=False, size=13) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}"{weight}>'
        f"{words}</text>"
    )


def line(*points, color=GREY, arrow=False) -> str:
    path = " ".join(f"{x:g} {y:g}" for x, y in points)
    ends = ' marker-start="url(#a)" marker-end="url(#a)"' if arrow else ""
    return f'<path d="M{path}" stroke="{color}" stroke-width="1.5" fill="none"{ends}/>'


def software() -> list[str]:
    """A grid of blocks; one block, of warps; one warp, of threads."""
    parts = [text(8, 18, "What you launch: a kernel", anchor="start", bold=True)]
    for row in range(3):
        for column in range(4):
            chosen = (row, column) == (1, 3)
            fill, stroke = (ORANGE_FILL, ORANGE) if chosen else (GREY_FILL, GREY)
            parts.append(rect(10 + 26 * column, 32 + 26 * row, 22, 22, fill, stroke))
    parts += [line((110, 58), (146, 32), color=ORANGE), line((110, 80), (146, 110), color=ORANGE)]
    parts.append(rect(146, 32, 96, 78, "#FBF1DC", ORANGE))
    for row in range(5):
        chosen = row == 2
        fill, stroke = (BLUE_FILL, BLUE) if chosen else ("#FFFFFF", GREY)
        parts.append(rect(152, 38 + 14 * row, 84, 10, fill, stroke, radius=2))
    parts += [line((236, 66), (282, 32), color=BLUE), line((236, 76), (282, 110), color=BLUE)]
    parts.append(rect(282, 32, 110, 78, "#EAF4FB", BLUE))
    for row in range(4):
        for column in range(8):
            parts.append(
                rect(287 + 12.6 * column, 39 + 17 * row, 10, 13, BLUE_FILL, BLUE, radius=2)
            )
    captions = (
        (60, "a grid", "of blocks"),
        (194, "a block: 1 to", "32 warps"),
        (337, "a warp:", "32 threads"),
    )
    for x, first, second in captions:
        parts += [text(x, 128, first), text(x, 144, second)]
    return parts


def hardware() -> list[str]:
    """The multiprocessors, one of them enlarged, and below them the levels of memory."""
    parts = [
        text(8, 178, "What runs it: an H100 or H200 SXM", anchor="start", bold=True),
        rect(4, 188, 392, 312, "#F6F6F3", GREY, radius=6),
        text(77, 208, "132 SMs"),
    ]
    for row in range(12):
        for column in range(11):
            chosen = (row, column) == (5, 10)
            fill, stroke = (ORANGE_FILL, ORANGE) if chosen else (GREY_FILL, GREY)
            parts.append(rect(13 + 12 * column, 216 + 12 * row, 9, 9, fill, stroke, radius=1))
    parts += [
        line((142, 276), (158, 196), color=ORANGE),
        line((142, 285), (158, 404), color=ORANGE),
        rect(158, 196, 230, 208, "#FBF1DC", ORANGE),
        text(273, 213, "one SM: up to 64 warps wait here", size=12),
    ]
    for column in range(2):
        for row in range(2):
            x, y = 165 + 111 * column, 220 + 68 * row
            parts += [
                rect(x, y, 105, 63, "#FFFFFF", GREY),
                text(x + 52, y + 14, "1 warp per cycle", size=11),
                rect(x + 4, y + 19, 60, 18, BLUE_FILL, BLUE),
                text(x + 34, y + 32, "32 lanes", size=11),
                rect(x + 67, y + 19, 34, 18, ORANGE_FILL, ORANGE),
                text(x + 84, y + 32, "TC", size=11),
                rect(x + 4, y + 41, 97, 18, GREEN_FILL, GREEN),
                text(x + 52, y + 54, "64 KB registers", size=11),
            ]
    parts += [
        rect(165, 358, 216, 40, GREEN_FILL, GREEN),
        text(273, 375, "L1 cache and shared memory"),
        text(273, 391, "256 KB, up to 228 of it shared", size=12),
        text(77, 382, "each block", size=12),
        text(77, 397, "stays on one SM", size=12),
        line((200, 406), (200, 420), color=INK, arrow=True),
        rect(12, 422, 376, 26, GREEN_FILL, GREEN),
        text(200, 440, "L2 cache: 50 MB for all SMs"),
        line((200, 450), (200, 464), color=INK, arrow=True),
        rect(12, 466, 376, 26, GREEN_FILL, GREEN),
        text(200, 484, "HBM: 80 GB at 3.35, or 141 GB at 4.8 TB/s"),
        line((100, 502), (100, 550), color=INK, arrow=True),
        text(110, 531, "PCIe 5: 63 GB/s", anchor="start"),
        line((250, 502), (250, 550), color=INK, arrow=True),
        text(259, 531, "NVLink: 450 GB/s", anchor="start"),
        rect(12, 552, 176, 28, GREY_FILL, GREY),
        text(100, 571, "CPU and its memory"),
        rect(212, 552, 176, 28, GREY_FILL, GREY),
        text(300, 571, "other GPUs"),
    ]
    return parts


def draw(target: Path) -> None:
    """Write the drawing to ``target``."""
    target.write_text(
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
                'width="640" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" '
                f'fill="{INK}" role="img">',
                "<title>A kernel and the GPU that runs it</title>",
                f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#FCFCFA"/>',
                '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="5" '
                'markerHeight="5" orient="auto-start-reverse">'
                f'<path d="M0 0 10 5 0 10z" fill="{INK}"/></marker></defs>',
                *software(),
                *hardware(),
                "</svg>",
                "",
            ]
        ),
        encoding="utf-8",
    )


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".svg"))
