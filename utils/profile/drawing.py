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
from collections.abc import Callable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, figure
from utils.profile.model import Span, Trace, nested

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

Lane = tuple[str, list[tuple[Span, str]]]  # its name, its spans and their kinds


def timeline(
    trace: Trace,
    title: str,
    begin: float | None = None,
    end: float | None = None,
    *,
    arrows: bool | int = True,
    depth: int = 1,
    ranges: Sequence[str] | None = None,
    marks: Sequence[tuple[float, float, str]] = (),
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
    marks : sequence of (begin, end, text)
        Stretches to shade across all lanes, such as gaps, with a short text below the lanes.

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
    view = _View(begin, end)
    if end <= begin or not view.of(everything):
        raise ValueError(f"nothing was recorded between {begin:g} and {end:g} µs")
    lanes = _lanes(trace, view, depth, ranges)
    fig, ax = figure(title, height=1.6 + 0.42 * len(lanes) + 0.25 * bool(marks))
    kinds = set()
    where = {}  # id of a span -> height of its lane
    for lane, (_, spans) in enumerate(lanes):
        for kind in dict.fromkeys(kind for _, kind in spans):
            kinds.add(kind)
            edges = [view.cut(s.begin, s.end) for s, k in spans if k == kind]
            # Only wide boxes get an edge: it would hide narrow ones.
            widths = [0.6 if b - a > 0.01 * (end - begin) else 0.0 for a, b in edges]
            ax.broken_barh(
                [(view.x(a), (b - a) * view.scale) for a, b in edges],
                (-lane - 0.36, 0.72),
                facecolors=COLORS[kind],
                edgecolors=ax.get_facecolor(),
                linewidths=widths,
                snap=False,  # snapped to pixels, the narrowest would vanish
            )
        where |= {id(span): -lane for span, _ in spans}
        _write_names(ax, -lane, spans, view)
    if arrows:
        _draw_arrows(ax, trace, where, view, 40 if arrows is True else int(arrows))
    _finish(ax, lanes, kinds, marks, view)
    return fig


class _View(NamedTuple):
    """What is shown, in the trace's µs."""

    begin: float
    end: float

    @property
    def scale(self) -> float:
        """What a µs is on the axis: a long view is in ms."""
        return 1e-3 if self.end - self.begin > 2000 else 1.0

    def x(self, time: float) -> float:
        return (time - self.begin) * self.scale

    def cut(self, begin: float, end: float) -> tuple[float, float]:
        return max(begin, self.begin), min(end, self.end)

    def of(self, spans: Sequence[Span]) -> list[Span]:
        """Those of which a part is shown."""
        return [s for s in spans if s.end >= self.begin and s.begin <= self.end]


def _write_names(ax: Axes, y: float, spans: list[tuple[Span, str]], view: _View) -> None:
    """Write names into those boxes that are wide enough for at least a few letters."""
    for span, kind in spans:
        if kind in ("launch", "other call"):
            continue
        left, right = view.cut(span.begin, span.end)
        letters = int((right - left) / (view.end - view.begin) * WIDTH / LETTER)
        text = short_name(span.name, 60).removeprefix("aten::").removeprefix("cuda")
        text = text.replace("ProfilerStep", "step")
        if kind == "copy" and getattr(span, "direction", None):
            text = f"copy {span.direction}"
        if len(text) > letters:
            if letters < 8 or kind not in ("range", "kernel"):
                continue
            text = text[: letters - 1] + "…"
        ink = BLACK if kind in ("range", "operator", "copy") else "white"
        _write(ax, view.x((left + right) / 2), y, text, ink)


def _write(ax: Axes, x: float, y: float, text: str, color: str) -> None:
    ax.text(x, y, text, ha="center", va="center", size=10, color=color)


def _draw_arrows(ax: Axes, trace: Trace, where: dict[int, float], view: _View, most: int) -> None:
    """Lines from launches to work, evenly chosen among those that begin and end in view."""
    pairs = [
        (call, work)
        for call, work in trace.launches()
        if {id(call), id(work)} <= where.keys()
        and call.begin >= view.begin
        and work.begin <= view.end
    ]
    pairs.sort(key=lambda pair: pair[0].begin)
    every = max(1, -(-len(pairs) // max(most, 1)))
    style = {"arrowstyle": "-|>,head_width=0.12,head_length=0.25", "shrinkA": 0, "shrinkB": 0}
    style |= {"color": BLACK, "linewidth": 0.7, "alpha": 0.75}
    for call, work in pairs[::every]:
        begin = view.x(call.begin), where[id(call)] - 0.36
        end = view.x(work.begin), where[id(work)] + 0.36
        ax.annotate("", end, begin, arrowprops=style)


def _finish(ax: Axes, lanes: list[Lane], kinds: set[str], marks: Sequence, view: _View) -> None:
    """Axes, marks and legend."""
    bottom = -len(lanes) + 0.45
    for begin, end, text in marks:
        left, right = map(view.x, view.cut(begin, end))
        ax.axvspan(left, right, color=VERMILION, alpha=0.13, linewidth=0, zorder=0)
        _write(ax, (left + right) / 2, bottom - 0.28, text, VERMILION)
    unit = "ms" if view.scale < 1 else "µs"
    ax.set(xlim=(0, view.x(view.end)), xlabel=f"time [{unit}]")
    ax.set_ylim(bottom - (0.6 if marks else 0), 0.55)
    named = {-i: name for i, (name, _) in enumerate(lanes) if name}
    ax.set_yticks([*named], [*named.values()], fontsize=10.5)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    shown = [kind for kind in COLORS if kind in kinds and kind not in UNNAMED]
    if shown:
        ax.legend(
            [Patch(color=COLORS[kind]) for kind in shown],
            shown,
            **{"loc": "lower left", "bbox_to_anchor": (0, 0.98), "ncols": len(shown)},
            **{"handlelength": 0.9, "handletextpad": 0.4, "columnspacing": 1.2},
            **{"fontsize": 10.5, "borderpad": 0.1},
        )
        ax.set_title(ax.get_title(loc="left"), pad=24)


def depths(spans: Sequence[Span]) -> list[int]:
    """Return for each of ``spans``, all of one thread, how many others lie around it."""
    found = {id(span): len(around) for span, around in nested(spans)}
    return [found[id(span)] for span in spans]


def _lanes(trace: Trace, view: _View, depth: int, ranges: Sequence[str] | None) -> list[Lane]:
    """The lanes from the top."""
    lanes: list[Lane] = []

    def add(name: str, spans: Sequence[Span], kind: Callable[[Span], str] | str) -> None:
        found = view.of(spans)
        if found:
            lanes.append((name, [(s, kind if isinstance(kind, str) else kind(s)) for s in found]))

    def add_rows(name: str, spans: Sequence[Span], kind: str, most: int | None = None) -> None:
        level = depths(spans)
        for row in sorted({*level})[:most]:
            inside = [s for s, d in zip(spans, level, strict=True) if d == row]
            add(name if row == 0 else "", inside, kind)

    named = [s for s in trace.ranges if not ranges or s.name.startswith(tuple(ranges))]
    add_rows("ranges", view.of(named), "range")
    threads = {s.thread for s in view.of([*trace.operators, *trace.calls])}
    for thread in sorted(threads):  # the main thread is 0
        operators = [s for s in trace.operators if s.thread == thread]
        backward = any(s.name.startswith("autograd::engine") for s in operators)
        suffix = "" if thread == 0 else "\n(autograd)" if backward else f"\n(thread {thread})"
        add_rows(f"operators{suffix}", operators, "operator", depth)
        calls = [s for s in trace.calls if s.thread == thread]
        add(f"CUDA calls{suffix}", calls, lambda s: call_kind(s.name))
    streams = sorted({w.stream for w in view.of(trace.work)})
    for stream in streams:
        name = "GPU" if stream == streams[0] else f"GPU, stream {stream}"
        add(name, [w for w in trace.work if w.stream == stream], lambda w: w.kind)
    add("overhead", trace.overhead, "overhead")  # at the bottom, where no arrow crosses it
    return lanes


def call_kind(name: str) -> str:
    """Return what a CUDA runtime or driver call is for, from its name.

    ``"launch"`` (also of graphs), ``"wait"`` (returns only when the GPU has done something),
    ``"copy"`` (memcpy and memset; those that are not ``Async`` wait too, and one from or to
    pageable memory may wait whatever its name) or
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
