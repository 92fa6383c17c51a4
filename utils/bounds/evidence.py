"""What a profile shows of a step, in numbers: who owns it, and what the owners were doing.

While the GPU waits, the host is in a CUDA call, a function of Python's, an operator or a range.
"""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise

from utils.bounds.owners import (
    ALLOCATING,
    SILENCE,
    Stretch,
    host_states,
    kind_of,
    label,
    launched_pauses,
    owners,
    steps_of,
    timing_warnings,
    window,
)
from utils.bounds.roofline import roofs
from utils.gpus import GPU, lookup
from utils.profile import Span, Trace, Work, busy, nested

BOUNDS = ("data", "python", "memory", "arithmetic", "other GPUs")
# The others name no bound.
OWNERS = (
    *BOUNDS,
    *("allocator", "slow CUDA call", "CUDA graph", "silent host"),
    *("idle, already launched", "neither roof"),
)

BRIEF = 0.2  # µs: no kernel is shorter
MAJORITY = 0.5  # of the step: then no other owner has as much
SLOWED = ("python", "data", "silent host")  # whose time the profiler can make longer
# In this book's traces it made Python take at most 2.1 times as long; this is too much.
BEYOND_BELIEF = 4
SAME = 1.05  # two measurements of one step may differ by a few percent


@dataclass(frozen=True)
class Evidence:
    """What a profile shows of a step; times in µs, the rest as parts of 1.

    Attributes
    ----------
    steps : int
        How many steps were profiled.
    marked : bool
        False if the profile marks no steps, so that all of it is taken for one.
    wall, profiled : float
        What one took, without and with what the profiler added to it.
    shares : dict
        Part of it that each of :data:`OWNERS` has; they add up to 1.
    busy, exposed_nccl, exposed_copies, to_host : float
        Part in which the GPU computes; else communicates; else copies to or from the host; how much
        of the copies goes to the host.
    nccl : float
        Part in which it communicates, whether it computes beside that or not.
    pause : float
        The longest that the GPU was idle although its next work had been launched.
    host : dict
        Part in which the host is in the ``"loader"``, else ``"blocked"`` in a CUDA call that waits
        or copies, else in ``"operators"`` and launches, else in ``"nothing"`` that was recorded.
    products, unlaunched : float
        Part of the kernels' time that is spent in products, convolutions and attention; in kernels
        that no operator launched.
    of_peak, of_bandwidth : float
        Part of the arithmetic peak that those kernels reach whose roof it is; of the bandwidth.
    beyond : float
        Part of the kernels' time in operators of which more was counted than the GPU can do.
    kernels, kernel : float
        Kernels a step, and their mean duration.
    calls : dict
        Part of the step in each CUDA call for which the GPU waits idly.
    silent_in : dict
        What the host was in while it was silent, as parts of that time: Python functions, if the
        profile has stacks, else operators, else ranges.
    device : str or None
        Name of the GPU in the profile.
    blind : str
        Why nothing is known of what limits the kernels; empty if something is.
    notes : tuple of str
        What about the profile makes the rest doubtful, a sentence each.
    """

    steps: int
    marked: bool
    wall: float
    profiled: float
    shares: dict[str, float]
    busy: float
    exposed_nccl: float
    exposed_copies: float
    to_host: float
    nccl: float
    pause: float
    host: dict[str, float]
    products: float
    unlaunched: float
    of_peak: float
    of_bandwidth: float
    beyond: float
    kernels: float
    kernel: float
    calls: dict[str, float] = field(default_factory=dict)
    silent_in: dict[str, float] = field(default_factory=dict)
    device: str | None = None
    blind: str = ""
    notes: tuple[str, ...] = ()

    def largest(self, count: int = 2) -> str:
        """Return the owners with the largest shares in words: ``"data 83%, Python 12%"``."""
        shares = sorted(self.shares.items(), key=lambda item: -item[1])[:count]
        return ", ".join(f"{label(owner)} {share:.0%}" for owner, share in shares)


