"""The numbers of the box In short and the records that they come from."""

import pytest

from utils.cards import agrees, in_short
from utils.record import NotRecorded


@pytest.mark.parametrize(
    "written, value, same",
    [
        ("55", 54.97, True),
        ("55", 55.6, False),
        ("0.5", 0.549, True),
        ("0.50", 0.549, False),
        ("130", 132, True),  # the zero may be rounding
        ("100", 104, True),
        ("100", 140, False),  # but two digits count
        ("10", 10.6, False),
        ("1,000", 1049, True),
        ("-3", -3.2, True),
        ("36,906", 36_906.2, True),
    ],
)
def test_a_number_agrees_if_rounding_gives_it(written, value, same) -> None:
    assert agrees(written, value) is same


def test_the_box_and_where_its_numbers_come_from() -> None:
    table = in_short({"55 of the 63 GB/s": (54.97, 63.0), "15x": 15.3, "`f` in 36,906": 36906.2})
    assert table.rows == [
        ["55 of the 63 GB/s", "54.97, 63", "✓"],
        ["15x", "15.3", "✓"],
        ["`f` in 36,906", "36,906", "✓"],
    ]


def test_from_a_thousand_on_a_computed_number_is_whole_and_has_commas() -> None:
    rows = in_short({"999.4 of 1000": (999.4, 1000.0), "1,235": 1234.56}).rows
    assert [row[1] for row in rows] == ["999.4, 1,000", "1,235"]


def test_a_number_that_the_records_do_not_give(monkeypatch) -> None:
    with pytest.raises(ValueError, match="'55 GB/s', but it is 52; '3x', but it is 4"):
        in_short({"55 GB/s": 52, "1 ms": 1.1, "3x": 4})
    monkeypatch.setenv("BOOK_RECORD_TO", "somewhere")  # new measurements: the box has to follow
    assert in_short({"55 GB/s": 52}).rows == [["55 GB/s", "52", "✗"]]


@pytest.mark.parametrize("given", [1.0, (1.0, 2.0, 3.0)])
def test_as_many_numbers_as_the_text_holds(given) -> None:
    with pytest.raises(ValueError, match="holds the numbers"):
        in_short({"10 of 10": given})


def test_a_draft_leaves_the_box_open() -> None:
    assert in_short({"55 GB/s": NotRecorded()}).rows == [["55 GB/s", "—", "open"]]
