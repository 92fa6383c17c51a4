"""Sizes in readable units, and what a device holds."""

import numpy as np
import pytest
import torch

from utils.memory import GIB, KIB, MIB, allocated, format_bytes, tensor_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (KIB, "1 KiB"),
        (1536, "1.5 KiB"),
        (20 * MIB, "20 MiB"),
        (1000 * MIB, "1000 MiB"),  # never "1e+03 MiB"
        (999.7 * MIB, "1000 MiB"),
        (1023 * KIB, "1023 KiB"),
        (3.814697265625 * MIB, "3.81 MiB"),
        (80 * GIB, "80 GiB"),
        (2000 * GIB, "2000 GiB"),
        (-2 * MIB, "-2 MiB"),
    ],
)
def test_bytes_in_readable_units(count, text) -> None:
    assert format_bytes(count) == text


def test_bytes_must_be_a_number() -> None:
    with pytest.raises(TypeError):
        format_bytes("20 MiB")


def test_a_tensor_holds_its_elements() -> None:
    assert tensor_bytes(torch.zeros(10, dtype=torch.float64)) == 80
    assert tensor_bytes(torch.zeros(10), torch.zeros(5, dtype=torch.uint8)) == 45


def test_no_tensor_holds_nothing() -> None:
    assert tensor_bytes() == 0
    assert tensor_bytes(torch.zeros(0)) == 0


def test_shared_storage_counts_once_and_whole() -> None:
    x = torch.zeros(10)
    assert tensor_bytes(x, x[3:], x.view(2, 5).T, x.detach()) == 40
    assert tensor_bytes(x[:1]) == 40, "a view keeps all of its storage alive"
    assert tensor_bytes(x, x.clone()) == 80


def test_storage_shared_through_numpy_counts_once() -> None:
    array = np.zeros(10, dtype=np.float32)
    assert tensor_bytes(torch.from_numpy(array), torch.from_numpy(array)) == 40


def test_tensors_without_memory_are_told_apart() -> None:
    x, y = torch.empty(10, device="meta"), torch.empty(20, device="meta")
    assert tensor_bytes(x, y) == 120
    assert tensor_bytes(x, x[2:]) == 40


def test_only_tensors_hold_bytes() -> None:
    with pytest.raises(AttributeError):
        tensor_bytes([1, 2, 3])


@pytest.mark.parametrize("device", ["cpu", "meta", torch.device("cpu")])
def test_counters_of_a_device_without_counters(device) -> None:
    with pytest.raises(ValueError, match="give a CUDA device"):
        allocated(device)


def test_counters_of_a_device_that_cannot_be() -> None:
    with pytest.raises(RuntimeError):
        allocated("gpu")


def test_counters_come_from_torch(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60, 80))
    for name, value in {
        "memory_allocated": 5,
        "memory_reserved": 20,
        "max_memory_allocated": 7,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    expected = {"allocated": 5, "reserved": 20, "peak": 7, "free": 60, "total": 80}
    assert allocated("cuda:0") == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")
def test_counters_of_a_gpu() -> None:
    before = allocated("cuda")
    x = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
    after = allocated("cuda")
    assert after["allocated"] - before["allocated"] == x.nbytes
    assert after["reserved"] >= after["allocated"] and after["peak"] >= after["allocated"]
    assert 0 < after["free"] <= after["total"]
