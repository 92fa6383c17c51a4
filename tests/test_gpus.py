"""The datasheet table: consistent with itself, and never the wrong card."""

import math

import pytest

from utils.gpus import GPUS, lookup, pcie_gb_per_s

every_gpu = pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)


@every_gpu
def test_float32_peak_follows_from_cores_and_clock(gpu) -> None:
    """One fused multiply-add, two operations, a core and a clock: catches a mistyped figure."""
    peak = gpu.cuda_cores * 2 * gpu.boost_mhz * 1e6 / 1e12
    assert math.isclose(peak, gpu.fp32, rel_tol=0.01)


@every_gpu
def test_figures_are_dense_and_ordered(gpu) -> None:
    """bf16 is twice TF32 and half of FP8 on tensor cores; a sparse figure would break the ratio."""
    if gpu.tf32:
        assert math.isclose(gpu.half / gpu.tf32, 2, rel_tol=0.02)
    if gpu.fp8:
        assert math.isclose(gpu.fp8 / gpu.half, 2, rel_tol=0.02)
    if gpu.int8:  # on GeForce cards float16 accumulates in float32 at half of its rate
        slow = 4 if "GeForce" in gpu.reported[0] else 2
        assert math.isclose(gpu.int8 / gpu.half, slow, rel_tol=0.02)
    assert (gpu.int8 is None) == (gpu.capability < (7, 5))
    assert gpu.half >= 1.9 * gpu.fp32
    assert (gpu.tf32 is None) == (gpu.bf16 is None) == (gpu.capability < (8, 0))
    assert (gpu.fp8 is None) == (gpu.capability < (8, 9))


@every_gpu
def test_every_figure_has_a_plausible_size_and_a_source(gpu) -> None:
    assert 16 <= gpu.memory_gb <= 200 and 300 <= gpu.bandwidth <= 8000 and 50 <= gpu.watts <= 1000
    assert gpu.pcie[0] in (3, 4, 5) and gpu.pcie[1] == 16
    assert "https://" in gpu.source and "NVIDIA" in gpu.source
    # The card's memory is many times faster than its link, and NVLink lies between.
    assert gpu.bandwidth > 4 * pcie_gb_per_s(*gpu.pcie)
    assert gpu.nvlink is None or 2 * pcie_gb_per_s(*gpu.pcie) < gpu.nvlink < gpu.bandwidth


def test_names_are_unique() -> None:
    names = [name for gpu in GPUS for name in gpu.reported]
    assert len(set(names)) == len(names)
    assert len({gpu.name for gpu in GPUS}) == len(GPUS)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("A100-SXM4-40GB", "A100 40GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        (" NVIDIA GeForce RTX 5090\n", "RTX 5090"),
    ],
)
def test_lookup_knows_what_torch_reports(reported, name) -> None:
    assert lookup(reported).name == name


@pytest.mark.parametrize(
    "other",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H200 NVL",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "NVIDIA A10G",
        "NVIDIA L40",
        "NVIDIA GH200 480GB",
        "Tesla V100-SXM2-16GB",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "AMD Instinct MI300X",
        "H100",
        "",
    ],
)
def test_lookup_never_answers_with_another_card(other) -> None:
    assert lookup(other) is None


def test_ridge_is_operations_a_byte() -> None:
    h100 = lookup("NVIDIA H100 80GB HBM3")
    assert h100.ridge == pytest.approx(989.4e12 / 3350e9)
    t4 = lookup("Tesla T4")
    assert t4.half == t4.fp16 and t4.ridge == pytest.approx(65e12 / 320e9)


@pytest.mark.parametrize(
    ("generation", "lanes", "expected"),
    [(5, 16, 63.015), (4, 16, 31.508), (3, 16, 15.754), (3, 1, 0.985), (2, 16, 8.0), (1, 1, 0.25)],
)
def test_pcie(generation, lanes, expected) -> None:
    assert pcie_gb_per_s(generation, lanes) == pytest.approx(expected, abs=0.001)


@pytest.mark.parametrize(("generation", "lanes"), [(0, 16), (6, 16), (5, 0), (5, 3), (4, 32)])
def test_pcie_refuses_links_that_do_not_exist(generation, lanes) -> None:
    with pytest.raises(ValueError, match="no PCIe"):
        pcie_gb_per_s(generation, lanes)