def examine(
    trace: Trace, *, wall: float | None = None, gpu: GPU | None = None, device: int | None = None
) -> Evidence:
    """Return the evidence in ``trace``; parameters and errors are those of :func:`diagnose`."""
    if wall is not None and not 0 < wall < math.inf:
        raise ValueError(f"a step takes a number of µs above 0 without the profiler, not {wall}")
    trace, notes = one_gpu(trace, device)
    gpu = gpu or lookup(trace.device or "")
    steps, begin, end = window(trace)
    stretches = owners(trace)
    time = dict.fromkeys(("computing", "copying", *OWNERS), 0.0)
    for owner, left, right in stretches:
        time[owner] += right - left
    profiled = sum(time.values())
    if wall:
        time, doubts = without_profiler(time, steps, wall)
        notes += doubts
    total = sum(time.values())

    work: dict[str, list[Work]] = {"computing": [], "copying": [], "other GPUs": []}
    for w in trace.work:
        if w.end > begin and w.begin < end:
            work[kind_of(w, trace.operator_of(w))].append(w)
    kernels = [w.duration for w in work["computing"] if w.kind == "kernel"]
    if kernels and sum(kernels) < BRIEF * len(kernels):
        raise ValueError(
            f"its kernels take {sum(kernels) / len(kernels):.2g} µs each, and no GPU is that fast: "
            "are the times of the file in µs?"
        )
    kinds, facts = roofs(trace, work["computing"], gpu)
    shares = {owner: time[owner] / total for owner in OWNERS}
    for kind, part in kinds.items():
        shares[kind] += part * time["computing"] / total
    shares["data"] += time["copying"] / total
    copied = sum(w.duration for w in work["copying"]) or 1.0
    back = sum(w.duration for w in work["copying"] if w.direction == "DtoH")

    pauses = [b - a for a, b in launched_pauses(trace, begin) if b <= end]
    called = [(a, b) for owner, a, b in stretches if owner in ("allocator", "slow CUDA call")]
    silent = [(a, b) for owner, a, b in stretches if owner == "silent host"]
    return Evidence(
        steps=steps,
        marked=bool(steps_of(trace)),
        wall=total / steps,
        profiled=profiled / steps,
        shares=shares,
        busy=time["computing"] / total,
        exposed_nccl=time["other GPUs"] / total,
        exposed_copies=time["copying"] / total,
        to_host=time["copying"] / total * back / copied,
        nccl=busy(work["other GPUs"]) / total,
        pause=max(pauses, default=0.0),
        host=host_states(trace),
        kernels=len(kernels) / steps,
        kernel=sum(kernels) / max(1, len(kernels)),
        calls={name: us / total for name, us in calls_in(trace, called).items()},
        silent_in=host_was_in(trace, silent),
        device=trace.device,
        blind=_blind(trace, gpu),
        notes=notes + timing_warnings(trace),
        **facts,
    )


def one_gpu(trace: Trace, device: int | None = None) -> tuple[Trace, tuple[str, ...]]:
    """Return the trace with the work of one GPU, and a sentence if there are others.

    Without ``device`` it is the one that works most.

    Raises
    ------
    ValueError
        If that GPU did nothing; the message lists those that worked.
    """
    gpus = trace.gpus
    if device is not None and device not in gpus:
        worked = ", ".join(map(str, gpus)) or "none"
        raise ValueError(f"GPU {device} did nothing here; those that worked: {worked}")
    if len(gpus) < 2:
        return trace, ()
    parts = {gpu: trace.of_gpu(gpu) for gpu in gpus}
    chosen = max(gpus, key=lambda gpu: busy(parts[gpu].work)) if device is None else device
    said = "" if device is not None else ", the one that works most (--device N takes another)"
    named = ", ".join(map(str, gpus))
    return parts[chosen], (f"several GPUs in this file ({named}): this is GPU {chosen}{said}",)


def _blind(trace: Trace, gpu: GPU | None) -> str:
    """Why the kernels have no roofs, if they have none."""
    if gpu is None and not trace.device:
        return "the profile does not name its GPU, so that there are no peaks to compare with"
    if gpu is None:
        return f"utils.gpus does not list {trace.device}"
    if trace.operators and not any("Input Dims" in op.args for op in trace.operators):
        return "the profile has no shapes: record_shapes=True"
    return ""


