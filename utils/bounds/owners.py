"""Who owns which microsecond of a profiled step: the bookkeeping behind :mod:`utils.bounds`."""

import math
import re
from collections.abc import Iterable, Mapping

from utils.profile import Span, Trace, Work, gaps

LATENCY = 20.0  # µs: no GPU of the committed traces took half of it from one kernel to the next
OVERDUE = 100.0  # µs from a launch to idle hardware: 2 to 8 on NVIDIA's of sixty traces, AMD's 86
SILENCE = 1000.0  # µs without a CUDA call: far more than lies between two launches
FEW = 0.05  # of the GPU's work may lack its launch
LOADING = ("enumerate(DataLoader)", "data")  # ranges in which the host prepares data

# What asks the driver for memory or gives it back, of CUDA and of HIP; frees wait for the GPU.
ALLOCATING = re.compile(
    r"^(cuda|hip|cu)(Ext)?(Mem)?(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister"
    r"|HostUnregister|Alloc|Create$|Map|Unmap|Release|SetAccess|Address)"
)
QUERY = re.compile(r"Query$|Query_")  # a thread that polls says nothing of what the host does
WAITS = re.compile("Synchronize|Memcpy")
# Communication between GPUs, by the names of its kernels and of the operators that launch them.
COLLECTIVE = re.compile(
    r"nccl|rccl|nvshmem|rocshmem|deep_ep|multimem|cross_device_reduce|quick_?reduce"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)
LAUNCHING = re.compile(r"^(record_param_comms|nccl:|c10d::|_c10d_functional::|symm_mem::)")

Stretch = tuple[float, float]


def owners(trace: Trace) -> list[tuple[str, float, float]]:
    """Return the steps as stretches in order of time, each ``(owner, begin, end)``.

    While the GPU computes, the owner is ``"computing"``; which roof limits the kernels is another
    question. Then come, in this order, communication (``"other GPUs"``), ``"copying"`` to or from
    the host, and an idle GPU: whose next work was launched already, for microseconds (``"neither
    roof"``) or for longer (``"idle, already launched"``); for ``"data"``; while the host asks the
    driver for memory (``"allocator"``) or is in another call that lasts long (``"slow CUDA
    call"``); for a ``"silent host"``, else for ``"python"``.
    """
    _, begin, end = window(trace)
    layers: dict[str, list[Stretch]] = {"computing": [], "other GPUs": [], "copying": []}
    for w in trace.work:
        layers[kind_of(w, trace.operator_of(w))].append((w.begin, w.end))
    telling = [call for call in trace.calls if not QUERY.search(call.name)]
    launched = launched_pauses(trace, begin)
    idle = _long(gaps(trace.work, begin, end))
    slow = _long(ends(telling))
    layers |= {
        "neither roof": [(a, b) for a, b in launched if b - a <= LATENCY],
        "idle, already launched": [(a, b) for a, b in launched if b - a > LATENCY],
        "data": loading(trace),
        "allocator": ends(call for call in telling if ALLOCATING.search(call.name)),
        "slow CUDA call": _long((max(a, c), min(b, d)) for a, b in idle for c, d in slow),
        "silent host": _long(gaps(telling, begin, end)),
        "python": [(begin, end)],
    }
    return sweep(layers, begin, end)


def _long(stretches: Iterable[Stretch]) -> list[Stretch]:
    return [(begin, end) for begin, end in stretches if end - begin > SILENCE]


def label(owner: str) -> str:
    """Return an owner's name as text and figures have it: Python is a name."""
    return "Python" if owner == "python" else owner


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
            goes_on = found and found[-1][::2] == (owner, at)
            found.append((owner, found.pop()[1] if goes_on else at, time))
        going[rank] += change
        at = time
    return found


def steps_of(trace: Trace) -> list[Span]:
    """Return the ranges of the steps: the schedule's, or those called ``"step"``; maybe none.

    A last one that launches nothing is no step: it lies between the last ``profiler.step()`` and
    the end of the profile. Nor is one of which half, or more, lies within an earlier one.
    """
    steps = _apart(_marked(trace))
    while len(steps) > 1 and not _launched(trace, steps[-1].begin, steps[-1].end):
        steps = steps[:-1]
    return steps


def _marked(trace: Trace) -> list[Span]:
    return trace.steps or [r for r in trace.ranges if r.name == "step"]


def _apart(ranges: list[Span]) -> list[Span]:
    found: list[Span] = []
    for span in sorted(ranges, key=lambda r: (r.begin, -r.end)):
        if not found or (span.begin + span.end) / 2 >= found[-1].end:
            found.append(span)
    return found


