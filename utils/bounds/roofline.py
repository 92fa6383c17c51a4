"""Which roof limits the kernels: the least time that a GPU needs for an operator, either way.

Operations over the peak of their precision, bytes over the bandwidth. Both are counted from shapes:
a profile taken with ``record_shapes=True`` holds sizes, types and strides of an operator's inputs.
What it wrote has to be inferred: from PyTorch's schema of the operator where an argument is written
(``out=``, in place), from the operation for products, else by taking the largest input.
"""

import math
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from utils.gpus import GPU
from utils.profile import Span, Trace, Work

# Of the operators: beside torch, as text, so that it can be read without importing torch.
LIST = "packaged/ATen/native/native_functions.yaml"
SIZES = {  # bytes, of types as C++ names them, Windows' included; what is not here has one
    **dict.fromkeys(("short", "short int", "unsigned short", "short unsigned int"), 2),
    **dict.fromkeys(("int", "unsigned int", "float", "c10::qint32"), 4),
    **dict.fromkeys(("long", "long int", "unsigned long", "long unsigned int", "double"), 8),
    **dict.fromkeys(("__int64", "unsigned __int64", "long long", "unsigned long long"), 8),
    **{"c10::Half": 2, "c10::BFloat16": 2, "c10::complex<c10::Half>": 4},
    **{"c10::complex<float>": 8, "c10::complex<double>": 16},
}
MOST = 2**63  # elements that a tensor can have
ONLY_WRITTEN = ("aten::copy_", "aten::fill_", "aten::zero_")  # their first input is the output
PLAIN = ("mm", "bmm", "mv", "_scaled_mm", "_int_mm")
ADDED = ("addmm", "baddbmm", "_addmm_activation")
CONVOLUTIONS = ("cudnn_convolution", "miopen_convolution")
REDUCTIONS = (
    *("aten::sum", "aten::mean", "aten::prod", "aten::amax", "aten::amin", "aten::max"),
    *("aten::min", "aten::norm", "aten::linalg_vector_norm", "aten::var", "aten::std"),
)


def operations(op: Span) -> float:
    """Return the floating-point operations of a product, convolution or attention; else 0."""
    types = op.args.get("Input type", [])
    return _counted(op)[0] * (4 if any("complex" in kind for kind in types) else 1)


def _counted(op: Span) -> tuple[float, int]:
    """How many operations, if all numbers were real; how many numbers written, if that is known."""
    try:
        counted, results = _of_shapes(op)
        return max(0.0, float(counted)), min(max(0, results), MOST)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # without shapes
        return 0.0, 0


def _of_shapes(op: Span) -> tuple[int, int]:
    name, dims = op.name.removeprefix("aten::"), op.args.get("Input Dims", [])
    if name in (*PLAIN, *ADDED):
        left, right = dims[name in ADDED :][:2]
        results = math.prod(left[:-1]) * (right[-1] if len(right) > 1 else 1)
        return 2 * results * left[-1], results
    if name in CONVOLUTIONS:
        results = dims[0][0] * dims[1][0] * math.prod(_image(op))
        return 2 * results * math.prod(dims[1][1:]), results
    if name == "convolution_backward":  # the image's gradient, the weights', or both
        mask = (op.args.get("Concrete Inputs") or ["[True, True]"])[-1]
        asked = re.findall("True|False", mask)[:2].count("True") or 2
        return 2 * asked * math.prod(dims[0]) * math.prod(dims[2][1:]), 0
    if name.endswith("attention_forward"):  # if causal, half of it is left out
        return 4 * math.prod(dims[0]) * max(dims[1][1:3]), 0  # heads or length, length or heads
    if name.endswith("attention_backward"):
        return 10 * math.prod(dims[1]) * max(dims[2][1:3]), 0
    return 0, 0


