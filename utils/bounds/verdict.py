"""The verdict: which owner has most of the step, in words or as JSON, and what to do next."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.bounds.evidence import BOUNDS, MAJORITY, OWNERS, Evidence, examine, one_gpu
from utils.bounds.owners import label, window
from utils.gpus import GPU
from utils.profile import Trace

# Of a roof: what kernels that it limits reach together. Right answers of the planted steps are from
# 52% on; lgamma, which neither roof explains, has 35%, softmax over rows of odd length 23%.
CLOSE = 0.4
NAMES = {"operators": "operators and calls"}  # of what the host is in, where they say too little
CAPTURING = re.compile("BeginCapture|EndCapture|GraphInstantiate")

# Of each owner and of each doubt: what is said of it, and what to do, with the chapter of the book
# that shows it; and the warnings.
SAID = json.loads(Path(__file__).with_name("said.json").read_text(encoding="utf-8"))
NEXT = {owner: said["next"] for owner, said in SAID["owners"].items()}
STACKS = ", or profile with_stack=True, which says where Python is (chapter 6.1)"


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
    trace: Trace, *, wall: float | None = None, gpu: GPU | None = None, device: int | None = None
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
    device : int, optional
        The number of the GPU to look at, if several worked; by default the one that works most.

    Raises
    ------
    ValueError
        If the GPU did nothing, so that there is nothing that it could be waiting for; if there is
        none of this number; if ``wall`` is not above 0.
    """
    seen = examine(trace, wall=wall, gpu=gpu, device=device)
    first, second = sorted(OWNERS, key=lambda owner: -seen.shares[owner])[:2]
    if seen.shares[first] < MAJORITY:
        rest = f"{label(second)} {seen.shares[second]:.0%}"
        why = f"the largest owner, {label(first)}, has {_of_step(seen, first)}; {rest}"
        return Diagnosis("unclear", seen, why, f"for {label(first)}: {next_step(first, seen)}")
    doubt = _doubt(one_gpu(trace, device)[0], seen, first)
    if doubt:
        said = SAID["doubts"][doubt]
        return Diagnosis("unclear", seen, _filled(said["reason"], seen, first), said["next"])
    bound = first if first in (*BOUNDS, "allocator") else "unclear"
    reason = _filled(SAID["owners"][first]["reason"], seen, first)
    return Diagnosis(bound, seen, reason, next_step(first, seen))


def _of_step(seen: Evidence, owner: str) -> str:
    what = f"a step of {seen.wall:,.0f} µs"
    if not seen.marked:
        what = f"the whole profile ({seen.wall:,.0f} µs, no steps marked)"
    return f"{seen.shares[owner]:.0%} of {what}"


def _doubt(trace: Trace, seen: Evidence, first: str) -> str | None:
    """Why the largest owner does not tell what the step waits for, as ``said.json`` has it."""
    waits_for_host = first in ("silent host", "python")
    if waits_for_host and not trace.calls:
        return "no calls"
    if waits_for_host or first == "slow CUDA call":
        _, begin, end = window(trace)
        if any(CAPTURING.search(c.name) and begin <= c.begin < end for c in trace.calls):
            return "capture"
    if first == "neither roof" and seen.blind:
        unknown = "unlisted GPU" if is_nvidia(seen.device) else "another maker's GPU"
        return "no shapes" if "shapes" in seen.blind else unknown
    reached = {"memory": seen.of_bandwidth, "arithmetic": seen.of_peak}
    if first in reached and seen.shares[first] - seen.beyond * seen.busy < MAJORITY:
        return "impossible"
    return f"far from {first}" if reached.get(first, CLOSE) < CLOSE else None


def _filled(said: str, seen: Evidence, first: str) -> str:
    """What is said of the largest owner, with the evidence in its places."""
    back = seen.to_host > max(0.05, seen.exposed_copies / 2)
    itself = f"{seen.exposed_copies:.0%} for the copy itself"
    called = _parts([*seen.calls.items()][:3])
    unlaunched = "; no operator launched most of them, so that nothing is known of their work"
    return said.format(
        seen=seen,
        first=first,
        of_step=_of_step(seen, first),
        kernels=f"{seen.kernels:.0f} kernel{'s' * (seen.kernels != 1)} of {seen.kernel:.1f} µs",
        copying=f"{seen.to_host:.0%} for copies to the host" if back else itself,
        calls=f"{called} of the {'step' if seen.marked else 'profile'}",
        silent=f"; it is in {_parts(seen.silent_in.items())}" if seen.silent_in else "",
        unlaunched=unlaunched if seen.unlaunched > MAJORITY else "",
    )


def _parts(named: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {part:.0%}" for name, part in named)


def next_step(owner: str, seen: Evidence) -> str:
    """Return what to do if ``owner`` has most of the step: a test or a remedy, and its chapter."""
    return NEXT[owner] + STACKS * (owner == "silent host" and not seen.silent_in)


def warnings_about(seen: Evidence) -> list[str]:
    """Return what makes a diagnosis doubtful, a sentence each."""
    found = {
        "blind": seen.blind and seen.shares["neither roof"] > 0.1,
        "beyond": seen.beyond > 0.05,
        "beside": seen.nccl > MAJORITY > seen.shares["other GPUs"],
    }
    beside = seen.nccl - seen.shares["other GPUs"]
    said = [SAID["warnings"][name] for name, is_so in found.items() if is_so]
    return [*seen.notes, *(text.format(seen=seen, beside=beside) for text in said)]


def is_nvidia(device: str | None) -> bool:
    """Return False for what can only be another maker's card."""
    return not re.search(r"AMD|Radeon|Instinct|\bgfx\d", device or "")


# --- in words -------------------------------------------------------------------------------------


def report(found: Diagnosis) -> str:
    """Return a diagnosis with its evidence and the next step, as the command prints it."""
    seen = found.evidence
    shares = sorted(seen.shares.items(), key=lambda item: -item[1])
    lines = [
        str(found),
        "owners of the step: "
        + "; ".join(f"{label(owner)} {share:.1%}" for owner, share in shares if share >= 0.0005),
        "host: " + ", ".join(f"{NAMES.get(of, of)} {part:.1%}" for of, part in seen.host.items()),
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
