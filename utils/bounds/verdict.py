"""The verdict: which owner has most of the step, in words or as JSON, and what to do next."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from utils.bounds.evidence import BOUNDS, MAJORITY, OWNERS, Evidence, examine, one_rank
from utils.bounds.owners import label, window
from utils.gpus import GPU
from utils.profile import Trace

# Of a roof: what kernels that it limits reach together. Right answers of the planted steps are from
# 52% on; lgamma, which neither roof explains, has 35%, softmax over rows of odd length 23%.
CLOSE = 0.4
CAPTURING = re.compile("BeginCapture|EndCapture|GraphInstantiate")

# What to do, and the chapter of the book that shows it.
NEXT = {
    "data": "train on one batch that stays on the GPU, and time it; then worker processes, "
    "decoding once, pinned memory (chapters 6.2, 1.7 and 1.5)",
    "python": "time the step with twice the batch: if it takes as long, larger batches, fewer "
    "operators or a CUDA graph will help (chapter 6.2); lines that wait are in chapter 6.3",
    "memory": "halve the bytes, and time it: 16 bits (chapter 3.2), fused kernels (chapter 6.2)",
    "arithmetic": "halve the operations, and time it: TF32 or bfloat16 on tensor cores (chapter "
    "3.1), then a smaller model or more GPUs (chapter 6.2)",
    "other GPUs": "train under no_sync(), and time it; diagnose the rank that spends least in "
    "NCCL, for it may be late (chapters 6.2, 5.2 and 5.3)",
    "allocator": "look for empty_cache(), for sizes that change, for memory that is nearly full: "
    "PyTorch's cache should answer, not the driver (chapter 2.2). In a program's first steps it is "
    "start-up: profile later ones",
    "slow CUDA call": "profile later steps, after a warm-up: schedule(wait=10, warmup=40, "
    "active=3, repeat=1) (chapter 6.2). If it stays, the call waits for something (chapter 6.3)",
    "CUDA graph": "profile the step before it is captured (chapter 6.2)",
    "silent host": 'give the ranges that prepare data the name "data" (chapter 6.2)',
    "idle, already launched": "profile more steps; look in Perfetto at what the next kernel waits "
    "for: another stream, a function on the host, another process (chapters 6.1 and 6.3)",
    "neither roof": "look at the longest kernels: small ones can be fused, ncu says what slows "
    "large ones (chapter 6.1)",
}


@dataclass(frozen=True)
class Diagnosis:
    """One of :data:`BOUNDS`, or ``"allocator"``, or ``"unclear"``; with evidence, and in words."""

    bound: str
    evidence: Evidence
    reason: str
    next: str = ""

    def __str__(self) -> str:
        return f"{label(self.bound)}: {self.reason}"


def diagnose(
    trace: Trace, *, wall: float | None = None, gpu: GPU | None = None, rank: int | None = None
) -> Diagnosis:
    """Name the bound that owns at least half of the step; ``"unclear"`` if none does.

    Parameters
    ----------
    trace : Trace
        Of steps marked by the profiler's schedule, or by ranges called ``"step"``; without either,
        the whole trace is one step. Preparing data is noticed in a ``DataLoader``, and in ranges
        called ``"data"``.
    wall : float, optional
        µs that a step takes *without* the profiler. That slows the host, so what it added to the
        step is taken off Python's share or, if that is shorter, off all of the host's in
        proportion, with a warning.
    gpu : GPU, optional
        Whose peaks and bandwidth count; by default those of the trace's device.
    rank : int, optional
        Which process and GPU to look at, if the file merges several; by default the one whose GPU
        works most.

    Raises
    ------
    ValueError
        If the GPU did nothing, so that there is nothing that it could be waiting for; if there is
        no such rank; if ``wall`` is not above 0.
    """
    seen = examine(trace, wall=wall, gpu=gpu, rank=rank)
    first, second = sorted(OWNERS, key=lambda owner: -seen.shares[owner])[:2]
    if seen.shares[first] < MAJORITY:
        rest = f"{label(second)} {seen.shares[second]:.0%}"
        why = f"the largest owner, {label(first)}, has {_of_step(seen, first)}; {rest}"
        return Diagnosis("unclear", seen, why, f"for {label(first)}: {next_step(first, seen)}")
    doubt = _doubt(one_rank(trace, rank)[0], seen, first)
    if doubt:
        return Diagnosis("unclear", seen, *doubt)
    bound = first if first in (*BOUNDS, "allocator") else "unclear"
    return Diagnosis(bound, seen, _reason(seen, first), next_step(first, seen))


def _of_step(seen: Evidence, owner: str) -> str:
    what = f"a step of {seen.wall:,.0f} µs"
    if not seen.marked:
        what = f"the whole profile ({seen.wall:,.0f} µs, no steps marked)"
    return f"{seen.shares[owner]:.0%} of {what}"


def _doubt(trace: Trace, seen: Evidence, first: str) -> tuple[str, str] | None:
    """Why the largest owner does not tell what the step waits for, and what to do; or None."""
    of_step = _of_step(seen, first)
    if first in ("silent host", "python") and not trace.calls:
        return (
            f"the GPU idles for {of_step}, and the profile has no CUDA calls that would say why",
            "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (chapter 6.1)",
        )
    if first in ("silent host", "python", "slow CUDA call"):
        _, begin, end = window(trace)
        if any(CAPTURING.search(c.name) and begin <= c.begin < end for c in trace.calls):
            return (
                f"the GPU idles for {of_step}, in which the host captures a CUDA graph: what is "
                "launched meanwhile does not run",
                "profile steps that replay the graph, or do without it (chapter 6.2)",
            )
    if first == "neither roof" and seen.blind:
        return f"the GPU works for {of_step}, but {seen.blind}", _next_for_blind(seen)
    impossible = seen.beyond * seen.busy
    if first in ("memory", "arithmetic") and seen.shares[first] - impossible < MAJORITY:
        return (
            f"{of_step} seems to be {first}'s, but {seen.beyond:.0%} of the kernels' time is in "
            "operators that would need more than 100% of a roof: their shapes tell of more work "
            "than they did",
            "look with ncu at what the longest kernels really read and write (chapter 6.1)",
        )
    reached, roof = seen.of_bandwidth, "bandwidth"
    if first == "arithmetic":
        reached, roof = seen.of_peak, "peak"
    if first in ("memory", "arithmetic") and reached < CLOSE:
        return (
            f"{of_step} in kernels that are nearer to {first}'s roof than to the other, but reach "
            f"only {reached:.0%} of the {roof}: something else slows them",
            "look with ncu at the longest kernels (chapter 6.1); sizes that are no multiple of 8, "
            "layouts, and operators with many instructions a number are usual",
        )
    return None


def _reason(seen: Evidence, first: str) -> str:
    of_step = _of_step(seen, first)
    kernels = f"{seen.kernels:.0f} kernel{'s' * (seen.kernels != 1)} of {seen.kernel:.1f} µs"
    copying = f"{seen.exposed_copies:.0%} for the copy itself"
    if seen.to_host > max(0.05, seen.exposed_copies / 2):
        copying = f"{seen.to_host:.0%} for copies to the host"
    whole = "step" if seen.marked else "profile"
    calls = f"{_parts([*seen.calls.items()][:3])} of the {whole}"
    silent = f"; it is in {_parts(seen.silent_in.items())}" if seen.silent_in else ""
    unlaunched = ""
    if seen.unlaunched > MAJORITY:
        unlaunched = "; no operator launched most of them, so that nothing is known of their work"
    return {
        "data": f"the GPU waits {of_step} for data, {copying}",
        "python": f"the GPU waits {of_step} for the host, which launches {kernels}",
        "memory": f"{of_step} in kernels that move bytes, at {seen.of_bandwidth:.0%} of the "
        "bandwidth",
        "arithmetic": f"{of_step} in kernels that calculate, at {seen.of_peak:.0%} of the peak",
        "other GPUs": f"{of_step} in NCCL, with nothing to compute beside it: communication, "
        "or waiting for the slowest rank",
        "allocator": f"the GPU waits {of_step} for the driver's memory: {calls}",
        "slow CUDA call": f"the GPU idles for {of_step} while the host is in CUDA calls that last "
        f"longer than a millisecond: {calls}. Start-up, or a wait for something unrecorded",
        "CUDA graph": f"{of_step} in {kernels} of a CUDA graph: a profile does not tell their work",
        "silent host": f"for {of_step} the host makes no CUDA call{silent}",
        "idle, already launched": f"for {of_step} the GPU is idle, up to {seen.pause:,.0f} µs "
        "at a time, although its next work has been launched: does a stream wait for another, a "
        "graph for the host, or the GPU for work that the profile did not record?",
        "neither roof": f"{of_step} in {kernels}, far from either roof: too short, too "
        f"narrow, or of a kind whose work the profile does not tell{unlaunched}",
    }[first]


def _parts(named: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {part:.0%}" for name, part in named)


def next_step(owner: str, seen: Evidence) -> str:
    """Return what to do if ``owner`` has most of the step: a test or a remedy, and its chapter."""
    if owner == "silent host" and not seen.silent_in:
        return (
            f"{NEXT[owner]}, or profile with_stack=True, which says where Python is (chapter 6.1)"
        )
    return NEXT[owner]


def warnings_about(seen: Evidence) -> list[str]:
    """Return what makes a diagnosis doubtful, a sentence each."""
    found = list(seen.notes)
    if seen.blind and seen.shares["neither roof"] > 0.1:
        found.append(f"what limits the kernels is not known: {seen.blind}")
    if seen.beyond > 0.05:
        found.append(
            f"{seen.beyond:.0%} of the kernels' time is in operators that would need more than "
            "100% of a roof: they read less than their shapes say (rows of a table), or from the "
            "GPU's cache"
        )
    beside = seen.nccl - seen.shares["other GPUs"]
    if seen.nccl > MAJORITY > seen.shares["other GPUs"]:
        found.append(
            f"NCCL runs for {seen.nccl:.0%} of the step, for {beside:.0%} beside other kernels, "
            "which own that time here: train under no_sync() to see what communication costs"
        )
    return found


def _next_for_blind(seen: Evidence) -> str:
    if "shapes" in seen.blind:
        return "profile again, with record_shapes=True (chapter 6.1)"
    if not is_nvidia(seen.device):
        return "look with rocprof at the longest kernels; no AMD card's peaks are listed here"
    return "name the card whose peaks count with --gpu, if one of its kind is listed"


def is_nvidia(device: str | None) -> bool:
    """Return False for what can only be another maker's card."""
    return not re.search(r"AMD|Radeon|Instinct|\bgfx\d", device or "")


