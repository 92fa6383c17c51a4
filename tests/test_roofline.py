"""What an operator costs: operations and bytes from its shapes, the least time on a GPU."""

import pytest

from planted import H200, T4
from utils.bounds import operations
from utils.bounds.roofline import least_time, traffic, written
from utils.profile import Span, Work


def op(name: str, *dims: list, kind: str | list[str] = "float", **args) -> Span:
    """An operator of ``aten``, or of Triton; ``kind`` is the type of all inputs, or of each."""
    kinds = [kind] * len(dims) if isinstance(kind, str) else kind
    name = name if name.startswith("triton_") else f"aten::{name}"
    more = {key.replace("_", " "): value for key, value in args.items()}
    return Span(name, 0, 1, args={"Input Dims": [*dims], "Input type": kinds, **more})


# 64 queries of 2 sequences and 4 heads; keys twice as many. Before them, in a backward pass, the
# gradient of what they gave.
QUERIES, KEYS = [2, 64, 4, 16], [2, 128, 4, 16]
BACKWARD = op("convolution_backward", [8, 16, 5, 5], [8, 4, 9, 9], [16, 4, 3, 3])
STRIDED = {"Concrete_Inputs": ["", "", "[1, 2]", "[2, 1]", "[1, 2]", "2"]}
HIGH, WIDE = (9 + 2 - 2 - 1) // 2 + 1, (12 + 4 - 4 - 1) // 1 + 1  # padding, stride, dilation, above
CONVOLUTION = op("cudnn_convolution", [8, 4, 9, 12], [16, 2, 3, 3], **STRIDED)


@pytest.mark.parametrize(
    "operator, expected",
    [
        (op("mm", [2, 3], [3, 5]), 60),
        (op("addmm", [5], [2, 3], [3, 5]), 60),
        (op("bmm", [7, 2, 3], [7, 3, 5]), 420),
        (op("baddbmm", [7, 2, 5], [7, 2, 3], [7, 3, 5]), 420),
        (op("mv", [2, 3], [3]), 12),
        (op("_scaled_mm", [2, 3], [3, 5]), 60),
        (op("_addmm_activation", [5], [2, 3], [3, 5]), 60),
        (op("_int_mm", [2, 3], [3, 5], kind="signed char"), 60),
        (op("mm", [2, 3], [3, 5], kind="c10::complex<float>"), 240),  # four real products
        (BACKWARD, 4 * 3200 * 36),
        (CONVOLUTION, 2 * 8 * 16 * HIGH * WIDE * 2 * 9),
        (op("_flash_attention_forward", QUERIES, KEYS), 4 * 8 * 64 * 128 * 16),
        (op("_flash_attention_backward", QUERIES, QUERIES, KEYS), 10 * 8 * 64 * 128 * 16),
        (op("mul", [100], [100]), 0),
    ],
)
def test_operations(operator, expected) -> None:
    assert operations(operator) == expected


def test_operations_of_the_gradients_that_are_asked_for() -> None:
    for mask, parts in {"[True, True, False]": 2, "[False, True, True]": 1, "": 2}.items():
        asked = Span(BACKWARD.name, 0, 1, args={**BACKWARD.args, "Concrete Inputs": ["", mask]})
        assert operations(asked) == parts * 2 * 3200 * 36


LISTS = ["TensorList", "TensorList", "Scalar"]
ADAM = ["TensorList"] * 4 + ["", "TensorList"] + ["Scalar"] * 7 + ["", ""]
MUL_OUT = ["float", "double", "float"]
EIGHT_BYTES = ("double", "long int", "c10::complex<float>")


