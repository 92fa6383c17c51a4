"""Figures and tables in one style."""

import matplotlib
import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_rgb

from utils import plotting
from utils.plotting import COLORS, Table, bars, drawing, figure, name_rows, notes, show, ticks


@pytest.fixture(autouse=True)
def no_window(monkeypatch):
    """Draw without a screen, and leave no figure open."""
    backend = matplotlib.get_backend()
    plt.switch_backend("agg")
    shown = []
    monkeypatch.setattr(plotting.plt, "show", lambda: shown.append(plt.gcf()))
    yield shown
    plt.close("all")
    plt.switch_backend(backend)


def test_a_figure_has_a_title_and_labels() -> None:
    fig, ax = figure("What it says", "size", "GB/s")
    assert ax.get_title(loc="left") == "What it says"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("size", "GB/s")
    assert fig.get_size_inches().tolist() == [6.0, 3.9]


def test_axes_side_by_side_share_labels_and_one_title() -> None:
    fig, axes = figure("Two views", "size", "GB/s", columns=2, height=3.0)
    assert [ax.get_xlabel() for ax in axes] == ["size", "size"]
    assert fig.get_suptitle() == "Two views"
    assert fig.get_size_inches().tolist() == [6.0, 3.0]


def test_a_drawing_has_limits_and_no_axes() -> None:
    _, ax = drawing("Boxes", (0, 6), (-1, 2), height=2.6)
    assert (ax.get_xlim(), ax.get_ylim(), ax.axison) == ((0, 6), (-1, 2), False)


def test_rows_are_named_from_the_top() -> None:
    _, ax = figure("A title")
    name_rows(ax, {"first": 1, "second": 2}, fontsize=11)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["first", "second"]
    assert ax.yaxis_inverted() and not any(line.get_visible() for line in ax.get_ygridlines())


def test_an_axis_has_the_ticks_asked_for_and_the_other_keeps_its_own() -> None:
    _, ax = figure("A title")
    ax.set(xscale="log", yscale="log", xlim=(0.1, 9_000), ylim=(1, 100))
    ticks(ax, x=[0.3, 1000])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.3", "1,000"]
    assert len(ax.get_yticks()) > 2 and not len(ax.get_xticks(minor=True))


def test_notes_stand_where_they_are_put() -> None:
    _, ax = figure("A title")
    notes(ax, (1, 2, "black"), (3, 4, "red", "r"), ha="right")
    found = [(text.get_text(), *text.get_position(), text.get_color()) for text in ax.texts]
    assert found == [("black", 1, 2, "black"), ("red", 3, 4, "r")]
    assert {(text.get_size(), text.get_ha()) for text in ax.texts} == {(11, "right")}


def test_letters_stay_legible_and_the_page_cannot_shine_through() -> None:
    assert plt.rcParams["font.size"] >= 12
    assert len(plt.rcParams["savefig.facecolor"]) == 7, "no transparency"


def test_colors_are_distinct_also_in_grey() -> None:
    assert len(set(COLORS)) == len(COLORS)
    contrast = [1 - (0.3 * r + 0.59 * g + 0.11 * b) for r, g, b in map(to_rgb, COLORS)]
    assert min(contrast) > 0.25, "visible on white"


@pytest.mark.parametrize(
    ("where", "note"),
    [
        ("NVIDIA H100, torch 2.11", "measured on NVIDIA H100, torch 2.11"),
        ("drawing", "drawing"),
        ("computed from a datasheet", "computed from a datasheet"),
    ],
)
def test_a_figure_says_where_it_was_measured(no_window, where, note) -> None:
    fig, _ = figure("A title")
    show(fig, where)
    assert fig.get_supxlabel() == note
    assert no_window == [fig]


@pytest.mark.parametrize("where", ["", "   ", "\n"])
def test_a_figure_that_says_nothing_is_not_shown(no_window, where) -> None:
    fig, _ = figure("A title")
    with pytest.raises(ValueError, match="where this was measured"):
        show(fig, where)
    assert not no_window


def test_a_table_as_markdown() -> None:
    table = Table(["code", "time", "outcome"], [["`x | y`", "1.5 s", "works"], ["z", "–", None]])
    assert table._repr_markdown_() == (
        "| code | time | outcome |\n| :-- | --: | :-- |\n"
        "| `x \\| y` | 1.5 s | works |\n| z | – | None |"
    )


def test_a_table_as_text_is_aligned() -> None:
    assert repr(Table(["size", "GB/s"], [["1 KiB", 0.1], ["1 GiB", 55]])) == (
        "size   GB/s\n1 KiB   0.1\n1 GiB    55"
    )


def test_a_table_without_rows_is_only_its_headers() -> None:
    assert repr(Table(["a", "b"], [])) == "a  b"


@pytest.mark.parametrize("row", [[1], [1, 2, 3], []])
def test_a_row_of_the_wrong_length_is_refused(row) -> None:
    with pytest.raises(ValueError, match="2 headers, but a row has"):
        Table(["a", "b"], [[1, 2], row])


def test_bars_read_from_the_top_with_their_values() -> None:
    _, ax = figure("Bars")
    bars(ax, ["first", "second"], [1.0, 2.5], fmt="{:.1f} s")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["first", "second"]
    assert {text.get_text() for text in ax.texts} == {"1.0 s", "2.5 s"}
    assert ax.yaxis_inverted()
    assert ax.get_xlim()[1] > 2.5, "room for the label"
    assert not any(line.get_visible() for line in ax.get_ygridlines()), "no lines through bars"
    assert all(line.get_visible() for line in ax.get_xgridlines())


def test_parts_of_a_row_follow_one_another() -> None:
    _, ax = figure("A row")
    drawn = plotting.stack(ax, 2, {"a": 1.0, "b": 3.0}, {"a": "r"})
    assert drawn == [("a", 1.0, 0.5), ("b", 3.0, 2.5)]
    found = [(bar.get_x(), bar.get_width(), bar.get_facecolor()[:3]) for bar in ax.patches]
    assert found == [(0, 1, to_rgb("r")), (1, 3, to_rgb(plotting.GREY))]
