"""Is B faster than A? The code to keep and its twin in utils.timing, on times that are known."""

import gc
import inspect
import json
import math
import statistics
from types import SimpleNamespace

import compare
import pytest
import torch

from notebooks import BOOK
from test_stopwatch import Machine
from utils import timing
from utils.timing import beside, ratio, rounds_of, six_pairs, spread

# 300 single calls of each of four kinds of work, on an H200
NOISE = json.loads((BOOK / "records/noise_of_one_call.json").read_text("utf-8"))["result"]


def seen(a: torch.Tensor, b: torch.Tensor) -> float:
    """In what share of trials, the columns, the interval leaves 1 out. Fewer draws, for speed."""
    found = []
    for some in zip(a.split(50, dim=1), b.split(50, dim=1), strict=True):
        _, low, high = ratio(*(times.tolist() for times in some), draws=300)
        found.append((low > 1) | (high < 1))
    return torch.cat(found).double().mean().item()


def calls_of(work: str, rounds: int, trials: int) -> list[torch.Tensor]:
    """Two arms of the same work: calls drawn from those that were measured."""
    torch.manual_seed(0)
    calls = torch.tensor(NOISE[work], dtype=torch.float64)
    return [calls[torch.randint(len(calls), (rounds, trials))] for _ in "ab"]


def in_turn(moments: torch.Tensor) -> list[torch.Tensor]:
    """Two arms, each at one of every two successive moments, by chance."""
    pairs = moments.unflatten(0, (-1, 2))
    first = (torch.rand(pairs[:, 0].shape) < 0.5).long()
    return [pairs.gather(1, turn[:, None])[:, 0] for turn in (first, 1 - first)]


# --- the ratio and its interval -------------------------------------------------------------------


@pytest.mark.parametrize(
    "work, slower", [("one small kernel", 1.10), ("copy of 256 MiB", 1.01), ("sum on the CPU", 1.1)]
)
def test_100_calls_show_what_is_there(work, slower) -> None:
    """The rule that quartiles have to be apart sees next to none: more calls make it blinder."""
    a, b = calls_of(work, rounds=100, trials=400)
    assert seen(a, slower * b) >= 0.9 and seen(slower * a, b) >= 0.9
    apart = a.quantile(0.75, dim=0) < slower * b.quantile(0.25, dim=0)
    assert apart.double().mean() < 0.1


@pytest.mark.parametrize("rounds", [8, 30])
def test_what_is_not_there_is_seldom_seen(rounds) -> None:
    alarms = [seen(*calls_of(work, rounds, trials=500)) for work in NOISE]
    assert statistics.mean(alarms) <= 0.07, alarms


def drift(kind: str, moments: int = 60, trials: int = 400) -> torch.Tensor:
    """What a machine does to all that runs on it: its speed, moment by moment, in many trials."""
    torch.manual_seed(0)
    noise = torch.randn(moments, trials, dtype=torch.float64)
    if kind == "slower and slower":
        return torch.linspace(1, 1.1, moments, dtype=torch.float64)[:, None] * (1 + 0.01 * noise)
    state = [noise[0]]
    for fresh in noise[1:]:
        state.append(0.9 * state[-1] + math.sqrt(1 - 0.9**2) * fresh)
    return 1 + 0.02 * torch.stack(state)


@pytest.mark.parametrize("kind", ["slower and slower", "in slow waves"])
def test_a_drift_that_arms_share_is_no_difference_and_hides_none(kind) -> None:
    a, b = in_turn(drift(kind))
    assert seen(a, b) <= 0.07
    assert seen(a, 1.02 * b) >= 0.9  # 30 rounds; drawn apart, a and b would differ in 20% of trials
    one_by_one = drift(kind).split(30)  # first all rounds of a, then all of b
    assert seen(*one_by_one) > 0.5


def test_the_smallest_difference_that_would_be_seen_would_be() -> None:
    a, b = calls_of("sum on the CPU", rounds=50, trials=200)
    _, low, high = ratio(a.tolist(), b.tolist(), draws=300)
    smallest = (high / low).median().item()
    assert seen(a, smallest * b) >= 0.95 > seen(a, smallest**0.5 * b)