def without_profiler(
    time: dict[str, float], steps: int, wall: float
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return each owner's time without the profiler; and a sentence where that is a guess.

    Launching operators is what it slows most, so Python pays. Where that would have had to make
    Python :data:`BEYOND_BELIEF` times slower, it slowed a loader, too, or other code of the host,
    and nobody knows which by how much: then all of the host's owners are shortened alike.

    Parameters
    ----------
    time : dict
        µs of each owner in all profiled steps.
    steps : int
        How many there are.
    wall : float
        µs that one takes without the profiler.
    """
    added = max(0.0, sum(time.values()) - steps * wall)
    python, host = time["python"], sum(time[owner] for owner in SLOWED)
    if added <= python * (1 - 1 / BEYOND_BELIEF):
        return {**time, "python": python - added}, ()
    left = max(0.0, 1 - added / host) if host else 0.0
    found = {owner: us * left if owner in SLOWED else us for owner, us in time.items()}
    total = sum(found.values())
    said = (
        f"the profiler added {added / steps:,.0f} µs to a step, too much for Python's "
        f"{python / steps:,.0f} µs alone: "
    )
    if total > SAME * steps * wall:
        said += (
            f"it slowed more than the host, and the shares are of {total / steps:,.0f} µs, not of "
            f"the {wall:,.0f} µs that a step takes without it"
        )
    elif host - python > (SAME - 1) * steps * wall:
        said += (
            "what the host does for data, or in silence, was shortened in proportion with Python's "
            "share. That is a guess: trust a test with the stopwatch"
        )
    else:
        said = ""
    return found, (said,) * bool(said)


ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # differs from object to object
STEP = re.compile(r"ProfilerStep#|step$")  # the whole step says nothing of a part


def calls_in(trace: Trace, stretches: list[Stretch]) -> dict[str, float]:
    """Return the µs of ``stretches`` in each call that is long or asks for memory, most first."""
    calls = [c for c in trace.calls if c.duration > SILENCE or ALLOCATING.search(c.name)]
    return dict(_time_in(stretches, ((c.begin, c.end, c.name) for c in calls)).most_common())


def host_was_in(trace: Trace, stretches: list[Stretch], most: int = 3) -> dict[str, float]:
    """Return what the host was in, innermost, as parts of ``stretches``: at most ``most`` names.

    Of the thread that launches most of the GPU's work, since other threads may wait all the time:
    Python's functions if the profile was taken ``with_stack``, else operators, else ranges.
    """
    total = sum(end - begin for begin, end in stretches)
    launching = Counter(call.thread for call, _ in trace.launches()) or Counter([0])
    thread = launching.most_common(1)[0][0]
    for spans in (trace.python, trace.operators, trace.ranges):
        mine = [s for s in spans if s.thread == thread and not STEP.match(s.name)]
        found = _time_in(stretches, _innermost(mine))
        if total and sum(found.values()) > 0.2 * total:
            parts = {name: us / total for name, us in found.most_common(most)}
            return {name: part for name, part in parts.items() if part > 0.05}
    return {}


def _innermost(spans: list[Span]) -> Iterator[tuple[float, float, str]]:
    """The moments of one thread in which each span is the innermost one: which began last.

    A function of C has no place in a file, so its caller's name stands beside it.
    """
    waiting, going = [], []  # going is a heap, the innermost first
    for span, around in nested(spans):
        name = ADDRESS.sub("", span.name)
        if name.startswith("<built-in") and around:
            name = f"{name} in {ADDRESS.sub('', around[-1].name)}"
        waiting.append((-span.begin, span.end, name))
    waiting.reverse()
    for begin, end in pairwise(sorted({time for s in spans for time in (s.begin, s.end)})):
        while waiting and -waiting[-1][0] <= begin:
            heappush(going, waiting.pop())
        while going and going[0][1] <= begin:
            heappop(going)
        if going:
            yield begin, end, going[0][2]


def _time_in(stretches: list[Stretch], moments: Iterable[tuple[float, float, str]]) -> Counter[str]:
    """How long the moments of each name lie in the stretches, which do not overlap."""
    stretches, found = sorted(stretches), Counter()
    ends = [end for _, end in stretches]
    for begin, end, name in moments:
        for i in range(bisect_right(ends, begin), len(ends)):
            left, right = stretches[i]
            if left >= end:
                break
            found[name] += min(end, right) - max(begin, left)
    return +found
