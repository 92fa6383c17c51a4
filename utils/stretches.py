"""Who owns which microsecond of a profiled step: the bookkeeping behind :mod:`utils.bounds`."""

import math
from collections.abc import Iterable, Mapping

from utils.trace import Span, Trace, Work, gaps

LATENCY = 20.0  # µs: no GPU of the committed traces took half of it from one kernel to the next
SILENCE = 1000.0  # µs without a CUDA call: far more than lies between two launches
LOADING = ("enumerate(DataLoader)", "data")  # ranges in which the host prepares data

Stretch = tuple[float, float]


def owners(trace: Trace) -> list[tuple[str, float, float]]:
    """Return the steps as stretches in order of time, each ``(owner, begin, end)``.

    While the GPU computes, the owner is ``"computing"``; which roof limits the kernels is another
    question. Then come, in this order, NCCL (``"other GPUs"``), ``"copying"`` to or from the host,
    and an idle GPU: whose next work was launched already, for microseconds (``"neither roof"``) or
    for longer (``"idle, already launched"``); for ``"data"``, for a ``"silent host"``, else for
    ``"python"``.
    """
    _, begin, end = window(trace)
    kinds: dict[str, list[Stretch]] = {"computing": [], "other GPUs": [], "copying": []}
    for w in trace.work:
        kinds[kind_of(w)].append((w.begin, w.end))
    silence = [(a, b) for a, b in gaps(trace.calls, begin, end) if b - a > SILENCE]
    launched = launched_pauses(trace)
    idle = {
        "neither roof": [(a, b) for a, b in launched if b - a <= LATENCY],
        "idle, already launched": [(a, b) for a, b in launched if b - a > LATENCY],
        "data": loading(trace),
        "silent host": silence,
        "python": [(begin, end)],
    }
    return sweep({**kinds, **idle}, begin, end)


def sweep(
    layers: Mapping[str, Iterable[Stretch]], begin: float, end: float
) -> list[tuple[str, float, float]]:
    """Return the time from ``begin`` to ``end`` in stretches owned by the first layer there."""
    names, edges = list(layers), []
    for rank, name in enumerate(names):
        for left, right in layers[name]:
            left, right = max(left, begin), min(right, end)
            edges += [(left, rank, 1), (right, rank, -1)] if left < right else []
    found: list[tuple[str, float, float]] = []
    going, at = [0] * len(names), begin
    for time, rank, change in sorted(edges):
        owner = next((name for name, count in zip(names, going, strict=True) if count), None)
        if owner is not None and time > at:
            if found and found[-1][0] == owner and found[-1][2] == at:
                found[-1] = (owner, found[-1][1], time)
            else:
                found.append((owner, at, time))
        going[rank] += change
        at = time
    return found


def window(trace: Trace) -> tuple[int, float, float]:
    """Return how many steps there are, when the first began, when the last ended on the GPU.

    Where steps before the first one have filled the queue, it begins when the GPU is done with
    them: their work must not count as its own.

    Raises
    ------
    ValueError
        If the GPU did nothing in the steps.
    """
    steps = [r for r in trace.ranges if r.name.startswith("ProfilerStep#")]
    steps = steps or [r for r in trace.ranges if r.name == "step"]
    every = [*trace.ranges, *trace.operators, *trace.calls, *trace.work]
    begin = steps[0].begin if steps else min((s.begin for s in every), default=0.0)
    end = max((s.end for s in steps or every), default=0.0)
    launched = trace.within(begin, end).work if steps else trace.work
    if not launched:
        raise ValueError(
            "the GPU did nothing in the profiled steps, so there is nothing that it waits for: is "
            "the model on it, and did it exist when the profiler started?"
        )
    end, own = max(end, *(w.end for w in launched)), {id(w) for w in launched}
    first = min(w.begin for w in launched)
    before = max((w.end for w in trace.work if id(w) not in own and w.begin < first), default=begin)
    return max(1, len(steps)), max(begin, before) if before < end else begin, end


def kind_of(w: Work) -> str:
    """Return ``"computing"``, ``"copying"`` (to or from the host) or ``"other GPUs"``."""
    if "nccl" in w.name.lower() or w.direction == "PtoP":
        return "other GPUs"
    return "copying" if w.direction in ("HtoD", "DtoH") else "computing"


def ends(spans: Iterable[Span]) -> list[Stretch]:
    """Return the beginning and the end of each span."""
    return [(span.begin, span.end) for span in spans]


def loading(trace: Trace) -> list[Stretch]:
    """Return when the host prepared or sent data, as far as the profile tells."""
    spans = [r for r in trace.ranges if r.name.split("#")[0] in LOADING]
    spans += [op for op in trace.operators if "pin_memory" in op.name]
    return ends([*spans, *(call for call, w in trace.launches() if w.direction == "HtoD")])


def launched_pauses(trace: Trace) -> list[Stretch]:
    """Return the pauses of the GPU before work that had been launched when the pause began."""
    asked = {id(w): call.end for call, w in trace.launches()}
    found, at = [], math.inf
    for w in sorted(trace.work, key=lambda w: w.begin):
        if asked.get(id(w), math.inf) <= at < w.begin:
            found.append((at, w.begin))
        at = max(at, w.end) if at < math.inf else w.end
    return found
