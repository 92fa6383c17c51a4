"""Cards of predictions, and the box In short: what they say, and what they refuse to say."""

from html.parser import HTMLParser

import pytest

from cases import cases
from utils.cards import Card, agrees, format_value, in_short, numbers_in, prediction, verdict
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


class Shown(HTMLParser):
    """Which headers are there, and what a reader hears."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.scopes: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs) -> None:
        self.scopes += [value for name, value in attrs if name == "scope"]

    def handle_data(self, data: str) -> None:
        self.text += data + "|"


def test_a_card_as_a_table_says_all_of_it_in_words() -> None:
    html = Card([COPY, SEND], [LINE])._repr_html_()
    shown = Shown(html)
    assert shown.text.split("|")[:-2] == [
        *("Prediction", "Predicted", "Measured", "Factor"),
        *("Copy", "because the bus", "2.00 GB/s", "1.50 GB/s", "✗ 0.75 miss"),
        *("Send & wait", "because <64 MiB", "4.00 ms", "4.10 ms", "✓ 1.02 hit", "\n"),
    ]
    assert shown.scopes == ["col"] * 4 + ["row"] * 2
    assert LINE in html.splitlines(), "on a line of its own, which comparisons leave out"


def test_the_reader_s_own_machine_beside_the_reference() -> None:
    card = Card([COPY, SEND], ["live on a laptop"], {"Copy": 1.4, "Send & wait": None})
    assert card.headers()[-1] == "Reference"
    assert [row[-1] for row in card.rows()] == ["1.40 GB/s", ""]
    assert "1.40 GB/s" in repr(card) and "1.40 GB/s" in card._repr_html_()


def test_two_cards_add_up_to_one() -> None:
    card = Card([COPY], [LINE], {"Copy": 1.4}) + Card([SEND], [LINE], {"Send & wait": 3.9})
    card += Card([{**COPY, "later": True}], ["live on a laptop"])
    assert [row[0] for row in card.rows()] == ["Copy", "Send & wait", "later: Copy"]
    assert [row[-1] for row in card.rows()] == ["1.40 GB/s", "3.90 ms", "1.40 GB/s"]
    assert card.lines == [LINE, "live on a laptop"]


def test_a_hit_is_within_a_factor_either_way_the_limits_included() -> None:
    for says, pairs in {
        "hit": [(4, 5), (5, 4), (1, 1)],
        "miss": [(4, 5.01), (5, 3.99), (1, -1), (1, 0)],
        "open": [(1, None)],
    }.items():
        for predicted, measured in pairs:
            assert verdict({"predicted": predicted, "measured": measured}) == says


def test_what_was_not_measured_is_neither() -> None:
    row = Card([{**COPY, "measured": None}], ["NOT RECORDED YET: speed"]).rows()[0]
    assert row == ["Copy", "2.00 GB/s", "not measured", "· open"]


def test_a_ratio_needs_a_positive_prediction_and_a_reason() -> None:
    for value in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive"):
            prediction("Copy", value, "GB/s", because="the bus")
    with pytest.raises(ValueError, match="guess"):
        prediction("Copy", 1, "s", because=" ")


def test_values_have_three_digits_and_very_small_or_large_ones_a_power_of_ten() -> None:
    values = (0, 0.0123, 1.5, 54.97, 4729, 1e-3, 9.99e-4, -0.0012, 999_999, 1e6, float("nan"))
    assert [format_value(value, "s") for value in values] == [
        *("0 s", "0.0123 s", "1.50 s", "55.0 s", "4,729 s", "0.00100 s", "9.99e-04 s"),
        *("-0.00120 s", "999,999 s", "1.00e+06 s", "—"),
    ]


# --- the box In short -----------------------------------------------------------------------------


@pytest.mark.parametrize("text, numbers", cases("test_numbers_that_a_text_claims"))
def test_numbers_that_a_text_claims(text, numbers) -> None:
    assert numbers_in(text) == numbers.split()


@pytest.mark.parametrize("written, value, same", cases("test_a_number_agrees_if_rounding_gives_it"))
def test_a_number_agrees_if_rounding_gives_it(written, value, same) -> None:
    assert agrees(written, value) is same


def test_the_box_and_where_its_numbers_come_from() -> None:
    table = in_short({"55 of the 63 GB/s": (54.97, 63.0), "`f` in 36,906": 36906.2, "999": 999.4})
    assert table.rows == [
        ["55 of the 63 GB/s", "54.97, 63", "✓"],
        ["`f` in 36,906", "36,906", "✓"],
        ["999", "999.4", "✓"],
    ]


def test_a_number_that_the_records_do_not_give(monkeypatch) -> None:
    with pytest.raises(ValueError, match="'55 GB/s', but it is 52; '3x', but it is 4"):
        in_short({"55 GB/s": 52, "1 ms": 1.1, "3x": 4})
    monkeypatch.setenv("BOOK_RECORD_TO", "somewhere")  # new measurements: the box has to follow
    assert in_short({"55 GB/s": 52}).rows == [["55 GB/s", "52", "✗"]]


def test_a_piece_is_given_as_many_numbers_as_it_holds_and_a_draft_leaves_it_open() -> None:
    for given in (1.0, (1.0, 2.0, 3.0)):
        with pytest.raises(ValueError, match="holds the numbers"):
            in_short({"10 of 10": given})
    assert in_short({"55 GB/s": NotRecorded()}).rows == [["55 GB/s", "—", "open"]]
