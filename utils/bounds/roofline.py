"""Which roof limits the kernels: the least time that a GPU needs for an operator, either way.

Operations over the peak of their precision, bytes over the bandwidth;
:mod:`utils.bounds.operator_cost` counts both.
"""

import re

from utils.bounds.operator_cost import SIZES, operations, traffic
from utils.gpus import GPU
from utils.profile import Span, Trace, Work

NEAR = 0.2  # of a roof: half of what a kernel that saturates it shows at the least
BEYOND = 1.05  # of a roof: impossible, so that more was counted than was done

# In kernels' names, with float32 inputs; CUTLASS and nvJet name float32 on CUDA cores otherwise.
TENSOR_CORES = re.compile("tf32|s1688|tensorop|nvjet")
# An element of a list has no type in the profile, but often in the kernel's name.
IN_NAME = re.compile(r"Functor<((?:c10::)?(?:complex<\w+>|BFloat16|Half|double|float))")
# Results a clock and SM in float64, on tensor cores where they have it, as parts of float32's
# (CUDA C++ Programming Guide, arithmetic instructions; A100, H100 and B200 datasheets).
DOUBLE = {
    **{(7, 0): 1 / 2, (7, 5): 1 / 32, (8, 0): 1, (8, 6): 1 / 64},
    **{(8, 9): 1 / 64, (9, 0): 1, (10, 0): 1 / 2, (12, 0): 1 / 64},
}


def roofs(trace: Trace, work: list[Work], gpu: GPU | None) -> tuple[dict, dict]:
    """Part of the time of ``work`` that belongs to each roof, to graphs, to neither; facts beside.

    The work of a CUDA graph has no operator, so that nothing is known but what took its time.
    """
    groups: dict[int, tuple[Span | None, list[Work]]] = {}
    for w in work:
        op = trace.operator_of(w)
        groups.setdefault(id(op or w), (op, []))[1].append(w)
    graphs = {id(w) for call, w in trace.launches() if "GraphLaunch" in call.name}
    graphs |= {id(w) for w in work if w.args.get("graph id")}
    kinds = dict.fromkeys(("arithmetic", "memory", "CUDA graph", "neither roof"), 0.0)
    spent, least = {"arithmetic": 0.0, "memory": 0.0}, {"arithmetic": 0.0, "memory": 0.0}
    facts = dict.fromkeys(("products", "beyond", "unlaunched"), 0.0)
    for op, parts in groups.values():
        time = sum(w.duration for w in parts)
        hidden = all(id(w) in graphs and w.kind == "kernel" for w in parts)
        peak, bandwidth = least_time(op, parts, gpu) if gpu and not hidden else (0.0, 0.0)
        roof, needed = max(("arithmetic", peak), ("memory", bandwidth), key=lambda pair: pair[1])
        other = "CUDA graph" if hidden else "neither roof"
        kinds[roof if needed and needed >= NEAR * time else other] += time
        if 0 < needed <= BEYOND * time:  # of unknown or impossible size says nothing of a roof
            spent[roof] += time
            least[roof] += needed
        facts["products"] += time if op and operations(op) else 0.0
        facts["beyond"] += time if needed > BEYOND * time else 0.0
        facts["unlaunched"] += time if op is None and not needed and not hidden else 0.0
    total = sum(kinds.values()) or 1.0
    return {kind: time / total for kind, time in kinds.items()}, {
        **{fact: time / total for fact, time in facts.items()},
        "of_peak": least["arithmetic"] / (spent["arithmetic"] or 1.0),
        "of_bandwidth": least["memory"] / (spent["memory"] or 1.0),
    }


def least_time(op: Span | None, parts: list[Work], gpu: GPU) -> tuple[float, float]:
    """Return the µs that an operator needs at least: for arithmetic at its peak, for traffic."""
    if op is None:  # no operator: only copies and sets say what they did
        return 0.0, sum(w.bytes * (1 + (w.kind == "copy")) for w in parts) / (gpu.bandwidth * 1e3)
    types = op.args.get("Input type", [])
    peak = next((found for kind in types if (found := peak_of(kind, parts, gpu))), None)
    calculating = operations(op) / (peak * 1e6) if peak else 0.0
    said = (IN_NAME.search(w.name) for w in parts)
    item = next((SIZES[found[1]] for found in said if found and found[1] in SIZES), 4)
    return calculating, traffic(op, item) / (gpu.bandwidth * 1e3)


def peak_of(kind: str, parts: list[Work], gpu: GPU) -> float | None:
    """Return the TFLOP/s of ``gpu`` for inputs of this type; None if it has none that we know."""
    real = kind.removeprefix("c10::").removeprefix("complex<").removesuffix(">")
    if real == "float":
        on_tensor_cores = any(TENSOR_CORES.search(w.name) for w in parts)
        return gpu.tf32 if on_tensor_cores and gpu.tf32 else gpu.fp32
    if real == "double":
        return gpu.fp32 * DOUBLE[gpu.capability] if gpu.capability in DOUBLE else None
    kinds = {"Half": gpu.fp16, "c10::Half": gpu.fp16, "BFloat16": gpu.bf16}
    kinds |= {"signed char": gpu.int8, "unsigned char": gpu.int8}
    return gpu.fp8 if real.startswith("Float8") else kinds.get(real)
