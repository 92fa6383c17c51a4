"""Figures and tables in one style: legible on a phone, in dark mode, and to the colour-blind."""

import re
from collections.abc import Callable, Iterable, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from utils.cards import aligned

# Okabe and Ito's palette, distinguishable with any common colour vision deficiency, less the
# yellow, which vanishes on white. https://jfly.uni-koeln.de/color/
BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, BLACK = COLORS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#222222",
)
GREY = "#7F7F7F"

STYLE = {
    # 6 inches at 12 points leave 10-pixel letters on a 390-pixel screen.
    "figure.figsize": (6.0, 3.9),
    "figure.dpi": 160,
    "figure.facecolor": "#FCFCFA",  # opaque, so that dark pages cannot swallow black text
    "savefig.facecolor": "#FCFCFA",
    "axes.facecolor": "#FCFCFA",
    "figure.constrained_layout.use": True,
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "lines.linewidth": 2.2,
    "legend.frameon": False,
    "axes.prop_cycle": plt.cycler(color=COLORS),
}
plt.rcParams.update(STYLE)


def figure(
    title: str, xlabel: str = "", ylabel: str = "", *, columns: int = 1, height: float = 3.9
) -> tuple[Figure, Axes]:
    """Start a figure in the book's style.

    Parameters
    ----------
    title : str
        The question that the figure answers, or the answer.
    xlabel, ylabel : str
        With units.
    columns : int
        Axes side by side; more than one returns an array of axes, labelled alike.
    height : float
        In inches; the width is fixed, so that letters keep their size on a phone.
    """
    fig, axes = plt.subplots(1, columns, figsize=(6.0, height))
    for ax in fig.axes:
        ax.set(xlabel=xlabel, ylabel=ylabel)
    if columns == 1:
        axes.set_title(title)
    else:
        fig.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    return fig, axes


def drawing(
    title: str, xlim: tuple[float, float], ylim: tuple[float, float], *, height: float = 3.9
) -> tuple[Figure, Axes]:
    """Start a figure without axes, for shapes and words between these limits."""
    fig, ax = figure(title, height=height)
    ax.set(xlim=xlim, ylim=ylim)
    ax.axis("off")
    return fig, ax


def name_rows(ax: Axes, labels: Iterable[str], **style) -> None:
    """Name the rows 0, 1, 2 … of horizontal bars, from the top, and draw no lines along them.

    Parameters
    ----------
    style : dict
        For the labels, such as ``fontsize=11``.
    """
    labels = list(labels)
    ax.set_yticks(range(len(labels)), labels, **style)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)


def ticks(
    ax: Axes,
    *,
    x: Sequence[float] = (),
    y: Sequence[float] = (),
    label: Callable[[float], str] = "{:,}".format,
) -> None:
    """Mark just these numbers on the axes, as a logarithmic axis would not by itself.

    Parameters
    ----------
    x, y : sequence of float
        None: the axis keeps its major ticks. Minor ones go from both axes.
    label : callable
        What a number is called: by default its digits, thousands separated.
    """
    for at, mark in ((x, ax.set_xticks), (y, ax.set_yticks)):
        if len(at):
            mark(at, [label(number) for number in at])
    ax.minorticks_off()


def notes(ax: Axes, *written: tuple, **style) -> None:
    """Write words on a figure.

    Parameters
    ----------
    written : tuple
        ``(x, y, words)`` or, not in black, ``(x, y, words, color)``.
    style : dict
        For all of them, such as ``ha="center"``; the size is 11 unless it says another.
    """
    for x, y, words, *color in written:
        ax.text(x, y, words, **{"fontsize": 11, "color": color[0] if color else "black"} | style)


def show(fig: Figure, where: str) -> None:
    """Print on ``fig`` where its data come from (an experiment's ``where``), and show it.

    Raises
    ------
    ValueError
        If ``where`` is empty: a figure says where it was measured, or "drawing".
    """
    if not where.strip():
        raise ValueError("say where this was measured, for example with an experiment's .where")
    note = where if where.startswith(("drawing", "computed")) else f"measured on {where}"
    # supxlabel takes part in the constrained layout, so that the note never covers a label.
    fig.supxlabel(note, fontsize=11, color="#666666", x=0.99, ha="right")
    plt.show()


