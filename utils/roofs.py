"""Operations and bytes of an operator, from its shapes; the least time that a GPU needs for them.

A profile taken with ``record_shapes=True`` holds sizes, types and strides of an operator's inputs.
What it wrote has to be inferred: from PyTorch's schema of the operator where an argument is written
(``out=``, in place), from the operation for products, else by taking the largest input.
"""

import math
import re
from functools import cache

import torch

from utils.hardware import GPU
from utils.trace import Span, Trace, Work

NEAR = 0.2  # of a roof: half of what a kernel that saturates it shows at the least
BEYOND = 1.05  # of a roof: impossible, so that more was counted than was done

# In kernels' names, with float32 inputs; CUTLASS and nvJet name float32 on CUDA cores otherwise.
TENSOR_CORES = re.compile("tf32|s1688|tensorop|nvjet")
SIZES = {
    **dict.fromkeys(("bool", "char", "signed char", "unsigned char"), 1),
    **dict.fromkeys(("short", "short int", "unsigned short", "short unsigned int"), 2),
    **dict.fromkeys(("int", "unsigned int", "float"), 4),
    **dict.fromkeys(("long", "long int", "unsigned long", "long unsigned int", "double"), 8),
    **{"c10::Half": 2, "c10::BFloat16": 2, "c10::complex<c10::Half>": 4},
    **{"c10::complex<float>": 8, "c10::complex<double>": 16},
}
# An element of a list has no type in the profile, but often in the kernel's name.
IN_NAME = re.compile(r"Functor<((?:c10::)?(?:complex<\w+>|BFloat16|Half|double|float))")
# Results a clock and SM in float64, on tensor cores where they have it, as parts of float32's
# (CUDA C++ Programming Guide, arithmetic instructions; A100, H100 and B200 datasheets).
DOUBLE = {
    **{(7, 0): 1 / 2, (7, 5): 1 / 32, (8, 0): 1, (8, 6): 1 / 64},
    **{(8, 9): 1 / 64, (9, 0): 1, (10, 0): 1 / 2, (12, 0): 1 / 64},
}
ONLY_WRITTEN = ("aten::copy_", "aten::fill_", "aten::zero_")  # their first input is the output
PLAIN, ADDED = ("mm", "bmm", "mv", "_scaled_mm"), ("addmm", "baddbmm", "_addmm_activation")
REDUCTIONS = (
    *("aten::sum", "aten::mean", "aten::prod", "aten::amax", "aten::amin", "aten::max"),
    *("aten::min", "aten::norm", "aten::linalg_vector_norm", "aten::var", "aten::std"),
)


def roofs(trace: Trace, work: list[Work], gpu: GPU | None) -> tuple[dict, dict]:
    """Part of the time of ``work`` that belongs to each roof or to neither; facts beside it."""
    groups: dict[int, tuple[Span | None, list[Work]]] = {}
    for w in work:
        op = trace.operator_of(w)
        groups.setdefault(id(op or w), (op, []))[1].append(w)
    graphs = {id(w) for call, w in trace.launches() if "GraphLaunch" in call.name}
    kinds = dict.fromkeys(("arithmetic", "memory", "neither roof"), 0.0)
    spent, least = {"arithmetic": 0.0, "memory": 0.0}, {"arithmetic": 0.0, "memory": 0.0}
    facts = dict.fromkeys(("products", "beyond", "in_graphs"), 0.0)
    for op, parts in groups.values():
        time = sum(w.duration for w in parts)
        peak, bandwidth = least_time(op, parts, gpu) if gpu else (0.0, 0.0)
        roof, needed = max(("arithmetic", peak), ("memory", bandwidth), key=lambda pair: pair[1])
        kinds[roof if needed >= NEAR * time else "neither roof"] += time
        spent[roof] += time if needed else 0.0  # an operator of unknown size has no roof
        least[roof] += needed
        facts["products"] += time if op and operations(op) else 0.0
        facts["beyond"] += time if needed > BEYOND * time else 0.0
        facts["in_graphs"] += sum(w.duration for w in parts if id(w) in graphs and op is None)
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
    if kind.startswith("c10::Float8"):
        return gpu.fp8
    if kind in ("double", "c10::complex<double>"):
        return gpu.fp32 * DOUBLE[gpu.capability] if gpu.capability in DOUBLE else None
    if kind in ("float", "c10::complex<float>"):
        on_tensor_cores = any(TENSOR_CORES.search(w.name) for w in parts)
        return gpu.tf32 if on_tensor_cores and gpu.tf32 else gpu.fp32
    return {"c10::Half": gpu.fp16, "c10::BFloat16": gpu.bf16}.get(kind)


