"""The stopwatches, with a clock and a GPU that do what the test says."""

from types import SimpleNamespace

import pytest
import torch

from utils import timing
from utils.timing import digits, in_turn, pace, spread, wall


class Machine:
    """A host that launches at once and a GPU that works later, on a clock of their own."""

    def __init__(self) -> None:
        self.now = self.queued = 0.0
        self.done: list[str] = []
        self.waits: list[int] = []  # how many works were launched before each

    def work(self, *durations: float, name: str = "work"):
        """A function that queues these seconds of work, call by call; the last ones for ever."""
        left = list(durations)

        def launch() -> None:
            self.queued += left.pop(0) if len(left) > 1 else left[0]
            self.done.append(name)

        return launch

    def synchronize(self) -> None:
        self.waits.append(len(self.done))
        self.now, self.queued = self.now + self.queued, 0.0


@pytest.fixture
def machine(monkeypatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: machine.now))
    monkeypatch.setattr(torch.cuda, "synchronize", machine.synchronize)
    return machine


def test_wall_is_the_median_after_two_calls_that_warm_up(machine) -> None:
    machine.queued = 100.0  # of somebody else, before the first call
    assert wall(machine.work(50, 40, 1, 9, 2), repeats=3) == 2
    assert machine.waits == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def test_pace_waits_at_both_ends_only(machine) -> None:
    machine.queued = 100.0
    assert pace(machine.work(0.25, 0.75, 0.5), steps=4) == 500
    assert machine.waits == [0, 4]


def test_works_take_their_turns_and_the_first_round_warms_up(machine) -> None:
    slow, fast = machine.work(90, 90, 2, 2, 4, 4, 6, 6, name="slow"), machine.work(1, name="fast")
    found = in_turn({"slow": slow, "fast": fast}, rounds=3, calls=2)
    assert found == {"slow": [3e3, 4e3, 5e3], "fast": [1e3] * 3}
    assert machine.done == ["slow", "slow", "fast", "fast"] * 4


def test_a_turn_begins_when_the_work_before_is_done(machine) -> None:
    machine.queued = 100.0
    assert in_turn({"a": machine.work(2)}, rounds=2, calls=1) == {"a": [2e3] * 3}
    assert machine.waits == [0, 1, 1, 2, 2, 3]


def test_median_least_and_most() -> None:
    assert spread([5.0, 1.23456, 2.0, 3.0, 99.99999]) == [3.0, 1.235, 100.0]
    assert spread([2, 1]) == [1.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("number", "kept"), [(123456.7, 123500.0), (0.000123456, 0.0001235), (0, 0.0), (-9.99999, -10)]
)
def test_four_significant_digits(number, kept) -> None:
    assert digits(number) == kept


def test_quartiles_have_four_significant_digits(machine) -> None:
    assert in_turn({"a": machine.work(1.23456e-3)}, rounds=2, calls=1) == {"a": [1.235] * 3}