class Table:
    """Rows under headers, shown as a table in the page and as aligned text elsewhere."""

    def __init__(self, headers: Sequence[str], rows: Sequence[Sequence[object]]):
        self.headers = [str(h) for h in headers]
        self.rows = [[str(cell) for cell in row] for row in rows]
        for row in self.rows:
            if len(row) != len(self.headers):
                raise ValueError(f"{len(self.headers)} headers, but a row has {len(row)}: {row}")

    def _numeric(self, column: int) -> bool:
        """Whether every cell of the column starts with a number; then it is aligned right."""
        return column > 0 and all(re.match(r"[-+~<>]?\d|[–—]?$", row[column]) for row in self.rows)

    def _repr_markdown_(self) -> str:
        rule = ["--:" if self._numeric(i) else ":--" for i in range(len(self.headers))]
        lines = [self.headers, rule, *self.rows]
        return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in r) + " |" for r in lines)

    def __repr__(self) -> str:
        columns = range(len(self.headers))
        pad = [str.rjust if self._numeric(i) else str.ljust for i in columns]
        return "\n".join(aligned([self.headers, *self.rows], pad))


def bars(ax: Axes, labels: Sequence[str], values: Sequence[float], *, fmt: str, **kwargs) -> None:
    """Draw horizontal bars from the top, each with its value written at its end.

    Parameters
    ----------
    labels, values : sequence
        One label and one number a bar.
    fmt : str
        A format for the value, such as ``"{:.1f} s"``.
    """
    name_rows(ax, [label for label, _ in zip(labels, values, strict=True)])
    drawn = ax.barh(range(len(values)), values, **kwargs)
    ax.bar_label(drawn, [fmt.format(v) for v in values], padding=4, fontsize=11)
    ax.margins(x=0.2)


def stack(
    ax: Axes, row: float, parts: dict[str, float], colors: dict[str, str], **style
) -> list[tuple[str, float, float]]:
    """Draw a row of horizontal bars, each beginning where the last one ends.

    Parameters
    ----------
    parts : dict of float
        How wide each is, by its name.
    colors : dict of str
        By name; grey is what has none.
    style : dict
        For all bars, such as ``height=0.6``.

    Returns
    -------
    list of tuple
        Name, width and middle of each, for what is written on them.
    """
    drawn, left = [], 0.0
    for name, width in parts.items():
        ax.barh(row, width, left=left, color=colors.get(name, GREY), **style)
        drawn.append((name, width, left + width / 2))
        left += width
    return drawn


def draw_segments(
    ax: Axes, segments: list[dict], *, y: float = 0.0, row: int | None = None
) -> float:
    """Draw segments downwards from height ``y``, and return the height below the last.

    Parameters
    ----------
    segments : list of dict
        From :func:`utils.memory.segments`.
    row : int, optional
        Bytes in a row of width 1, where segments follow one another. Without it every segment has
        a row of its own, drawn to its own scale, and sizes are written into it.
    """
    from utils.memory import format_bytes  # and torch, which few figures need

    x = 0.0  # how much of the present row is taken, of 1
    colors = {"active": BLUE, "waiting": ORANGE, "free": "#E3E3E0"}
    for segment in segments:
        if not row:
            text = f"{format_bytes(segment['size'])} {segment['pool']}"
            ax.text(-0.02, y - 0.4, text, ha="right", va="center", size=10)
        for size, state in segment["blocks"]:
            left = size / (row or segment["size"])
            if not row and left > 0.12:
                ink = "white" if state == "active" else "black"
                at = (x + left / 2, y - 0.4)
                ax.text(*at, format_bytes(size), color=ink, ha="center", va="center", size=10)
            while left > 1e-9:  # a block may go on in the next row
                part = min(left, 1 - x)
                ax.add_patch(Rectangle((x, y - 0.8), part, 0.8, fc=colors[state], ec="white"))
                x, left = x + part, left - part
                if x > 1 - 1e-9:
                    x, y = 0.0, y - 1
    return y - 1 if x else y