@pytest.mark.parametrize(
    "operator, item, expected",
    [
        # The output is as large as the largest input.
        (op("mul", [1000], [1000]), 4, 12_000),
        *((op("neg", [1000], kind=kind), 4, 2_000) for kind in ("bool", "c10::Float8_e5m2")),
        *((op("neg", [1000], kind=kind), 4, 4_000) for kind in ("short int", "c10::BFloat16")),
        *((op("neg", [1000], kind=kind), 4, 16_000) for kind in EIGHT_BYTES),
        (op("cat", [[10], [20]], kind="TensorList"), 4, 240),
        (op("stack", [[10], [], [20]], kind="TensorList"), 4, 240),
        # It is the first input, or small.
        (op("copy_", [1000], [1000]), 4, 8_000),
        *((op(name, [1000]), 4, 4_000) for name in ("fill_", "zero_")),
        *((op(name, [1000]), 4, 4_000) for name in ("sum", "mean", "linalg_vector_norm")),
        (op("x"), 4, 0),
        # Products and convolutions tell its size.
        (op("mm", [1, 1000], [1000, 500]), 4, 4 * (1000 + 500_000 + 500)),
        (op("addmm", [500], [20, 1000], [1000, 500]), 4, 4 * (500 + 20_000 + 500_000 + 10_000)),
        (op("bmm", [3, 2, 10], [3, 10, 7]), 4, 4 * (60 + 210 + 42)),
        (op("mv", [20, 30], [30]), 4, 4 * (600 + 30 + 20)),
        (op("mm", [20, 1000], [1000, 500], kind="c10::Half"), 4, 2 * (20_000 + 500_000 + 10_000)),
        (op("_int_mm", [20, 40], [40, 30], kind="signed char"), 4, 800 + 1200 + 600),
        (CONVOLUTION, 4, 4 * (8 * 4 * 9 * 12 + 16 * 2 * 9 + 8 * 16 * HIGH * WIDE)),
        # It is among the inputs: out=, in place; but not if nothing was given for out=.
        (op("mul", [1000], [], [1000], kind=MUL_OUT), 4, 8_000),
        (op("mul", [1000], [1000], [], kind=["float", "float", ""]), 4, 12_000),
        (op("mul_", [1000], [1000]), 4, 12_000),
        (op("mm", [10, 20], [20, 30], [10, 30]), 4, 4 * (200 + 600 + 300)),
        # Lists have the type that the kernel's name says.
        (op("_foreach_add_", [[500], [500]], [[500], [500]], [], kind=LISTS), 2, 6_000),
        # Adam reads weights, gradients and two moments, and writes all but the gradients.
        (op("_fused_adam_", *[[[1000]]] * 4, [], [[]], *[[]] * 9, kind=ADAM), 4, 28_000),
        # An expanded tensor is one row, and Triton's arguments include what it writes.
        (op("neg", [16, 1000], Input_Strides=[[0, 1]]), 4, 8_000),
        (op("triton_poi_fused_0", [1000], [1000], [], kind=["float", "float", ""]), 4, 8_000),
    ],
)
def test_traffic(operator, item, expected) -> None:
    assert traffic(operator, item) == expected


def test_what_is_written_is_looked_up_for_the_overload_that_fits() -> None:
    assert written("aten::mul", MUL_OUT) == ([2], [])
    assert written("aten::mul_", ["float", "float"]) == ([], [0])
    assert written("aten::mul", ["float", "float"]) is None
    assert written("aten::mul", ["float", "float", ""]) is None, "out=None"
    assert written("aten::_foreach_mul_", ["TensorList", "Scalar"]) == ([], [0])
    assert written("aten::_foreach_mul_", ["float", "Scalar"]) is None
    rrelu = ["float", "float", "Scalar", "Scalar", "Scalar", ""]  # it changes its noise, too
    assert written("aten::rrelu_with_noise", rrelu) is None
    assert written("another::mul", MUL_OUT) is None


def test_lists_have_the_type_that_their_kernel_names() -> None:
    add = op("_foreach_mul_", [[2**20]], [], kind=["TensorList", "Scalar"])
    name = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>"
    name += ", at::native::(anonymous namespace)::BinaryOpScalarFunctor<{}, 1, 1, 0>, float>(int)"
    kinds = ("float", "c10::BFloat16", "double", "c10::complex<float>")
    times = [least_time(add, [Work(name.format(kind), 0, 1)], H200)[1] for kind in kinds]
    assert [round(time / times[0], 9) for time in times] == [1, 0.5, 2, 2]


@pytest.mark.parametrize(
    "gpu, kind, kernel, peak",
    [
        (H200, "float", "ampere_sgemm_128x64", H200.fp32),
        (H200, "float", "sm80_xmma_gemm_tf32f32", H200.tf32),
        (H200, "float", "cutlass_80_tensorop_s1688gemm", H200.tf32),
        (H200, "float", "nvjet_tst_128x64", H200.tf32),
        (T4, "float", "turing_s1688gemm", T4.fp32),  # it has no TF32
        (T4, "c10::Half", "turing_h1688gemm", T4.fp16),  # and no bfloat16
        (H200, "c10::BFloat16", "nvjet_hsh", H200.bf16),
        (H200, "c10::Float8_e4m3fn", "nvjet_qss", H200.fp8),
        (H200, "double", "cutlass_90_tensorop_d1684gemm", 66.9),
        (T4, "double", "volta_dgemm_64x64", T4.fp32 / 32),
        (H200, "signed char", "sm90_xmma_gemm_i8i8", H200.int8),
        (T4, "unsigned char", "turing_i8816gemm", T4.int8),
        (H200, "c10::complex<double>", "zgemm", 66.9 / 4),  # of real operations
        (H200, "c10::complex<c10::Half>", "hgemm", H200.fp16 / 4),
    ],
)
def test_a_product_is_held_against_the_peak_of_its_precision(gpu, kind, kernel, peak) -> None:
    product = op("mm", [1000, 1000], [1000, 1000], kind=kind)
    parts = [Work(kernel, 0, 1), Work("splitKreduce_kernel", 1, 2)]
    assert least_time(product, parts, gpu)[0] == pytest.approx(2e9 / (peak * 1e6))
