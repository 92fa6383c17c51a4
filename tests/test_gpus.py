"""The datasheet table: consistent with itself, and never the wrong card."""

from math import isclose

import pytest

from utils.bounds.roofline import DOUBLE
from utils.gpus import GPUS, lookup, pcie_gb_per_s


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_figures_agree_with_one_another(gpu) -> None:
    # One fused multiply-add, two operations, a core and a clock: catches a mistyped figure.
    assert isclose(gpu.cuda_cores * 2 * gpu.boost_mhz * 1e6 / 1e12, gpu.fp32, rel_tol=0.01)
    # bf16 is twice TF32 and half of FP8 on tensor cores; a sparse figure would break the ratio.
    assert gpu.tf32 is None or isclose(gpu.half / gpu.tf32, 2, rel_tol=0.02)
    assert gpu.fp8 is None or isclose(gpu.fp8 / gpu.half, 2, rel_tol=0.02)
    # On GeForce cards float16 accumulates in float32 at half of its rate.
    faster = 4 if "GeForce" in gpu.reported[0] else 2
    assert gpu.int8 is None or isclose(gpu.int8 / gpu.half, faster, rel_tol=0.02)
    assert gpu.half >= 1.9 * gpu.fp32
    assert (gpu.int8 is None) == (gpu.capability < (7, 5))
    assert (gpu.tf32 is None) == (gpu.bf16 is None) == (gpu.capability < (8, 0))
    assert (gpu.fp8 is None) == (gpu.capability < (8, 9))
    assert 8 <= gpu.memory_gb <= 200 and 250 <= gpu.bandwidth <= 8000 and 50 <= gpu.watts <= 1000
    assert gpu.pcie[0] in (3, 4, 5) and gpu.pcie[1] in (8, 16)
    # The card's memory is many times faster than its link, and NVLink lies between.
    link = pcie_gb_per_s(*gpu.pcie)
    assert gpu.bandwidth > 4 * link
    assert gpu.nvlink is None or 2 * link < gpu.nvlink < gpu.bandwidth
    assert "https://" in gpu.source and "NVIDIA" in gpu.source


def test_peaks_in_float64_are_those_of_the_datasheets() -> None:
    names = {"V100": 7.8, "T4": 0.253, "A100 80GB": 19.5, "RTX 3090": 0.556, "RTX 4090": 1.29}
    names |= {"H100 SXM": 66.9, "B200": 296 / 8, "RTX 5090": 1.64}
    peaks = {gpu.name: DOUBLE[gpu.capability] * gpu.fp32 for gpu in GPUS}
    assert {name: peaks[name] for name in names} == pytest.approx(names, rel=0.02)


def test_names_are_unique() -> None:
    names = [name for gpu in GPUS for name in gpu.reported]
    assert len(set(names)) == len(names)
    assert len({gpu.name for gpu in GPUS}) == len(GPUS)


def test_lookup_knows_what_torch_reports_and_no_other_card() -> None:
    known = {"NVIDIA H100 80GB HBM3": "H100 SXM", "NVIDIA H100 PCIe": "H100 PCIe"}
    known |= {"NVIDIA H200": "H200 SXM", "A100-SXM4-40GB": "A100 40GB", "Tesla T4": "T4"}
    known |= {"NVIDIA L40S": "L40S", " NVIDIA GeForce RTX 5090\n": "RTX 5090"}
    assert {reported: lookup(reported).name for reported in known} == known
    geforce = "RTX 4090 Laptop GPU", "RTX 3090 Ti", "RTX 5090 D"
    centre = "H100 NVL", "H100 80GB HBM3 MIG 1g.10gb", "A100 80GB PCIe", "A10G", "L40"
    others = [*(f"NVIDIA GeForce {name}" for name in geforce), *(f"NVIDIA {n}" for n in centre)]
    for other in (*others, "Tesla V100-SXM2-16GB", "AMD Instinct MI300X", "H100", ""):
        assert lookup(other) is None, other


def test_ridge_is_operations_a_byte() -> None:
    h100 = lookup("NVIDIA H100 80GB HBM3")
    assert h100.ridge == pytest.approx(989.4e12 / 3350e9)
    t4 = lookup("Tesla T4")
    assert t4.half == t4.fp16 and t4.ridge == pytest.approx(65e12 / 320e9)


def test_what_a_link_carries() -> None:
    links = {(5, 16): 63.015, (4, 16): 31.508, (3, 1): 0.985, (2, 16): 8.0, (1, 1): 0.25}
    found = {link: pcie_gb_per_s(*link) for link in links}
    assert found == pytest.approx(links, abs=0.001)
    for generation, lanes in [(0, 16), (6, 16), (5, 0), (5, 3), (4, 32)]:
        with pytest.raises(ValueError, match="no PCIe"):
            pcie_gb_per_s(generation, lanes)