def timing_warnings(trace: Trace) -> tuple[str, ...]:
    """Return what about the times of a trace cannot be as it says, a sentence each."""
    found, marked, launches = [], _marked(trace), trace.launches()
    inside, lost = len(marked) - len(_apart(marked)), share_without_launch(trace)
    if inside:
        found.append(
            f"{inside} of the {len(marked)} ranges that mark steps lie within others, and were not "
            "counted: give each step one range"
        )
    early = sum(work.begin < call.begin for call, work in launches)
    if early > len(launches) / 2:
        found.append(
            f"{early / len(launches):.0%} of the GPU's work begins before its launch: the clocks "
            "of host and GPU disagree, so that what the GPU waited for is uncertain"
        )
    if lost > FEW:
        found.append(
            f"{lost:.0%} of the GPU's work has no launch in the file: what the GPU waited for "
            "is uncertain, and work is counted in the step in which it ran"
        )
    return tuple(found)


def window(trace: Trace) -> tuple[int, float, float]:
    """Return how many steps there are, when the first began, when the last ended on the GPU.

    Where steps before the first one have filled the queue, it begins when the GPU is done with
    them: their work must not count as its own.

    Raises
    ------
    ValueError
        If the GPU did nothing in the steps.
    """
    steps = steps_of(trace)
    every = [*trace.ranges, *trace.operators, *trace.calls, *trace.work]
    begin = steps[0].begin if steps else min((s.begin for s in every), default=0.0)
    end = max((s.end for s in steps or every), default=0.0)
    launched = _launched(trace, begin, end) if steps else trace.work
    if not launched:
        raise ValueError(_nothing(trace))
    end, own = max(end, *(w.end for w in launched)), {id(w) for w in launched}
    first = min(w.begin for w in launched)
    before = max((w.end for w in trace.work if id(w) not in own and w.begin < first), default=begin)
    return max(1, len(steps)), max(begin, before) if before < end else begin, end


def share_without_launch(trace: Trace) -> float:
    """Return the part of the GPU's work whose launch is not in the file, although it should be.

    What ran before the first work that was launched in the file was launched before the profile.
    """
    known = {id(w) for _, w in trace.launches()}
    first = min((w.begin for w in trace.work if id(w) in known), default=-math.inf)
    later = [w for w in trace.work if w.begin >= first]
    return sum(id(w) not in known for w in later) / max(1, len(later))


def _launched(trace: Trace, begin: float, end: float) -> list[Work]:
    """The work of what the host did from begin to end; by its own time, where launches lack."""
    if share_without_launch(trace) > FEW:
        return [w for w in trace.work if begin <= w.begin < end]
    return trace.within(begin, end).work


def _nothing(trace: Trace) -> str:
    """Why there is no GPU work in the steps, as far as the trace tells."""
    if trace.work:
        return (
            "the GPU did nothing in the profiled steps, but did before or after: does the profiler "
            "stop before the GPU is done? Call torch.cuda.synchronize() in the last step"
        )
    others = ", ".join(name for name in trace.unread if re.search("_(runtime|events)$", name))
    if others:
        return f"the work is that of an accelerator which this tool does not read: {others}"
    if "cuda_profiler_range" in trace.unread:
        return (
            "it holds ranges of CUPTI's counters, no kernels: profile without experimental_config"
        )
    if trace.calls:
        return "the host calls CUDA, but the profile holds no kernels: the profiler saw no GPU"
    return (
        "the GPU did nothing in the profiled steps, so there is nothing that it waits for: is "
        "the model on it, and ProfilerActivity.CUDA among the activities?"
    )


def kind_of(w: Work, op: Span | None = None) -> str:
    """Return ``"computing"``, ``"copying"`` (to or from the host) or ``"other GPUs"``.

    ``op``, the operator that launched it, can tell of communication what a kernel's name does not.
    """
    if w.direction == "PtoP" or "Collective name" in w.args:
        return "other GPUs"
    launched_by = op.name if op else ""
    if w.kind == "kernel" and (COLLECTIVE.search(w.name) or LAUNCHING.search(launched_by)):
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


def host_states(trace: Trace) -> dict[str, float]:
    """Return the part of the steps in which the host is in the ``"loader"``, ``"blocked"`` …

    See :class:`utils.bounds.Evidence`.
    """
    _, begin, end = window(trace)
    layers = {
        "loader": loading(trace),
        "blocked": ends(call for call in trace.calls if WAITS.search(call.name)),
        "operators": ends([*trace.operators, *trace.calls]),
        "nothing": [(begin, end)],
    }
    parts = dict.fromkeys(layers, 0.0)
    for state, left, right in sweep(layers, begin, end):
        parts[state] += (right - left) / (end - begin)
    return parts


def launched_pauses(trace: Trace, begin: float) -> list[Stretch]:
    """Return the pauses of the GPU, from ``begin`` on, in which its next work had been launched.

    The work may have been launched before the pause began; or in the midst of it, if it then lay
    in the queue for far longer than a launch takes.
    """
    asked = {id(w): call.end for call, w in trace.launches()}
    found, at = [], begin
    for w in sorted(trace.work, key=lambda w: w.begin):
        launched = asked.get(id(w), math.inf)
        if launched <= at < w.begin:
            found.append((at, w.begin))
        elif at < launched < w.begin - OVERDUE:
            found.append((launched, w.begin))
        at = max(at, w.end)
    return found
