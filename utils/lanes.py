"""The lanes of a timeline: which spans stand in one row, from named ranges down to the GPU."""

from collections.abc import Sequence

from utils.names import call_kind
from utils.spans import Span, Trace


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
