"""Draw first_figure.png, the book's first figure, from chapter 0's record.

python book/images/first_figure.py [TARGET]
"""

import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from utils.experiment import RECORDS, load_record, where
from utils.plotting import BLUE, GREY, ORANGE, bars, figure

BARS = {
    "CPU, as written": "CPU, as tutorials write it",
    "GPU, as written": "GPU, as tutorials write it",
    "8 workers, pinned": "8 workers, pinned memory",
    "data on the GPU": "data kept on the GPU",
    "… CUDA graph": "step in a CUDA graph",
    "… graph, 1,000": "… bf16, batches of 1,000",
}


def draw(target: Path) -> None:
    """Write the figure to ``target``; the file names the record it was drawn from."""
    ladder = load_record(RECORDS / "quickstart_ladder.json")
    seconds = [statistics.median(ladder["result"][rung]["seconds"]) for rung in BARS]
    fig, ax = figure("One epoch of MNIST, one network", "time [s]", height=3.4)
    labels = [f"{s:.2g} s, {seconds[0] / s:.0f}x" for s in seconds]
    labels[0] = labels[0].removesuffix(", 1x")
    bars(ax, list(BARS.values()), seconds, fmt="", color=[GREY, ORANGE, *[BLUE] * 4])
    for row, label in enumerate(labels):
        ax.text(seconds[row] + 0.3, row, label, va="center", fontsize=11)
    ax.margins(x=0.25)
    note = f"measured on {where(ladder['provenance'])}"
    fig.supxlabel(note, fontsize=9.5, color="#666666", x=0.99, ha="right")
    fig.savefig(target, metadata={"Source": ladder["checksum"]})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".png"))