def test_a_ratio_by_hand() -> None:
    a, b = [1.0, 2, 3, 4, 5, 6, 7, 8, 9, 100], [2.0, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert [float(x) for x in ratio(a, a)] == [1, 1, 1]
    assert [float(x) for x in ratio(b, [3 * s for s in b])] == pytest.approx([3, 3, 3])
    middle, low, high = ratio(a, b[::-1])
    assert middle == 2 and low < 1 < high
    state = torch.get_rng_state()
    with torch.device("meta"):  # the reader's default device does not matter, and no seed is spent
        assert ratio(a, b[::-1]) == (middle, low, high)
    assert torch.equal(torch.get_rng_state(), state)


ONES = [1.0] * 20
FEW = [([1.0] * 7, [1.0] * 7), (ONES, ONES[1:]), ([], [])]
WRONG = [[*ONES[1:], wrong] for wrong in (0.0, -1.0, math.nan, math.inf)]


@pytest.mark.parametrize("a, b", FEW + [(ONES, w) for w in WRONG] + [(w, ONES) for w in WRONG])
def test_too_few_rounds_and_times_that_are_none_are_refused(a, b) -> None:
    with pytest.raises((AssertionError, ValueError), match=r"8 rounds or more|of length 19"):
        ratio(a, b)


def test_in_words() -> None:
    assert beside([1.0] * 10, [1.02] * 10) == "1.020 (1.020 to 1.020)"
    said = beside([1.0, 1.1] * 5, [1.1, 1.0] * 5)
    assert said == "no difference seen (0.909 to 1.100), 21.0% would be"


def test_book_and_reader_have_the_same_ratio() -> None:
    assert inspect.getsource(compare.ratio) == inspect.getsource(timing.ratio)


# --- taking turns ---------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch) -> Machine:
    """A GPU that is only waited for; the clock stands still but for its work."""
    machine = Machine()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", machine.synchronize)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: machine.now))
    monkeypatch.setattr(compare, "default_timer", lambda: machine.now)
    return machine


def test_compare_warms_up_waits_and_says_what_it_saw(machine, capsys) -> None:
    cold = [5.0] * 6  # the sixth round begins within the warm-up, and ends after it
    arms = {
        "old": machine.work(*cold, 2.0, name="old"),
        "same": machine.work(*cold, *[2.0, 2.5, 1.5] * 99, name="same"),
        "new": machine.work(*cold, 1.0, name="new"),
    }
    machine.queued = 100.0  # by somebody else, before
    times = compare.compare(arms, rounds=12, warmup_seconds=180)
    assert times == {"old": [2.0] * 12, "same": [2.0, 2.5, 1.5] * 4, "new": [1.0] * 12}
    rounds = [tuple(machine.done[at : at + 3]) for at in range(0, len(machine.done), 3)]
    assert len(rounds) == 6 + 12 and all(set(turn) == set(arms) for turn in rounds)
    assert len(set(rounds)) > 2, "chance decides the order anew in each round"
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "same: 1.000 times as long as old (0.750 to 1.250): no difference seen, 66.7% would be",
        "new: 0.500 times as long as old (0.500 to 0.500)",
    ]


def test_calls_of_a_turn_share_a_wait(machine, capsys) -> None:
    arms = {name: machine.work(0.25, name=name) for name in "ab"}
    times = compare.compare(arms, rounds=10, calls=4, warmup_seconds=0)
    assert times == {"a": [1.0] * 10, "b": [1.0] * 10}
    assert set(machine.waits) == set(range(0, len(machine.done) + 1, 4))


@pytest.mark.parametrize("arms", [{}, {"one": int}])
def test_one_arm_is_not_compared(arms) -> None:
    with pytest.raises(ValueError, match="expected at least 2"):
        compare.compare(arms)


