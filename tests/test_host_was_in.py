"""What the host was in while the GPU waited, from spans that are planted here."""

import pytest

from utils.bounds.evidence import calls_in, host_was_in
from utils.profile import Span, Trace, Work


def test_each_call_has_its_time_in_the_stretches_most_first() -> None:
    times = [("Free", 50, 60), ("Malloc", 0, 4), ("Free", 20, 23), ("HostAlloc", 30, 40)]
    times += [("MemMap", 2, 26), ("MallocAsync", 3, 3), ("LaunchKernel", 0, 90)]  # a short launch
    trace = Trace(calls=[Span(f"cuda{name}", begin, end) for name, begin, end in times])
    found = calls_in(trace, [(20, 30), (0, 10), (40, 70)])
    assert [*found.items()] == [("cudaMemMap", 14), ("cudaFree", 13), ("cudaMalloc", 4)]
    late = Trace(calls=[Span("cudaMalloc", 0, 4), Span("cudaLaunchKernel", 5, 1_500)])
    assert calls_in(late, [(3, 20)]) == {"cudaLaunchKernel": 15, "cudaMalloc": 1}
    assert calls_in(late, []) == calls_in(Trace(), [(3, 20)]) == {}


def waits(python=(), operators=(), ranges=()) -> dict[str, float]:
    """Where a host is that launches nothing from 0 to 1,000, on its third thread."""
    call = Span("cudaLaunchKernel", 1_000, 1_005, 3, {"correlation": 1})
    work = Work("kernel", 1_010, 1_020, 7, {"correlation": 1})
    spans = {"python": python, "operators": operators, "ranges": ranges}
    spans = {k: [Span(n, a, b, 3) for n, a, b in found] for k, found in spans.items()}
    spans["python"].append(Span("another thread", 0, 1_000, 0))
    return host_was_in(Trace(**spans, calls=[call], work=[work]), [(600, 1_000), (0, 600)])


@pytest.mark.parametrize("part, said", [(200, "an operator"), (210, "a function")])
def test_functions_count_if_they_have_a_fifth_of_the_time(part, said) -> None:
    found = waits([("a function", 0, part)], [("an operator", 0, 900)], [("a range", 0, 1_000)])
    assert list(found) == [said]


def test_without_functions_and_operators_ranges_tell_but_not_that_it_is_a_step() -> None:
    ranges = [("ProfilerStep#3", 0, 1_000), ("step", 0, 1_000), ("evaluate", 100, 400)]
    assert waits(ranges=ranges) == {"evaluate": 0.3}
    assert waits(ranges=ranges[:2]) == waits() == {}


def test_three_names_at_most_and_none_of_a_twentieth() -> None:
    found = waits([("a", 0, 100), ("b", 100, 300), ("c", 300, 600), ("d", 600, 950)])
    assert list(found.items()) == [("d", 0.35), ("c", 0.3), ("b", 0.2)]
    assert waits([("a", 0, 500), ("b", 500, 550), ("c", 550, 610)]) == {"a": 0.5, "c": 0.06}


def test_the_innermost_function_has_the_time() -> None:
    assert waits([("inner", 0, 400), ("outer", 0, 1_000)]) == {"outer": 0.6, "inner": 0.4}
    crossed = [("all", 0, 1_000), ("first", 0, 600), ("second", 300, 800), ("first", 900, 1_000)]
    assert waits(crossed) == pytest.approx({"second": 0.5, "first": 0.4, "all": 0.1})


def test_of_two_that_cross_at_the_end_no_moment_counts_twice() -> None:
    crossed = [("all", 0, 900), ("first", 0, 600), ("second", 300, 800)]
    assert waits(crossed) == pytest.approx({"second": 0.5, "first": 0.3, "all": 0.1})


def test_a_function_of_c_is_named_with_who_called_it_just_now() -> None:
    sleep = "<built-in function sleep>"
    called = [("main", 0, 1_000), ("before", 0, 400), (sleep, 400, 1_000)]
    assert waits(called) == {f"{sleep} in main": 0.6, "before": 0.4}
    assert waits([(sleep, 0, 600)]) == {sleep: 0.6}


def test_objects_at_different_addresses_are_one_name() -> None:
    calls = [("<method of Set at 0x7f01>", 0, 300), ("<method of Set at 0xbeef>", 300, 700)]
    assert waits(calls) == pytest.approx({"<method of Set>": 0.7})
