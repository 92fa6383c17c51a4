"""The stopwatch, on the CPU."""

import time

import pytest
from torch.utils.benchmark import Measurement, TaskSpec, Timer

from utils.timing import Timing, format_seconds, measure


def test_a_sleep_takes_as_long_as_it_sleeps() -> None:
    found = measure(lambda: time.sleep(0.005), min_run_time=0.02)
    assert 0.005 <= found.median < 0.05
    assert found.iqr >= 0 and found.batches >= 1


@pytest.fixture
def clock(monkeypatch) -> list[dict]:
    """A clock that always shows the same five batches of ten calls; what it is asked goes here."""
    asked = []

    def blocked_autorange(timer: Timer, **options: float) -> Measurement:
        asked.append(options)
        disturbed = [0.01, 0.02, 0.03, 0.04, 9.0]
        return Measurement(number_per_run=10, raw_times=disturbed, task_spec=TaskSpec("f()", ""))

    monkeypatch.setattr(Timer, "blocked_autorange", blocked_autorange)
    return asked


def test_a_disturbed_batch_moves_neither_the_median_nor_the_spread(clock) -> None:
    found = measure(lambda: None, min_run_time=0.7)
    assert (found.median, found.iqr) == pytest.approx((0.003, 0.002)) and found.batches == 5
    assert clock == [{"min_run_time": 0.7}]


def test_the_function_is_called_before_the_clock_runs(clock) -> None:
    calls = []
    measure(lambda: calls.append(len(clock)))
    assert calls == [0, 0, 0]


@pytest.mark.parametrize("seconds", [0, -1, -0.001])
def test_a_run_time_that_is_not_positive_is_refused(seconds) -> None:
    calls = []
    with pytest.raises(ValueError, match="give a positive number of seconds"):
        measure(lambda: calls.append(None), min_run_time=seconds)
    assert not calls


def test_seconds_in_readable_units() -> None:
    """Never "1000 µs"."""
    seconds = (1.5, 100, 123.4, 0.01, 0.0123, 12.3e-6, 4.56e-7, 1e-9, 1e-12, 0, 999.4e-6, 999.9e-6)
    assert [format_seconds(each) for each in (*seconds, -0.002, -0.02)] == [
        *("1.50 s", "100 s", "123 s", "10.0 ms", "12.3 ms", "12.3 µs", "456 ns", "1.00 ns"),
        *("0.00 ns", "0.00 ns", "999 µs", "1.00 ms", "-2.00 ms", "-20.0 ms"),
    ]


def test_a_timing_shows_its_spread() -> None:
    assert str(Timing(median=0.002, iqr=0.0001, batches=7)) == "2.00 ms ± 50.0 µs"
