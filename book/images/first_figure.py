"""Draw first_figure.png, the book's first figure, from two of chapter 1.7's records.

python book/images/first_figure.py [TARGET]
"""

import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from utils.experiment import RECORDS, load_record, where
from utils.plotting import BLUE, GREY, ORANGE, bars, figure


def draw(target: Path) -> None:
    """Write the figure to ``target``; the file names the records it was drawn from."""
    written, resident = (
        load_record(RECORDS / f"{name}.json") for name in ("epoch_as_written", "epoch_resident")
    )
    seconds = {
        "CPU, as the tutorial has it": statistics.median(written["result"]["cpu"]),
        "GPU, as the tutorial has it": statistics.median(written["result"]["cuda"]),
        "GPU, data kept on the GPU": resident["result"]["100"],
        "… and batches of 1,000": resident["result"]["1000"],
    }
    fig, ax = figure("One epoch, one network", "time [s]", height=3.0)
    colors = [GREY, ORANGE, BLUE, BLUE]
    bars(ax, list(seconds), list(seconds.values()), fmt="{:.2f} s", color=colors)
    note = f"measured on {where(written['provenance'])}"
    fig.supxlabel(note, fontsize=9.5, color="#666666", x=0.99, ha="right")
    fig.savefig(target, metadata={"Source": f"{written['checksum']} {resident['checksum']}"})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".png"))
