"""The strip of owners: its colors and its names."""

from dataclasses import replace

import pytest

from utils.bounds import INK, signature, strip
from utils.plotting import figure, plt
from utils.profile import COLORS, Span, Trace, Work


@pytest.fixture
def trace() -> Trace:
    """A step of 1,000 µs: a loader for 400, then kernels with pauses of a microsecond."""
    calls, work = [], []
    for number in range(50):
        args = {"correlation": number}
        calls.append(Span("cudaLaunchKernel", 395 + 0.1 * number, 395 + 0.1 * number, args=args))
        begin = 400 + 12.0 * number
        work.append(Work("kernel", begin, begin + 11, 7, args))
    ranges = [Span("step", 0, 1000), Span("data", 0, 400)]
    return Trace(ranges=ranges, calls=calls, work=work, device="NVIDIA H200")


@pytest.fixture
def ax():
    fig, ax = figure("Who owns the step?")
    yield ax
    plt.close(fig)


def test_an_owner_is_named_across_pauses_of_a_microsecond(trace, ax) -> None:
    strip(ax, trace, 0, 0, 1000)
    assert [text.get_text() for text in ax.texts] == ["data", "computing"]


def test_names_that_do_not_fit_are_left_out(trace, ax) -> None:
    strip(ax, trace, 0, 380, 1000)
    assert [text.get_text() for text in ax.texts] == ["computing"]


def test_pieces_that_lie_far_apart_are_not_named_together(trace, ax) -> None:
    """With pauses as long as they are; or after a pause that is longer than the first piece."""
    short = [replace(work, end=work.begin + 6.5) for work in trace.work]
    strip(ax, replace(trace, work=short), 0, 0, 1000)
    assert [text.get_text() for text in ax.texts] == ["data"]
    late = [replace(trace.work[0], begin=392, end=393), replace(trace.work[0], end=1000)]
    strip(ax, replace(trace, work=late, calls=[replace(trace.calls[0], begin=0)]), 0, 0, 1000)
    assert ax.texts[-1].get_text() == "computing" and ax.texts[-1].get_position()[0] == 700


def test_a_signature_has_a_lane_for_the_owner_and_ends_with_the_steps(trace) -> None:
    ax = signature(trace, "Who owns the step?", 0, 9000).axes[0]
    plt.close(ax.figure)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[-1] == "owner" and "GPU" in labels and ax.get_xlim() == (0, 1000)


def test_no_color_of_an_owner_means_something_else_in_a_timeline() -> None:
    same = {
        ("arithmetic", "kernel"),
        ("data", "copy"),
        ("copying", "copy"),
    }
    same |= {("python", "launch"), ("memory", "operator"), ("silent host", "other call")}
    same |= {("idle, already launched", "wait")}
    clashes = {(o, k) for o, ink in INK.items() for k, color in COLORS.items() if ink == color}
    assert clashes == same
