"""Draw book/_static/card.png, the picture that is shown beside a link to the book.

python book/images/card.py [TARGET]
"""

import io
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from predictions import pairs, source

from utils.plotting import BLUE, VERMILION


def draw(target: Path) -> None:
    """Write the picture, 1,200 by 630 points as those who show it want it, to ``target``."""
    found = pairs()
    fig = plt.figure(figsize=(12, 6.3), dpi=100, layout="none")
    fig.text(0.06, 0.62, "PyTorch on CUDA,\nMeasured", fontsize=44, weight="bold")
    total = sum(map(len, found.values()))
    words = f"{total} predictions of speed and memory,\n{len(found['hit'])} of them within 1.25x"
    fig.text(0.06, 0.38, words, fontsize=23, color="#444444")
    fig.text(0.06, 0.14, "Runs without a GPU, on one, and on several", fontsize=20, color=BLUE)
    ax = fig.add_axes((0.62, 0.13, 0.34, 0.74))
    for kind, color, marker in (("hit", BLUE, "o"), ("miss", VERMILION, "x")):
        x, y = zip(*found[kind], strict=True)
        ax.scatter(x, y, s=26, color=color, marker=marker, alpha=0.7)
    ax.plot((1e-3, 1e5), (1e-3, 1e5), color=BLUE, linewidth=1)
    ax.set(xscale="log", yscale="log", xlim=(1e-3, 1e5), ylim=(1e-3, 1e5), xticks=[], yticks=[])
    ax.minorticks_off()
    ax.set_xlabel("predicted", fontsize=20)
    ax.set_ylabel("measured", fontsize=20)
    drawn = io.BytesIO()
    fig.savefig(drawn)
    plt.close(fig)
    noted = PngInfo()
    noted.add_text("Source", source())
    small = Image.open(drawn).convert("RGB").quantize(64)
    small.save(target, optimize=True, pnginfo=noted)


if __name__ == "__main__":
    static = Path(__file__).parent.parent / "_static" / "card.png"
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else static)
