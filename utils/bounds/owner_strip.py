"""Draw who owns the moments of a profiled step: a strip of colors, alone or below a timeline."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from utils.bounds.owners import label, owners, window
from utils.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from utils.profile import Trace, timeline

PALE = "#BDBDBD"
BROWN, DARK, MINT, SAND = "#8C564B", "#4D4D4D", "#8FD3BC", "#EEDD88"
# As in a timeline: copies orange, launches blue, waits vermilion. Kernels have a color of their own
# here, until a roof is known: green is arithmetic's, light blue is memory's.
INK = {
    "computing": SAND,
    "data": ORANGE,
    "copying": ORANGE,
    "python": BLUE,
    "memory": SKY,
    "arithmetic": GREEN,
    "other GPUs": PURPLE,
    "allocator": BROWN,
    "slow CUDA call": DARK,
    "CUDA graph": MINT,
    "silent host": GREY,
    "idle, already launched": VERMILION,
    "neither roof": PALE,
}
ON_DARK = (BLUE, BROWN, DARK, GREEN, GREY, VERMILION)  # where white letters are legible


def strip(
    ax: Axes, trace: Trace, y: float, begin: float, end: float, *, scale: float = 1.0
) -> None:
    """Draw the owners from ``begin`` to ``end`` at height ``y``, named where a name fits.

    An interruption shorter than a hundredth of the view, and than what came before it, does not
    keep an owner from being named.

    Parameters
    ----------
    ax : Axes
        Where time is counted from ``begin``, in µs times ``scale``.
    trace : Trace
        With steps, as :func:`utils.bounds.window` finds them.
    y, begin, end, scale : float
        Height of the strip's middle; the part of the trace in its µs; the axis' unit.
    """
    runs: dict[str, list[list[float]]] = {}  # begin, end, and how much of it is filled
    for owner, left, right in owners(trace):
        left, right = max(left, begin), min(right, end)
        if left >= right:
            continue
        owner = "data" if owner == "copying" else owner
        x, wide = (left - begin) * scale, (right - left) * scale
        ax.broken_barh([(x, wide)], (y - 0.3, 0.6), color=INK[owner], linewidth=0)
        mine = runs.setdefault(owner, [])
        if not mine or left - mine[-1][1] >= min(0.01 * (end - begin), mine[-1][2]):
            mine.append([left, right, 0.0])
        mine[-1][1] = right
        mine[-1][2] += right - left
    for owner, found in runs.items():
        for left, right, filled in found:
            fits = right - left > 0.02 * len(owner) * (end - begin)
            if fits and filled > 0.6 * (right - left):
                ink = "white" if INK[owner] in ON_DARK else BLACK
                middle = ((left + right) / 2 - begin) * scale
                ax.text(middle, y, label(owner), ha="center", va="center", size=10, color=ink)


def signature(
    trace: Trace, title: str, begin: float = 0.0, length: float | None = None, **options
) -> Figure:
    """Return a timeline of a part of the profiled steps, with the owner of each moment below it.

    Parameters
    ----------
    trace : Trace
        With steps, as :func:`utils.bounds.window` finds them.
    title : str
        What the figure answers.
    begin, length : float, optional
        The part to show, in µs from the beginning of the steps.
    **options
        For :func:`utils.profile.timeline`.
    """
    _, first, last = window(trace)
    begin = first + begin
    end = last if length is None else min(last, begin + length)
    fig = timeline(trace, title, begin, end, **{"ranges": ("data", "enumerate"), **options})
    ax = fig.axes[0]
    scale = 1e-3 if end - begin > 2000 else 1.0  # as the timeline has it
    y = ax.get_ylim()[0] - 0.55
    strip(ax, trace, y, begin, end, scale=scale)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    ax.set_yticks([*ax.get_yticks(), y], [*labels, "owner"])
    ax.set_ylim(y - 0.5, ax.get_ylim()[1])
    fig.set_figheight(fig.get_figheight() + 0.4)
    return fig