def _image(op: Span) -> list[int]:
    """Height and width (or length) of what a convolution writes."""
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
    sizes, kinds = _sizes(op, item), op.args.get("Input type", [])
    if not any(sizes) or op.name in (*ONLY_WRITTEN, *REDUCTIONS) or op.name.startswith("triton_"):
        return sum(sizes)  # a Triton kernel's arguments are inputs and outputs
    where = written(op.name, kinds)
    if where is None:
        _, results = _counted(op)
        kind = next(k for k, size in zip(kinds, sizes, strict=False) if size)
        return sum(sizes) + (results * SIZES.get(kind, 1) or max(sizes))
    outputs, in_place = where
    return sum(sizes) + (0 if outputs else sum(sizes[i] for i in in_place if i < len(sizes)))


def _sizes(op: Span, item: int) -> list[int]:
    """The bytes of each input; 0 for what is no tensor."""
    dims, kinds = op.args.get("Input Dims", []), op.args.get("Input type", [])
    strides = op.args.get("Input Strides") or [None] * len(dims)
    return [
        _elements(sizes, by) * (item if kind == "TensorList" else SIZES.get(kind, 1))
        for sizes, by, kind in zip(dims, strides, kinds, strict=False)
    ]


def _elements(sizes: list | int, strides: list | int | None) -> int:
    """Of a tensor, or of all in a list; of an expanded one, what it repeats counts once."""
    if not isinstance(sizes, list) or not sizes:
        return 0
    if not isinstance(strides, list) or len(strides) != len(sizes):
        strides = [None] * len(sizes)
    each = [*zip(sizes, strides, strict=True)]
    if any(isinstance(size, list) for size in sizes):
        return sum(_elements(size, by) for size, by in each)
    return min(max(0, math.prod(size for size, by in each if by != 0)), MOST)


class Argument(NamedTuple):
    """An argument of a schema: its type, such as ``Tensor(a!)``, and whether it is an ``out=``."""

    type: str
    name: str
    is_out: bool

    def fits(self, kind: str) -> bool:
        """Return whether a profile may note an argument of this type as ``kind``."""
        tensor, several = "Tensor" in self.type, "[" in self.type
        if kind in ("Scalar", "ScalarList"):
            return not tensor
        return kind == "" or (tensor and several == (kind == "TensorList"))


def written(name: str, kinds: list[str]) -> tuple[list[int], list[int]] | None:
    """Return which inputs are outputs (``out=``) and which are changed in place; None if neither.

    A profile does not say which overload was called: it is the one whose arguments are as many as
    were recorded, with tensors where tensors were.

    Parameters
    ----------
    name : str
        Of the operator, such as ``"aten::mul_"``. Those of other libraries are not listed.
    kinds : list of str
        The ``"Input type"`` of the profile.
    """
    for given in _schemas().get(name, ()):
        outputs = [i for i, argument in enumerate(given) if argument.is_out]
        fitting = len(given) == len(kinds) and all(map(Argument.fits, given, kinds))
        if fitting and all(kinds[i] for i in outputs):
            # Fused optimizers may unscale gradients in place; without a scaler they only read them.
            changed = [i for i, a in enumerate(given) if "!" in a.type and a.name != "grads"]
            in_place = [i for i in changed if name.endswith("_") and i not in outputs]
            return (outputs, in_place) if outputs or in_place else None
    return None


@cache
def _schemas() -> dict[str, list[list[Argument]]]:
    """Every overload that writes an argument, by the operator's name; none without torch."""
    torchgen = find_spec("torchgen")
    folders = (torchgen.submodule_search_locations if torchgen else None) or []
    found: dict[str, list[list[Argument]]] = {}
    for path in [path for folder in folders if (path := Path(folder, LIST)).exists()][:1]:
        text = path.read_text(encoding="utf-8")
        for name, arguments in re.findall(r"^- func: (\w+)(?:\.\w+)?\((.*)\) -> ", text, re.M):
            found.setdefault(f"aten::{name}", []).append(_arguments(arguments))
    return found


def _arguments(text: str) -> list[Argument]:
    """``"Tensor self, *, Tensor(a!) out"``, taken apart."""
    positional, _, keywords = text.partition("*, ")
    found = []
    for some, may_be_out in ((positional, False), (keywords, True)):
        for argument in filter(None, some.split(", ")):
            of, _, name = argument.partition("=")[0].rpartition(" ")
            found.append(Argument(of, name, may_be_out and "!" in of))
    return found


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
