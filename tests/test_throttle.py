"""A GPU that something other than its power limit holds back."""

import pytest
import torch

from utils import throttle as module


@pytest.mark.parametrize(
    "said, slow",
    [
        ("1980, 1980, 300.0, 700.0", False),  # at its highest clock
        ("1125, 1980, 690.5, 700.0", False),  # at its limit of power
        ("450, 1980, 236.3, 700.0", True),
        ("[N/A], [N/A], [N/A], [N/A]", False),
    ],
)
def test_a_gpu_that_is_held_back_is_noticed(monkeypatch, said, slow) -> None:
    monkeypatch.setattr(module.device, "gpu_count", lambda: 1)
    monkeypatch.setattr(module.device, "nvidia_smi", lambda query: [said])
    monkeypatch.setattr(module.torch, "randn", lambda *size, **where: torch.ones(1))
    monkeypatch.setattr(module.torch.cuda, "synchronize", lambda device: None)
    assert bool(module.held_back()) is slow


def test_a_slow_card_among_fast_ones_is_noticed(monkeypatch) -> None:
    fast, slow = "1980, 1980, 300, 700", "450, 1980, 236, 700"
    monkeypatch.setattr(module.device, "gpu_count", lambda: 3)
    monkeypatch.setattr(module.device, "nvidia_smi", lambda query: [fast, fast, slow])
    monkeypatch.setattr(module.torch, "randn", lambda *size, **where: torch.ones(1))
    monkeypatch.setattr(module.torch.cuda, "synchronize", lambda device: None)
    assert "GPU 2 runs at 450 of 1980 MHz" in module.held_back()
