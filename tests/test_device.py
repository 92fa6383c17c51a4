"""Picking a device, and describing the machine."""

import pytest
import torch

from utils import device


def test_pick_gives_a_device_that_works() -> None:
    assert torch.ones(2, device=device.pick()).sum().item() == 2
    assert device.pick("cpu") == torch.device("cpu")


@pytest.mark.parametrize("absent", ["cuda:99", "meta"])
def test_pick_refuses_what_is_not_there(absent) -> None:
    with pytest.raises(RuntimeError, match=f"{absent} was asked for, but this machine has"):
        device.pick(absent)


def test_pick_with_two_gpus(monkeypatch) -> None:
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert device.pick() == torch.device("cuda")
    assert device.pick("cuda:1") == torch.device("cuda:1")
    with pytest.raises(RuntimeError, match="2 x cuda"):
        device.pick("cuda:2")


def test_provenance_says_what_a_record_must_say() -> None:
    from utils.experiment import PROVENANCE

    found = device.provenance()
    assert set(PROVENANCE) <= found.keys()
    assert found["torch"] == torch.__version__ and found["cpu"] and found["cpu_cores"] >= 1
    assert (found["gpu"] is None) == (found["gpu_count"] == 0)
