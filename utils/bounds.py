"""What does a training step wait for? Every microsecond of a profile gets one owner::

    diagnosis = diagnose(load("trace.json.gz"))
    print(diagnosis)  # python: the GPU waits 81% of a step of 650 µs for the host, …

For a trace of your own: ``python -m utils.bounds trace.json``. Chapter 6.2 explains the method; the
appendix on the classifier's trials plants bottlenecks and shows where it fails. The profile is of
one process with one GPU, taken with ``record_shapes=True``.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from utils.hardware import GPU, GPUS, lookup
from utils.roofs import roofs
from utils.stretches import ends, kind_of, launched_pauses, loading, owners, sweep, window
from utils.trace import Trace, TraceError, busy, load

BOUNDS = ("data", "python", "memory", "arithmetic", "other GPUs")
# The last three name no bound.
OWNERS = (*BOUNDS, "silent host", "idle, already launched", "neither roof")

MAJORITY = 0.5  # of the step: then no other owner has as much


@dataclass(frozen=True)
class Evidence:
    """What a profile shows of a step; times in µs, the rest as parts of 1.

    Attributes
    ----------
    steps : int
        How many steps were profiled.
    wall : float
        What one took.
    shares : dict
        Part of it that each of :data:`OWNERS` has; they add up to 1.
    busy, exposed_nccl, exposed_copies : float
        Part in which the GPU computes; else communicates; else copies to or from the host.
    nccl : float
        Part in which it communicates, whether it computes beside that or not.
    pause : float
        The longest that the GPU was idle although its next work had been launched.
    host : dict
        Part in which the host is in the ``"loader"``, else ``"blocked"`` in a CUDA call that waits
        or copies, else in ``"operators"`` and launches, else in ``"nothing"`` that was recorded.
    products, in_graphs : float
        Part of the kernels' time that is spent in products, convolutions and attention; in kernels
        of CUDA graphs, whose work a profile does not tell.
    of_peak, of_bandwidth : float
        Part of the arithmetic peak that those kernels reach whose roof it is; of the bandwidth.
    beyond : float
        Part of the kernels' time in operators of which more was counted than the GPU can do.
    kernels, kernel : float
        Kernels a step, and their mean duration.
    """

    steps: int
    wall: float
    shares: dict[str, float]
    busy: float
    exposed_nccl: float
    exposed_copies: float
    nccl: float
    pause: float
    host: dict[str, float]
    products: float
    in_graphs: float
    of_peak: float
    of_bandwidth: float
    beyond: float
    kernels: float
    kernel: float


@dataclass(frozen=True)
class Diagnosis:
    """One of :data:`BOUNDS` or ``"unclear"``, with the evidence and the reason in words."""

    bound: str
    evidence: Evidence
    reason: str

    def __str__(self) -> str:
        return f"{self.bound}: {self.reason}"


def diagnose(trace: Trace, *, wall: float | None = None, gpu: GPU | None = None) -> Diagnosis:
    """Name the bound that owns at least half of the step; ``"unclear"`` if none does.

    Parameters
    ----------
    trace : Trace
        Of steps marked by the profiler's schedule, or by ranges called ``"step"``; without either,
        the whole trace is one step. Preparing data is noticed in a ``DataLoader``, and in ranges
        called ``"data"``.
    wall : float, optional
        µs that a step takes *without* the profiler. That slows the host, so what it added to the
        step is taken off Python's share.
    gpu : GPU, optional
        Whose peaks and bandwidth count; by default those of the trace's device.

    Raises
    ------
    ValueError
        If the GPU did nothing: then there is nothing that it could be waiting for.
    """
    gpu = gpu or lookup(trace.device or "")
    seen = examine(trace, wall=wall, gpu=gpu)
    first, second = sorted(OWNERS, key=lambda owner: -seen.shares[owner])[:2]
    of_step = f"{seen.shares[first]:.0%} of a step of {seen.wall:,.0f} µs"
    kernels = f"{seen.kernels:.0f} kernel{'s' * (seen.kernels != 1)} of {seen.kernel:.1f} µs"
    if seen.shares[first] < MAJORITY:
        rest = f"{second} {seen.shares[second]:.0%}"
        return Diagnosis("unclear", seen, f"the largest owner, {first}, has {of_step}; {rest}")
    if first == "neither roof" and gpu is None:
        reason = f"the GPU works, but utils.hardware does not list {trace.device}: name one (--gpu)"
    elif first == "neither roof" and not _has_shapes(trace):
        reason = "the GPU works, but the profile has no shapes: record_shapes=True"
    elif first == "neither roof" and seen.in_graphs > MAJORITY:
        reason = (
            f"{of_step} in {kernels} of a CUDA graph: a profile does not tell their work. "
            "Profile the step before it is captured"
        )
    else:
        copying, bandwidth, peak = seen.exposed_copies, seen.of_bandwidth, seen.of_peak
        reason = {
            "data": f"the GPU waits {of_step} for data, {copying:.0%} for the copy itself",
            "python": f"the GPU waits {of_step} for the host, which launches {kernels}",
            "memory": f"{of_step} in kernels that move bytes, at {bandwidth:.0%} of the bandwidth",
            "arithmetic": f"{of_step} in kernels that calculate, at {peak:.0%} of the peak",
            "other GPUs": f"{of_step} in NCCL, with nothing to compute beside it",
            "silent host": f"for {of_step} the host makes no CUDA call: give ranges that "
            'prepare data the name "data", or see what Python does with py-spy',
            "idle, already launched": f"for {of_step} the GPU is idle, up to {seen.pause:,.0f} µs "
            "at a time, although its next work has been launched: does a stream wait for another, "
            "or a graph for the host? Is another process using the GPU?",
            "neither roof": f"{of_step} in {kernels}, far from either roof: too short, too "
            "narrow, or of a kind whose work the profile does not tell",
        }[first]
    return Diagnosis(first if first in BOUNDS else "unclear", seen, reason)


def examine(trace: Trace, *, wall: float | None = None, gpu: GPU | None = None) -> Evidence:
    """Return the evidence in ``trace``; parameters and errors are those of :func:`diagnose`."""
    gpu = gpu or lookup(trace.device or "")
    steps, begin, end = window(trace)
    time = dict.fromkeys(("computing", "copying", *OWNERS), 0.0)
    for owner, left, right in owners(trace):
        time[owner] += right - left
    profiler = max(0.0, end - begin - steps * wall) if wall else 0.0
    time["python"] = max(0.0, time["python"] - profiler)
    total = sum(time.values())
    inside = [w for w in trace.work if w.end > begin and w.begin < end]
    work = [w for w in inside if kind_of(w) == "computing"]
    kinds, facts = roofs(trace, work, gpu)
    shares = {owner: time[owner] / total for owner in OWNERS}
    for kind, part in kinds.items():
        shares[kind] += part * time["computing"] / total
    shares["data"] += time["copying"] / total
    waits = [c for c in trace.calls if re.search("Synchronize|Memcpy", c.name)]
    active = [*trace.operators, *trace.calls]
    layers = {"loader": loading(trace), "blocked": ends(waits), "operators": ends(active)}
    host = dict.fromkeys((*layers, "nothing"), 0.0)
    for state, left, right in sweep({**layers, "nothing": [(begin, end)]}, begin, end):
        host[state] += (right - left) / (end - begin)
    kernels = [w.duration for w in work if w.kind == "kernel"]
    pauses = [b - a for a, b in launched_pauses(trace) if begin <= a and b <= end]
    return Evidence(
        steps=steps,
        wall=total / steps,
        shares=shares,
        busy=time["computing"] / total,
        exposed_nccl=time["other GPUs"] / total,
        exposed_copies=time["copying"] / total,
        nccl=busy(w for w in inside if kind_of(w) == "other GPUs") / total,
        pause=max(pauses, default=0.0),
        host=host,
        kernels=len(kernels) / steps,
        kernel=sum(kernels) / max(1, len(kernels)),
        **facts,
    )


def warnings_about(seen: Evidence) -> list[str]:
    """Return what makes a diagnosis doubtful, a sentence each."""
    found = []
    if seen.beyond > 0.05:
        found.append(
            f"{seen.beyond:.0%} of the kernels' time is in operators that would need more than "
            "100% of a roof: they read less than their shapes say (rows of a table), or from the "
            "GPU's cache"
        )
    if seen.nccl > MAJORITY > seen.shares["other GPUs"]:
        found.append(
            f"NCCL runs for {seen.nccl:.0%} of the step, mostly beside other kernels, which own "
            "that time here: train under no_sync() to see what communication costs"
        )
    return found


def _has_shapes(trace: Trace) -> bool:
    """False for a profile with operators, but without the shapes of what they worked on."""
    return not trace.operators or any("Input Dims" in op.args for op in trace.operators)


# --- from a terminal -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Diagnose a trace; return the exit status, 2 if there is nothing to diagnose."""
    parser = argparse.ArgumentParser(
        prog="python -m utils.bounds", description="Say what the steps of a profile wait for."
    )
    names = {gpu.name: gpu for gpu in GPUS}
    parser.add_argument("trace", metavar="TRACE.json[.gz]", help="Chrome trace of torch.profiler")
    parser.add_argument("--wall-us", type=float, help="µs that a step takes without the profiler")
    parser.add_argument("--gpu", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    options = parser.parse_args(arguments)
    try:
        found = diagnose(load(options.trace), wall=options.wall_us, gpu=names.get(options.gpu))
    except (TraceError, ValueError) as error:
        named = isinstance(error, TraceError)  # its message names the file
        print(error if named else f"{options.trace}: {error}", file=sys.stderr)
        return 2
    print(report(found))
    return 0


def report(found: Diagnosis) -> str:
    """Return a diagnosis with its evidence, as the command prints it."""
    seen = found.evidence
    shares = sorted(seen.shares.items(), key=lambda item: -item[1])
    lines = [
        str(found),
        "owners of the step: " + "; ".join(f"{owner} {share:.1%}" for owner, share in shares),
        "host: " + ", ".join(f"{state} {part:.1%}" for state, part in seen.host.items()),
        f"GPU: computes {seen.busy:.1%}, only NCCL {seen.exposed_nccl:.1%}, only copies "
        f"{seen.exposed_copies:.1%}; {seen.kernels:.0f} kernels a step, {seen.kernel:.1f} µs each",
        f"kernels: {seen.products:.1%} in products; {seen.of_peak:.1%} of the peak where that is "
        f"the roof, {seen.of_bandwidth:.1%} of the bandwidth where that is",
    ]
    return "\n".join([*lines, *(f"warning: {text}" for text in warnings_about(seen))])


if __name__ == "__main__":
    sys.exit(main())
