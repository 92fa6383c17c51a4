"""Draw predictions.png: every first prediction of the book's records against its measurement.

python book/images/predictions.py [TARGET]
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from utils.cards import HIT, verdict
from utils.plotting import BLUE, VERMILION, figure
from utils.record import counted_predictions


def pairs() -> dict[str, list[tuple[float, float]]]:
    """Return predicted and measured of the hits and of the misses, in the records' order."""
    found: dict[str, list[tuple[float, float]]] = {"hit": [], "miss": []}
    for entry in counted_predictions():
        found[verdict(entry)].append((entry["predicted"], entry["measured"]))
    return found


def source() -> str:
    """Return what the file says it was drawn from: how many pairs, and what they add up to."""
    return " ".join(
        f"{len(points)} {kind} {sum(map(sum, points)):.9g}" for kind, points in pairs().items()
    )


def draw(target: Path) -> None:
    """Write the figure to ``target``."""
    found = pairs()
    total = sum(map(len, found.values()))
    title = f"{len(found['hit'])} of {total} predictions were within {HIT}x"
    fig, ax = figure(title, "predicted", "measured")
    fig.set_size_inches(4.8, 4.3)  # the front shows two side by side
    ax.set_title(title, x=-0.28, pad=16)  # clear of the topmost tick
    ends = (1e-7, 1e5)
    ax.fill_between(ends, *([x * f for x in ends] for f in (1 / HIT, HIT)), color=BLUE, alpha=0.15)
    ax.plot(ends, ends, color=BLUE, linewidth=0.8)
    for kind, color, marker in (("hit", BLUE, "o"), ("miss", VERMILION, "x")):
        x, y = zip(*found[kind], strict=True)  # outside: 350,000, 0.2 millionths, a negative
        ax.scatter(x, y, s=16, color=color, marker=marker, linewidths=1, alpha=0.7)
    ax.set(xscale="log", yscale="log", xlim=(1e-3, 1e5), ylim=(1e-3, 1e5), aspect="equal")
    ax.text(2e-3, 8e3, "measured more\nthan predicted", color=VERMILION)
    ax.text(6e1, 4e-3, "measured less\nthan predicted", color=VERMILION)
    note = "ms, GB/s, MiB …; on one H100, or on one to four H200s"
    fig.supxlabel(note, fontsize=10, color="#555555", x=0.99, ha="right")
    fig.savefig(target, metadata={"Source": source()})
    plt.close(fig)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".png"))