def operations(op: Span) -> float:
    """Return the floating-point operations of a product, convolution or attention; else 0."""
    types = op.args.get("Input type", [])
    return _products(op) * (4 if any("complex" in str(kind) for kind in types) else 1)


def _products(op: Span) -> float:
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


def traffic(op: Span, item: int = 4) -> float:
    """Return the bytes that an operator moves: every input read once, what it writes written once.

    Read twice, as a normalization may, is counted once; a few rows of a table are counted as the
    table. ``item`` is the size of an element of a list of tensors.
    """
    sizes = _sizes(op, item)
    if not any(sizes) or op.name in (*ONLY_WRITTEN, *REDUCTIONS) or op.name.startswith("triton_"):
        return sum(sizes)  # a Triton kernel's arguments are inputs and outputs
    summed = _summed(op)  # a product writes one number for 2 * summed operations
    if summed:
        kind = next(k for k, size in zip(op.args["Input type"], sizes, strict=False) if size)
        return sum(sizes) + _products(op) / (2 * summed) * SIZES.get(kind, 1)
    written = _written(op)
    if written is None:
        return sum(sizes) + max(sizes)
    outputs, in_place = written
    return sum(sizes) if outputs else sum(sizes) + sum(sizes[i] for i in in_place)


def _sizes(op: Span, item: int) -> list[float]:
    """The bytes of each input; 0 for what is no tensor."""

    def count(dims: object, strides: object) -> int:
        if not isinstance(dims, list):
            return 0
        if any(isinstance(d, list) for d in dims):
            known = isinstance(strides, list) and len(strides) == len(dims)
            inner = strides if known else [None] * len(dims)
            return sum(count(d, s) for d, s in zip(dims, inner, strict=True) if d)
        if isinstance(strides, list) and len(strides) == len(dims):
            dims = [d for d, by in zip(dims, strides, strict=True) if by]  # 0: one row, repeated
        return math.prod(dims)

    every = op.args.get("Input Dims", [])
    every = every if isinstance(every, list) else []
    strides = op.args.get("Input Strides") or [None] * len(every)
    kinds = op.args.get("Input type", [])
    each = zip(every, strides, kinds, strict=False)
    return [
        count(dims, by) * (item if kind == "TensorList" else SIZES.get(kind, 1)) if dims else 0
        for dims, by, kind in each
    ]


@cache
def _schemas(name: str) -> list:
    return list(torch._C._jit_get_schemas_for_operator(name)) if "::" in name else []


def _written(op: Span) -> tuple[list[int], list[int]] | None:
    """Which inputs are outputs (``out=``) and which are changed in place; None if neither.

    A profile does not say which overload was called: it is the one whose arguments are as many as
    were recorded, with tensors where tensors were.
    """
    kinds = op.args.get("Input type", [])

    def fits(argument: torch._C.Argument, kind: str) -> bool:
        of = str(argument.type)
        if kind == "TensorList":
            return "List[" in of and "Tensor" in of
        if kind in ("Scalar", "ScalarList"):
            return "Tensor" not in of
        return kind == "" or ("Tensor" in of and "List[" not in of)

    for schema in _schemas(op.name):
        given = list(schema.arguments)
        if len(given) != len(kinds) or not all(map(fits, given, kinds)):
            continue
        outputs = [i for i, argument in enumerate(given) if argument.is_out]
        if any(not kinds[i] for i in outputs):
            continue
        changed = [i for i, a in enumerate(given) if a.alias_info and a.alias_info.is_write]
        # Fused optimizers may unscale gradients in place; without a scaler they only read them.
        changed = [i for i in changed if i not in outputs and given[i].name != "grads"]
        in_place = changed if op.name.endswith("_") else []
        return (outputs, in_place) if outputs or in_place else None
    return None


def _summed(op: Span) -> int:
    """How many products are summed up in each number that a product or convolution writes."""
    name, dims = op.name.removeprefix("aten::"), op.args["Input Dims"]
    if not _products(op) or name not in (*PLAIN, *ADDED, "cudnn_convolution"):
        return 0
    if _written(op):  # out=: what is written is among the inputs
        return 0
    return math.prod(dims[1][1:]) if name not in (*PLAIN, *ADDED) else dims[name in ADDED][-1]
