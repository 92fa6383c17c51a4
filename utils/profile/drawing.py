"""Draw a trace: what the host did, what it asked for, and what the GPU did with it.

::

    fig = timeline(trace, "Who waits?", begin=step.begin, end=step.end)
    show(fig, my_experiment.where)

Time runs to the right. From top to bottom: named ranges, the operators of each host thread, its
calls into CUDA, a lane for each stream of the GPU, and what CUPTI reports as overhead. A line leads
from a launch to the work that it launched: the farther it leans, the longer the work lay in the
queue.
"""

import re
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, figure
from utils.profile.model import Span, Trace

PALE = "#DDE7EE"
COLORS = {
    "range": PALE,
    "operator": SKY,
    "launch": BLUE,
    "copy": ORANGE,
    "wait": VERMILION,
    "other call": GREY,
    "kernel": GREEN,
    "set": BLACK,
    "overhead": BLACK,  # in a lane of its own
}
UNNAMED = ("range", "operator", "overhead")  # their lanes say what they are
LETTER = 0.082  # inches: the mean width of a letter at 10 points
WIDTH = 4.7  # inches: what the lanes' names leave of a figure


def timeline(
    trace: Trace,
    title: str,
    begin: float | None = None,
    end: float | None = None,
    *,
    arrows: bool | int = True,
    depth: int = 1,
    ranges: Sequence[str] | None = None,
    names: bool = True,
    marks: Sequence[tuple[float, float, str]] = (),
    height: float | None = None,
) -> Figure:
    """Draw what happened between ``begin`` and ``end``.

    Parameters
    ----------
    trace : Trace
        From :func:`utils.profile.load`; with or without GPU work.
    title : str
        The question that the figure answers, or the answer.
    begin, end : float, optional
        In the trace's microseconds; everything if left out. The axis starts at 0 there.
    arrows : bool or int
        Lines from launches to their work: at most 40, or at most as many as given, evenly chosen.
    depth : int
        How many levels of nested operators to show.
    ranges : sequence of str, optional
        Show only the named ranges whose name begins with one of these.
    names : bool
        Write names into ranges, operators, waits and GPU work where they fit.
    marks : sequence of (begin, end, text)
        Stretches to shade across all lanes, such as gaps, with a short text below the lanes.
    height : float, optional
        Of the figure, in inches; by default it follows the number of lanes.

    Returns
    -------
    Figure
        In the book's style; hand it to :func:`utils.plotting.show`.

    Raises
    ------
    ValueError
        If nothing was recorded between ``begin`` and ``end``.
    """
    everything = [*trace.ranges, *trace.operators, *trace.calls, *trace.work]
    if not everything:
        raise ValueError("the trace is empty")
    begin = min(s.begin for s in everything) if begin is None else begin
    end = max(s.end for s in everything) if end is None else end
    if end <= begin or not in_view(everything, begin, end):
        raise ValueError(f"nothing was recorded between {begin:g} and {end:g} µs")

    lanes = lanes_of(trace, begin, end, depth, ranges)
    fig, ax = figure(title, height=height or 1.6 + 0.42 * len(lanes) + 0.25 * bool(marks))
    scale, unit = (1e-3, "ms") if end - begin > 2000 else (1.0, "µs")
    kinds = set()
    where = {}  # id of a span -> height of its lane
    for lane, (_, spans) in enumerate(lanes):
        for kind in dict.fromkeys(kind for _, kind in spans):
            kinds.add(kind)
            bars = [_bar(s, begin, end, scale) for s, k in spans if k == kind]
            # Only wide boxes get an edge: it would hide narrow ones.
            edges = [0.6 if w > 0.01 * (end - begin) * scale else 0.0 for _, w in bars]
            ax.broken_barh(
                bars,
                (-lane - 0.36, 0.72),
                facecolors=COLORS[kind],
                edgecolors=ax.get_facecolor(),
                linewidths=edges,
                snap=False,  # snapped to pixels, the narrowest would vanish
            )
        where |= {id(span): -lane for span, _ in spans}
        if names:
            _write_names(ax, -lane, spans, begin, end, scale)
    if arrows:
        most = 40 if arrows is True else int(arrows)
        _draw_arrows(ax, trace, where, begin, end, scale, most)
    _finish(ax, lanes, kinds, marks, begin, end, scale, unit)
    return fig