class Knot:
    """What refers to itself is freed by Python's garbage collector, and by nothing else."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("collects", [True, False])
def test_cycles_are_collected_in_a_turn_as_in_a_program(machine, collects) -> None:
    """Or an arm that makes cycles looks faster than it is: each collection takes a second here."""

    def pays(phase: str, info: dict) -> None:
        machine.now += phase == "stop"

    arms = {
        "cycles": lambda: (machine.work(1.0)(), [Knot() for _ in range(2000)])[0],
        "none": machine.work(1.5),
    }
    was, often, found = gc.isenabled(), gc.get_threshold(), {}
    gc.set_threshold(700, 10, 10)  # as programs have it: at_start makes it seldom
    (gc.enable if collects else gc.disable)()
    gc.callbacks.append(pays)
    try:
        for run in (rounds_of, compare.compare):
            gc.collect()
            times = run(arms, rounds=20, warmup_seconds=0)
            found[run] = statistics.median(times["cycles"]) / statistics.median(times["none"])
            assert gc.isenabled() is collects
    finally:
        gc.callbacks.remove(pays)
        gc.set_threshold(*often)
        (gc.enable if was else gc.disable)()
    assert all((share > 1) is collects for share in found.values()), found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_is_waited_for(capsys) -> None:
    small, large = (torch.rand(n, n, device="cuda") for n in (16, 8192))
    arms = {"small": lambda: small @ small, "large": lambda: large @ large}
    times = compare.compare(arms, rounds=10, warmup_seconds=0.1)
    assert min(times["large"]) > 10 * statistics.median(times["small"])


def test_a_record_gets_raw_rounds_once_all_is_flat(machine) -> None:
    falling = [0.95**k for k in range(9) for _ in range(3)]  # 5% faster, group by group
    arms = {"a": machine.work(*falling, 0.00123456, name="a"), "b": machine.work(1.0, name="b")}
    assert rounds_of(arms, rounds=10, warmup_seconds=0) == {"a": [0.001235] * 10, "b": [1.0] * 10}
    assert len(machine.done) == 2 * (10 + 10 * 3), "ten groups of three, then what counts"


@pytest.mark.parametrize("calls, spent, least", [(1, 0, 3), (1, 30, 10), (4, 0, 3)])
def test_flat_arms_are_soon_warm(machine, calls, spent, least) -> None:
    arms = {name: machine.work(1.5, name=name) for name in "ab"}
    found, done = rounds_of(arms, rounds=12, calls=calls, warmup_seconds=spent), machine.done
    assert found == {"a": [1.5] * 12, "b": [1.5] * 12}
    assert len(done) == 2 * calls * (12 + 2 * least), "two groups, and what counts"
    assert set(machine.waits) == set(range(0, len(machine.done) + 1, calls))
    rounds = {tuple(done[at : at + 2 * calls]) for at in range(0, len(done), 2 * calls)}
    assert len(rounds) == 2


@pytest.mark.parametrize("arms, wrong", [("ab", {"rounds": 7}), ("ab", {"calls": 0}), ("a", {})])
def test_a_record_needs_enough(machine, arms, wrong) -> None:
    with pytest.raises(ValueError, match="takes two arms, eight rounds and one call"):
        rounds_of(dict.fromkeys(arms, int), **wrong)
    with pytest.raises(ValueError, match="raise calls"):  # too short for the clock
        rounds_of({"a": machine.work(0.0), "b": machine.work(1.0)}, warmup_seconds=0)


def test_six_pairs_alternate() -> None:
    ran = []

    def process(name: str, *seconds: float):
        left = list(seconds)
        return lambda: ran.append(name) or left.pop(0)

    pairs = six_pairs(process("a", 1, 2, 3, 4, 5, 6.00006), process("b", 2, 2, 3, 4, 5, 12))
    assert "".join(ran) == "abbaabbaabba"
    assert pairs == [[1, 2], [2, 2], [3, 3], [4, 4], [5, 5], [6, 12]]
    assert spread([b / a for a, b in pairs]) == [1, 1, 2]
