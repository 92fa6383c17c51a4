"""A GPU that something other than its power limit holds back."""

import sys
from types import SimpleNamespace

import pytest

from utils import device as module

FIELDS = ["clocks.sm", "clocks.max.sm", "power.draw", "power.limit"]
FAST, SLOW = (1980, 1980, 300.0, 700.0), (450, 1980, 236.3, 700.0)


class Machine:
    """GPUs that show these numbers under a second of load, and look healthy when they have none.

    A product takes the GPU a millisecond, and the host none; a look at the clock takes one.
    """

    def __init__(self, *shown: tuple, hidden: tuple = ()) -> None:
        self.shown, self.hidden, self.now = shown, hidden, 0.0
        self.loaded, self.queued = [0.0] * len(shown), [0] * len(shown)

    def randn(self, *size: int, device: str, dtype: object) -> "Load":
        return Load(self, int(device.removeprefix("cuda:")))

    def clock(self) -> float:
        self.now += 1e-3
        assert self.now < 60, "asks for ever"
        return self.now

    def synchronize(self, device: int) -> None:
        seconds, self.queued[device] = 1e-3 * self.queued[device], 0
        self.now, self.loaded[device] = self.now + seconds, self.loaded[device] + seconds

    def get_device_properties(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=f"a-{device}-b")

    def nvidia_smi(self, query: str) -> list[str]:
        """What the driver tells, first of cards that CUDA_VISIBLE_DEVICES hides from PyTorch."""
        fields = query.split(",")[1:]
        lines = [", ".join(["GPU-hidden", *map(str, card)]) for card in self.hidden]
        for gpu, shown in enumerate(self.shown):
            told = dict(zip(FIELDS, shown, strict=False))
            hot = self.queued[gpu] and self.loaded[gpu] >= 1
            known = told if hot or len(told) < 4 else dict(zip(FIELDS, FAST, strict=True))
            lines.append(
                ", ".join([f"GPU-a-{gpu}-b", *(str(known.get(f, "[N/A]")) for f in fields)])
            )
        return lines


class Load:
    def __init__(self, machine: Machine, device: int) -> None:
        self.machine, self.device = machine, device

    def __matmul__(self, other: "Load") -> None:
        self.machine.queued[self.device] += 1


@pytest.fixture
def held_back(monkeypatch):
    """A function that says what is said of a machine whose GPUs show these numbers."""

    def ask(*shown: tuple, hidden: tuple = (), **instead) -> str | None:
        machine = Machine(*shown, hidden=hidden)
        known = {"get_device_properties": machine.get_device_properties}
        cuda = SimpleNamespace(synchronize=machine.synchronize, **known)
        torch = SimpleNamespace(randn=machine.randn, cuda=cuda, float16="float16")
        said = {"gpu_count": lambda: len(shown), "nvidia_smi": machine.nvidia_smi} | instead
        monkeypatch.setitem(sys.modules, "torch", torch)
        for name, answer in said.items():
            monkeypatch.setattr(module, name, answer)
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=machine.clock))
        return module.held_back()

    return ask


@pytest.mark.parametrize(
    "shown, slow",
    [
        (FAST, False),  # at its highest clock
        ((1125, 1980, 690.5, 700.0), False),  # at its limit of power
        (SLOW, True),
        ((1401, 2000, 300.0, 700.0), False),
        ((1400, 2000, 300.0, 700.0), True),
        ((900, 1980, 561.0, 700.0), False),
        ((900, 1980, 560.0, 700.0), True),
        ((), False),  # some cards do not tell
        ((450, 1980), False),
    ],
)
def test_a_gpu_that_is_held_back_is_noticed(held_back, shown, slow) -> None:
    assert bool(held_back(shown)) is slow


def test_a_slow_card_among_fast_ones_is_noticed(held_back) -> None:
    said = held_back(FAST, FAST, SLOW)
    assert "GPU 2 runs at 450 of 1980 MHz and draws 236 of 700 W" in said
    assert held_back(FAST, FAST) is None and held_back() is None


def test_an_idle_card_that_is_hidden_is_not_looked_at(held_back) -> None:
    assert held_back(FAST, hidden=(SLOW,)) is None
    assert "GPU 0 runs at 450" in held_back(SLOW, hidden=(FAST,))


@pytest.mark.parametrize("lines", [None, [], ["GPU-a-0-b, 1980, 1980, 300, 700"]])
def test_a_card_of_which_nobody_tells_is_not_accused(held_back, lines) -> None:
    assert held_back(FAST, SLOW, nvidia_smi=lambda query: lines) is None
