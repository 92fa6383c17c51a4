"""Cards: predictions beside measurements, readable as text, as a table, and by a screen reader."""

from html.parser import HTMLParser

import pytest

from utils.cards import Card, format_value, prediction, verdict
from utils.record import NotRecorded

COPY = {**prediction("Copy", 2.0, "GB/s", because="the bus"), "measured": 1.5}
SEND = {**prediction("Send & wait", 4.0, "ms", because="<64 MiB"), "measured": 4.1}
LINE = "measured on NVIDIA H100, torch 2.11.0, 2026-11-21"


def test_a_card_as_text() -> None:
    assert repr(Card([COPY, SEND], [LINE])) == (
        "Prediction   Predicted   Measured       Factor\n"
        "Copy         2.00 GB/s  1.50 GB/s  ✗ 0.75 miss\n"
        "    because the bus\n"
        "Send & wait    4.00 ms    4.10 ms   ✓ 1.02 hit\n"
        "    because <64 MiB\n" + LINE
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (1e-3, "0.00100 s"),
        (9.99e-4, "9.99e-04 s"),
        (-0.0012, "-0.00120 s"),
        (999_999, "999,999 s"),
        (1e6, "1.00e+06 s"),
    ],
)
def test_numbers_that_are_very_small_or_large_are_written_with_a_power_of_ten(value, text) -> None:
    assert format_value(value, "s") == text


@pytest.mark.parametrize(
    ("predicted", "measured", "word"),
    [(4, 5, "hit"), (5, 4, "hit"), (4, 5.01, "miss"), (5, 3.99, "miss"), (1, 1, "hit")],
)
def test_a_hit_is_within_a_quarter_the_limits_included(predicted, measured, word) -> None:
    assert verdict({"predicted": predicted, "measured": measured}) == word


def test_only_a_later_prediction_says_so() -> None:
    assert "later" not in prediction("Copy", 2, "s", because="the bus")
    assert prediction("Copy", 2, "s", because="the bus", later=True)["later"] is True


class Shown(HTMLParser):
    """Which tags are there, and what a reader hears."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data + "|"


def test_a_card_as_a_table_says_all_of_it_in_words() -> None:
    shown = Shown()
    shown.feed(Card([COPY, SEND], [LINE])._repr_html_())
    for word in (
        "Copy",
        "because the bus",
        "2.00 GB/s",
        "✗ 0.75 miss",
        "✓ 1.02 hit",
        "Send & wait",
    ):
        assert f"{word}|" in shown.text
    scopes = [attrs["scope"] for tag, attrs in shown.tags if tag == "th"]
    assert scopes == ["col"] * 4 + ["row"] * 2
    assert shown.text.split("|")[-2].strip() == LINE


def test_a_machine_stands_on_a_line_of_its_own_so_that_comparisons_can_leave_it_out() -> None:
    assert LINE in Card([COPY], [LINE])._repr_html_().splitlines()


def test_the_reader_s_own_machine_beside_the_reference() -> None:
    card = Card([COPY, SEND], ["live on a laptop"], {"Copy": 1.4})
    assert card.headers()[-1] == "Reference"
    assert [row[-1] for row in card.rows()] == ["1.40 GB/s", ""]
    assert "1.40 GB/s" in repr(card) and "1.40 GB/s" in card._repr_html_()


def test_two_cards_add_up_to_one() -> None:
    card = Card([COPY], [LINE]) + Card([SEND], [LINE]) + Card([COPY], ["live on a laptop"])
    assert [entry["quantity"] for entry in card.entries] == ["Copy", "Send & wait", "Copy"]
    assert card.lines == [LINE, "live on a laptop"]


def test_a_later_prediction_is_marked() -> None:
    later = {**prediction("Copy", 1.6, "GB/s", because="headers", later=True), "measured": 1.5}
    assert [row[0] for row in Card([COPY, later], [LINE]).rows()] == ["Copy", "later: Copy"]


@pytest.mark.parametrize(
    "measured, says",
    [(0.79, "miss"), (0.81, "hit"), (1.24, "hit"), (1.26, "miss"), (-1, "miss"), (0, "miss")],
)
def test_a_hit_is_within_a_factor_either_way(measured, says) -> None:
    assert verdict({"predicted": 1.0, "measured": measured}) == says


@pytest.mark.parametrize("nothing", [NotRecorded(), float("nan")])
def test_what_was_not_measured_is_neither(nothing) -> None:
    row = Card([{**COPY, "measured": nothing}], ["NOT RECORDED YET: speed"]).rows()[0]
    assert row[-2:] == ["not measured", "· open"]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_ratio_needs_a_positive_prediction(value) -> None:
    with pytest.raises(ValueError, match="positive"):
        prediction("Copy", value, "GB/s", because="the bus")


def test_a_prediction_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="guess"):
        prediction("Copy", 1, "s", because=" ")


@pytest.mark.parametrize(
    "value, shown",
    [
        (0.0, "0 s"),
        (0.0123, "0.0123 s"),
        (1.5, "1.50 s"),
        (54.97, "55.0 s"),
        (4729, "4,729 s"),
        (2e-5, "2.00e-05 s"),
        (3e9, "3.00e+09 s"),
    ],
)
def test_values_have_three_digits(value, shown) -> None:
    assert format_value(value, "s") == shown
