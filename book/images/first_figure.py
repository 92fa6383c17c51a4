"""Draw first_figure.png, the book's first figure, from chapter 0's record.

python book/images/first_figure.py [TARGET]
"""

import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from utils.plotting import BLUE, GREY, ORANGE, bars, figure
from utils.record import RECORDS, load_record, where

BARS = {
    "CPU, as written": "CPU, plain DataLoader",
    "GPU, as written": "GPU, plain DataLoader",
    "8 workers, pinned": "8 workers, pinned memory",
    "data on the GPU": "data kept on the GPU",
    "… CUDA graph": "step in a CUDA graph",
    "… graph, 1,000": "… bf16, batches of 1,000",
}


def draw(target: Path) -> None:
    """Write the figure to ``target``; the file names the record it was drawn from."""
    ladder = load_record(RECORDS / "quickstart_ladder.json")
    seconds = [statistics.median(ladder["result"][rung]["seconds"]) for rung in BARS]
    fig, ax = figure("One epoch of MNIST, one network", "time [s]", height=4.3)
    fig.set_size_inches(4.8, 4.3)  # the front shows two side by side
    bars(ax, [""] * len(BARS), seconds, fmt="", color=[GREY, ORANGE, *[BLUE] * 4])
    for bar, name, s in zip(ax.patches, BARS.values(), seconds, strict=True):
        bar.set_height(0.36)
        bar.set_y(bar.get_y() + 0.4)
        times = f", {seconds[1] / s:.2g}x" if s < seconds[1] else ""
        ax.text(0.1, bar.get_y() - 0.06, f"{name}: {s:.2g} s{times}", va="bottom")
    ax.set(xlim=(0, 20), xticks=range(0, 21, 5))
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    fig.supxlabel(
        f"measured on {where(ladder['provenance'])}",
        fontsize=10,
        color="#555555",
        x=0.99,
        ha="right",
    )
    fig.savefig(target, metadata={"Source": ladder["checksum"]})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".png"))