# --- in words -------------------------------------------------------------------------------------

HOST = {
    **{"loader": "loader", "blocked": "blocked", "nothing": "nothing"},
    "operators": "operators and calls",
}


def report(found: Diagnosis) -> str:
    """Return a diagnosis with its evidence and the next step, as the command prints it."""
    seen = found.evidence
    shares = sorted(seen.shares.items(), key=lambda item: -item[1])
    lines = [
        str(found),
        "owners of the step: "
        + "; ".join(f"{label(owner)} {share:.1%}" for owner, share in shares if share >= 0.0005),
        "host: " + ", ".join(f"{HOST[state]} {part:.1%}" for state, part in seen.host.items()),
        f"GPU: computes {seen.busy:.1%}, only NCCL {seen.exposed_nccl:.1%}, only copies "
        f"{seen.exposed_copies:.1%}; {seen.kernels:.0f} kernels a step, {seen.kernel:.1f} µs each",
        f"kernels: {seen.products:.1%} in products; {seen.of_peak:.1%} of the peak where that is "
        f"the roof, {seen.of_bandwidth:.1%} of the bandwidth where that is",
    ]
    lines += [f"warning: {text}" for text in warnings_about(seen)]
    return "\n".join([*lines, f"next: {found.next}"])


def as_json(found: Diagnosis) -> str:
    """Return the same as one JSON object on one line."""
    seen = found.evidence
    evidence = {name: of for name, of in vars(seen).items() if name not in ("shares", "notes")}
    said: dict[str, Any] = {"bound": found.bound, "reason": found.reason, "shares": seen.shares}
    said |= {"evidence": evidence, "warnings": warnings_about(seen), "next": found.next}
    return json.dumps(said, ensure_ascii=False, allow_nan=False)