def _bar(span: Span, begin: float, end: float, scale: float) -> tuple[float, float]:
    """Left edge and width of a span in the axis' unit, cut to what is in view."""
    left, right = max(span.begin, begin), min(span.end, end)
    return (left - begin) * scale, (right - left) * scale


def _write_names(
    ax: Axes, y: float, spans: list[tuple[Span, str]], begin: float, end: float, scale: float
) -> None:
    """Write names into those boxes that are wide enough for at least a few letters."""
    for span, kind in spans:
        if kind in ("launch", "other call"):
            continue
        left, right = max(span.begin, begin), min(span.end, end)
        letters = int((right - left) / (end - begin) * WIDTH / LETTER)
        text = short_name(span.name, 60).removeprefix("aten::").removeprefix("cuda")
        text = text.replace("ProfilerStep", "step")
        if kind == "copy" and getattr(span, "direction", None):
            text = f"copy {span.direction}"
        if len(text) > letters:
            if letters < 8 or kind not in ("range", "kernel"):
                continue
            text = text[: letters - 1] + "…"
        ink = BLACK if kind in ("range", "operator", "copy") else "white"
        middle = ((left + right) / 2 - begin) * scale
        ax.text(middle, y, text, ha="center", va="center", size=10, color=ink)


def _draw_arrows(
    ax: Axes,
    trace: Trace,
    where: dict[int, float],
    begin: float,
    end: float,
    scale: float,
    most: int,
) -> None:
    """Lines from launches to work, evenly chosen among those that begin and end in view."""
    pairs = [
        (call, work)
        for call, work in trace.launches()
        if id(call) in where and id(work) in where and call.begin >= begin and work.begin <= end
    ]
    pairs.sort(key=lambda pair: pair[0].begin)
    every = max(1, -(-len(pairs) // max(most, 1)))
    for call, work in pairs[::every]:
        x = [(call.begin - begin) * scale, (work.begin - begin) * scale]
        y = [where[id(call)] - 0.36, where[id(work)] + 0.36]
        ax.annotate(
            "",
            (x[1], y[1]),
            (x[0], y[0]),
            arrowprops={
                "arrowstyle": "-|>,head_width=0.12,head_length=0.25",
                "color": BLACK,
                "linewidth": 0.7,
                "alpha": 0.75,
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )


def _finish(
    ax: Axes,
    lanes: list[tuple[str, list]],
    kinds: set[str],
    marks: Sequence[tuple[float, float, str]],
    begin: float,
    end: float,
    scale: float,
    unit: str,
) -> None:
    """Axes, marks and legend."""
    bottom = -len(lanes) + 0.45
    for left, right, text in marks:
        left, right = (max(left, begin) - begin) * scale, (min(right, end) - begin) * scale
        ax.axvspan(left, right, color=VERMILION, alpha=0.13, linewidth=0, zorder=0)
        ax.text(
            (left + right) / 2,
            bottom - 0.28,
            text,
            size=10,
            color=VERMILION,
            ha="center",
            va="center",
        )
    ax.set(
        xlim=(0, (end - begin) * scale),
        ylim=(bottom - (0.6 if marks else 0), 0.55),
        xlabel=f"time [{unit}]",
        yticks=[-i for i, (name, _) in enumerate(lanes) if name],
    )
    ax.set_yticklabels([name for name, _ in lanes if name], fontsize=10.5)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    shown = [kind for kind in COLORS if kind in kinds and kind not in UNNAMED]
    if shown:
        ax.legend(
            handles=[Patch(color=COLORS[kind], label=kind) for kind in shown],
            loc="lower left",
            bbox_to_anchor=(0, 0.98),
            ncols=len(shown),
            fontsize=10.5,
            handlelength=0.9,
            handletextpad=0.4,
            columnspacing=1.2,
            borderpad=0.1,
        )
        ax.set_title(ax.get_title(loc="left"), pad=24)


def depths(spans: Sequence[Span]) -> list[int]:
    """Return for each of ``spans``, all of one thread, how many others lie around it."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i].begin, -spans[i].end))
    result, open_ends = [0] * len(spans), []
    for i in order:
        while open_ends and open_ends[-1] <= spans[i].begin:
            open_ends.pop()
        result[i] = len(open_ends)
        open_ends.append(spans[i].end)
    return result


def in_view(spans: Sequence[Span], begin: float, end: float) -> list[Span]:
    """Return those of ``spans`` of which a part lies between ``begin`` and ``end``."""
    return [s for s in spans if s.end >= begin and s.begin <= end]


def lanes_of(
    trace: Trace, begin: float, end: float, depth: int, ranges: Sequence[str] | None
) -> list[tuple[str, list[tuple[Span, str]]]]:
    """Return the lanes from the top: a name, and the spans in it with their kinds."""
    lanes: list[tuple[str, list[tuple[Span, str]]]] = []
    named = [s for s in trace.ranges if not ranges or s.name.startswith(tuple(ranges))]
    named = in_view(named, begin, end)

    level = depths(named)
    for row in sorted(set(level)):
        spans = [(s, "range") for s, d in zip(named, level, strict=True) if d == row]
        lanes.append(("ranges" if row == 0 else "", spans))

    threads = {s.thread for s in in_view([*trace.operators, *trace.calls], begin, end)}
    for thread in sorted(threads):  # the main thread is 0
        operators = [s for s in trace.operators if s.thread == thread]
        backward = any(s.name.startswith("autograd::engine") for s in operators)
        suffix = "" if thread == 0 else "\n(autograd)" if backward else f"\n(thread {thread})"
        level = depths(operators)
        for row in range(depth):
            inside = [s for s, d in zip(operators, level, strict=True) if d == row]
            spans = [(s, "operator") for s in in_view(inside, begin, end)]
            if spans:
                lanes.append((f"operators{suffix}" if row == 0 else "", spans))
        calls = in_view([s for s in trace.calls if s.thread == thread], begin, end)
        if calls:
            lanes.append((f"CUDA calls{suffix}", [(s, call_kind(s.name)) for s in calls]))

    work = in_view(trace.work, begin, end)
    for number, stream in enumerate(sorted({w.stream for w in work})):
        name = "GPU" if number == 0 else f"GPU, stream {stream}"
        lanes.append((name, [(w, w.kind) for w in work if w.stream == stream]))
    overhead = in_view(trace.overhead, begin, end)
    if overhead:  # at the bottom, where no arrow crosses it
        lanes.append(("overhead", [(s, "overhead") for s in overhead]))
    return lanes


def call_kind(name: str) -> str:
    """Return what a CUDA runtime or driver call is for, from its name.

    ``"launch"`` (also of graphs), ``"wait"`` (returns only when the GPU has done something),
    ``"copy"`` (memcpy and memset; those that are not ``Async`` wait too, and one from or to
    pageable memory waits whatever its name) or
    ``"other call"``.

    >>> [call_kind(n) for n in ("cudaLaunchKernel", "cuLaunchKernelEx", "cudaStreamSynchronize")]
    ['launch', 'launch', 'wait']
    """
    if "Launch" in name:
        return "launch"
    if "Synchronize" in name:
        return "wait"
    if "Memcpy" in name or "Memset" in name:
        return "copy"
    return "other call"


def short_name(name: str, limit: int = 36) -> str:
    """Return a kernel's, operator's or range's name without what only a compiler needs.

    >>> short_name("void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int)")
    'max_pool_forward_nchw'
    >>> short_name("Optimizer.step#SGD.step")
    'Optimizer.step'
    """
    own = re.match(r"(ProfilerStep|Optimizer\.\w+|enumerate\(DataLoader\))#", name)
    if own:  # torch's own ranges carry a number or a class
        return own[1]
    if name.startswith("_Z"):  # mangled: not meant to be read
        return "cutlass kernel" if "cutlass" in name else "(mangled)"
    if name.startswith("Mem"):  # "Memcpy HtoD (Pageable -> Device)"
        return name.split(" (")[0]
    # What a generic kernel is used for stands among its template's arguments.
    inner = re.search(r"\b(\w+Functor\w*|\w+_kernel_cuda|launch_\w+|cutlass_[a-z\d]\w+)\b", name)
    name = re.sub(r"^void |^autograd::engine::evaluate_function: ", "", name)
    name = name.replace("(anonymous namespace)::", "")
    plain, depth = "", 0
    for letter in name:  # templates nest, so no regular expression removes them
        depth += letter == "<"
        if depth == 0:
            plain += letter
        depth -= letter == ">"
    plain = re.sub(r"\s*\(.*\)$", "", plain).strip()
    if "::" in plain and not plain.startswith("aten::"):
        plain = plain.rsplit("::", 1)[1]
    if inner and re.search(r"elementwise_kernel$|multi_tensor_apply_kernel$|^Kernel2?$", plain):
        plain = inner[1]
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
