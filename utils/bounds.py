"""What does a training step wait for? Every microsecond of a profile gets one owner::

    diagnosis = diagnose(load("trace.json.gz"))
    print(diagnosis)  # python: the GPU waits 81% of a step of 650 µs for the host, …

For a trace of your own: ``python -m utils.bounds trace.json``. Chapter 6.2 justifies the rules,
tries them on planted bottlenecks, and shows where they fail. The profile is of one process with
one GPU, taken with ``record_shapes=True``.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from utils.hardware import GPU, lookup
from utils.trace import Span, Trace, TraceError, Work, gaps, load

BOUNDS = ("data", "python", "memory", "arithmetic", "other GPUs")
OWNERS = (*BOUNDS, "silent host", "neither roof")  # the last two name no bound

MAJORITY = 0.5  # of the step: then no other owner has as much
NEAR = 0.2  # of a roof: half of what a kernel that saturates it shows at the least
SILENCE = 1000.0  # µs without a CUDA call: far more than lies between two launches

LOADING = ("enumerate(DataLoader)", "data")  # ranges in which the host prepares data
TENSOR_CORES = re.compile("tf32|s1688|tensorop|nvjet")  # in names of kernels on float32
SIZES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int": 4, "long int": 8}
ONLY_WRITTEN = ("aten::copy_", "aten::fill_", "aten::zero_")  # their first input is the output
PLAIN, ADDED = ("mm", "bmm", "mv", "_scaled_mm"), ("addmm", "baddbmm", "_addmm_activation")
REDUCTIONS = ("aten::sum", "aten::mean", "aten::amax", "aten::norm", "aten::linalg_vector_norm")

Stretch = tuple[float, float]


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
    host : dict
        Part in which the host is in the ``"loader"``, else ``"blocked"`` in a CUDA call that waits
        or copies, else in ``"operators"`` and launches, else in ``"nothing"`` that was recorded.
    products : float
        Part of the kernels' time that is spent in products, convolutions and attention.
    of_peak, of_bandwidth : float
        Part of the arithmetic peak that those kernels reach whose roof it is; of the bandwidth.
    kernels, kernel : float
        Kernels a step, and their mean duration.
    """

    steps: int
    wall: float
    shares: dict[str, float]
    busy: float
    exposed_nccl: float
    exposed_copies: float
    host: dict[str, float]
    products: float
    of_peak: float
    of_bandwidth: float
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
    kernels = f"{seen.kernels:.0f} kernels of {seen.kernel:.1f} µs"
    if seen.shares[first] < MAJORITY:
        rest = f"{second} {seen.shares[second]:.0%}"
        return Diagnosis("unclear", seen, f"the largest owner, {first}, has {of_step}; {rest}")
    if first == "neither roof" and gpu is None:
        reason = f"the GPU works, but {trace.device} is not in utils.hardware: give gpu="
    elif first == "neither roof" and not _has_shapes(trace):
        reason = "the GPU works, but the profile has no shapes: record_shapes=True"
    else:
        copying, bandwidth, peak = seen.exposed_copies, seen.of_bandwidth, seen.of_peak
        reason = {
            "data": f"the GPU waits {of_step} for data, {copying:.0%} for the copy itself",
            "python": f"the GPU waits {of_step} for the host, which launches {kernels}",
            "memory": f"{of_step} in kernels that move bytes, at {bandwidth:.0%} of the bandwidth",
            "arithmetic": f"{of_step} in kernels that calculate, at {peak:.0%} of the peak",
            "other GPUs": f"{of_step} in NCCL, with nothing to compute beside it",
            "silent host": f"for {of_step} the host makes no CUDA call: give ranges that "
            'prepare data the name "data", or profile with_stack=True',
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
    work = [w for w in trace.work if _kind(w) == "computing" and w.end > begin and w.begin < end]
    kinds, facts = _roofs(trace, work, gpu)
    shares = {owner: time[owner] / total for owner in OWNERS}
    for kind, part in kinds.items():
        shares[kind] += part * time["computing"] / total
    shares["data"] += time["copying"] / total
    waits = [c for c in trace.calls if re.search("Synchronize|Memcpy", c.name)]
    active = [*trace.operators, *trace.calls]
    layers = {"loader": _loading(trace), "blocked": _ends(waits), "operators": _ends(active)}
    host = dict.fromkeys((*layers, "nothing"), 0.0)
    for state, left, right in sweep({**layers, "nothing": [(begin, end)]}, begin, end):
        host[state] += (right - left) / (end - begin)
    kernels = [w.duration for w in work if w.kind == "kernel"]
    return Evidence(
        steps=steps,
        wall=total / steps,
        shares=shares,
        busy=time["computing"] / total,
        exposed_nccl=time["other GPUs"] / total,
        exposed_copies=time["copying"] / total,
        host=host,
        kernels=len(kernels) / steps,
        kernel=sum(kernels) / max(1, len(kernels)),
        **facts,
    )


# --- who owns which microsecond ------------------------------------------------------------------


def owners(trace: Trace) -> list[tuple[str, float, float]]:
    """Return the steps as stretches in order of time, each ``(owner, begin, end)``.

    While the GPU computes, the owner is ``"computing"``; which roof limits the kernels is another
    question. Then come, in this order, NCCL (``"other GPUs"``), ``"copying"`` to or from the host,
    and an idle GPU: by itself (``"neither roof"``), for ``"data"``, for a ``"silent host"``, else
    for ``"python"``.
    """
    _, begin, end = window(trace)
    kinds: dict[str, list[Stretch]] = {"computing": [], "other GPUs": [], "copying": []}
    for w in trace.work:
        kinds[_kind(w)].append((w.begin, w.end))
    silence = [(a, b) for a, b in gaps(trace.calls, begin, end) if b - a > SILENCE]
    idle = {
        "neither roof": _own_pauses(trace),
        "data": _loading(trace),
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


def _has_shapes(trace: Trace) -> bool:
    """False for a profile with operators, but without the shapes of what they worked on."""
    return not trace.operators or any("Input Dims" in op.args for op in trace.operators)


def _kind(w: Work) -> str:
    if "nccl" in w.name.lower() or w.direction == "PtoP":
        return "other GPUs"
    return "copying" if w.direction in ("HtoD", "DtoH") else "computing"


def _ends(spans: Iterable[Span]) -> list[Stretch]:
    return [(span.begin, span.end) for span in spans]


def _loading(trace: Trace) -> list[Stretch]:
    """When the host prepared or sent data, as far as the profile tells."""
    spans = [r for r in trace.ranges if r.name.split("#")[0] in LOADING]
    spans += [op for op in trace.operators if "pin_memory" in op.name]
    return _ends([*spans, *(call for call, w in trace.launches() if w.direction == "HtoD")])


def _own_pauses(trace: Trace) -> list[Stretch]:
    """Pauses of the GPU before work that had been launched when the pause began."""
    asked = {id(w): call.end for call, w in trace.launches()}
    found, at = [], math.inf
    for w in sorted(trace.work, key=lambda w: w.begin):
        if asked.get(id(w), math.inf) <= at < w.begin:
            found.append((at, w.begin))
        at = max(at, w.end) if at < math.inf else w.end
    return found


# --- which roof limits a kernel ------------------------------------------------------------------


def _roofs(trace: Trace, work: list[Work], gpu: GPU | None) -> tuple[dict, dict]:
    """Part of the time of ``work`` that belongs to each roof or to neither; facts beside it."""
    groups: dict[int, tuple[Span | None, list[Work]]] = {}
    for w in work:
        op = trace.operator_of(w)
        groups.setdefault(id(op or w), (op, []))[1].append(w)
    kinds = dict.fromkeys(("arithmetic", "memory", "neither roof"), 0.0)
    spent, least = {"arithmetic": 0.0, "memory": 0.0}, {"arithmetic": 0.0, "memory": 0.0}
    products = 0.0
    for op, parts in groups.values():
        time = sum(w.duration for w in parts)
        peak, bandwidth = least_time(op, parts, gpu) if gpu else (0.0, 0.0)
        roof, needed = max(("arithmetic", peak), ("memory", bandwidth), key=lambda pair: pair[1])
        kinds[roof if needed >= NEAR * time else "neither roof"] += time
        spent[roof] += time if needed else 0.0  # an operator of unknown size has no roof
        least[roof] += needed
        products += time if op and operations(op) else 0.0
    total = sum(kinds.values()) or 1.0
    return {kind: time / total for kind, time in kinds.items()}, {
        "products": products / total,
        "of_peak": least["arithmetic"] / (spent["arithmetic"] or 1.0),
        "of_bandwidth": least["memory"] / (spent["memory"] or 1.0),
    }


def least_time(op: Span | None, parts: list[Work], gpu: GPU) -> tuple[float, float]:
    """Return the µs that an operator needs at least: for arithmetic at its peak, for traffic."""
    if op is None:  # no operator: only copies and sets say what they did
        return 0.0, sum(w.bytes * (1 + (w.kind == "copy")) for w in parts) / (gpu.bandwidth * 1e3)
    tensor_cores = any(TENSOR_CORES.search(w.name) for w in parts)
    peaks = {
        "float": gpu.tf32 if tensor_cores and gpu.tf32 else gpu.fp32,
        "c10::Half": gpu.fp16,
        "c10::BFloat16": gpu.bf16,
        "c10::Float8_e4m3fn": gpu.fp8,
    }
    types = op.args.get("Input type", [])
    peak = next((peaks[t] for t in types if peaks.get(t)), None)
    calculating = operations(op) / (peak * 1e6) if peak else 0.0
    return calculating, traffic(op) / (gpu.bandwidth * 1e3)


def operations(op: Span) -> float:
    """Return the floating-point operations of a product, convolution or attention; else 0."""
    name, dims = op.name.removeprefix("aten::"), op.args.get("Input Dims", [])
    try:
        if name in PLAIN:
            return 2 * math.prod(dims[0]) * (dims[1][-1] if len(dims[1]) > 1 else 1)
        if name in ADDED:
            return 2 * math.prod(dims[1]) * dims[2][-1]
        if name == "cudnn_convolution":
            return 2 * dims[0][0] * math.prod(dims[1]) * math.prod(_image(op))
        if name == "convolution_backward":  # both gradients, though sometimes one is asked for
            return 4 * math.prod(dims[0]) * math.prod(dims[2][1:])
        if name.endswith("attention_forward"):  # if causal, half of it is left out
            return 4 * math.prod(dims[0]) * max(dims[1][1:3])  # heads or length, length or heads
        if name.endswith("attention_backward"):
            return 10 * math.prod(dims[1]) * max(dims[2][1:3])
    except (IndexError, TypeError, ValueError):  # without shapes, or damaged
        return 0
    return 0


def _image(op: Span) -> list[int]:
    """Height and width (or length) of what ``cudnn_convolution`` writes."""
    (_, _, *image), (_, _, *kernel) = op.args["Input Dims"][:2]
    said = ([int(n) for n in re.findall(r"\d+", s)] for s in op.args["Concrete Inputs"][2:5])
    padding, stride, dilation = said
    each = zip(image, kernel, padding, stride, dilation, strict=True)
    return [(size + 2 * pad - dil * (k - 1) - 1) // by + 1 for size, k, pad, by, dil in each]


def traffic(op: Span) -> float:
    """Return the bytes that an operator moves at least: every input read, an output written.

    A profile knows no outputs. That of a product follows from its inputs; for any other operator,
    the largest input stands for it.
    """

    def count(dims: list) -> int:
        nested = any(isinstance(d, list) for d in dims)
        return sum(map(count, filter(None, dims))) if nested else math.prod(dims)

    shapes = zip(op.args.get("Input Dims", []), op.args.get("Input type", []), strict=False)
    shapes = [(dims, kind) for dims, kind in shapes if dims and isinstance(dims, list)]
    sizes = [count(d) * SIZES.get(kind, 4 if kind == "TensorList" else 1) for d, kind in shapes]
    if not sizes or op.name in (*ONLY_WRITTEN, *REDUCTIONS):
        return sum(sizes)
    summed = _summed(op)  # a product writes one number for 2 * summed operations
    item = SIZES.get(shapes[0][1], 1)
    return sum(sizes) + (operations(op) / (2 * summed) * item if summed else max(sizes))


def _summed(op: Span) -> int:
    """How many products are summed up in each number that a product or convolution writes."""
    name, dims = op.name.removeprefix("aten::"), op.args["Input Dims"]
    if not operations(op) or name not in (*PLAIN, *ADDED, "cudnn_convolution"):
        return 0
    return math.prod(dims[1][1:]) if name not in (*PLAIN, *ADDED) else dims[name in ADDED][-1]


# --- from a terminal -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Diagnose a trace; return the exit status, 2 if there is nothing to diagnose."""
    parser = argparse.ArgumentParser(
        prog="python -m utils.bounds", description="Say what the steps of a profile wait for."
    )
    parser.add_argument("trace", metavar="TRACE.json[.gz]", help="Chrome trace of torch.profiler")
    parser.add_argument("--wall-us", type=float, help="µs that a step takes without the profiler")
    options = parser.parse_args(arguments)
    try:
        found = diagnose(load(options.trace), wall=options.wall_us)
    except (TraceError, ValueError) as error:
        named = isinstance(error, TraceError)  # its message names the file
        print(error if named else f"{options.trace}: {error}", file=sys.stderr)
        return 2
    seen = found.evidence
    shares = sorted(seen.shares.items(), key=lambda item: -item[1])
    print(found)
    print("owners of the step:", ", ".join(f"{owner} {share:.1%}" for owner, share in shares))
    print("host:", ", ".join(f"{state} {part:.1%}" for state, part in seen.host.items()))
    print(
        f"GPU: computes {seen.busy:.1%}, only NCCL {seen.exposed_nccl:.1%}, only copies "
        f"{seen.exposed_copies:.1%}; {seen.kernels:.0f} kernels a step, {seen.kernel:.1f} µs each"
    )
    print(
        f"kernels: {seen.products:.1%} in products; {seen.of_peak:.1%} of the peak where that is "
        f"the roof, {seen.of_bandwidth:.1%} of the bandwidth where that is"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
