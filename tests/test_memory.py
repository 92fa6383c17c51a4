"""Sizes in readable units."""

import pytest

from utils.memory import GIB, KIB, MIB, format_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (KIB, "1 KiB"),
        (1536, "1.5 KiB"),
        (20 * MIB, "20 MiB"),
        (1000 * MIB, "1000 MiB"),  # never "1e+03 MiB"
        (999.7 * MIB, "1000 MiB"),
        (1023 * KIB, "1023 KiB"),
        (3.814697265625 * MIB, "3.81 MiB"),
        (80 * GIB, "80 GiB"),
        (2000 * GIB, "2000 GiB"),
        (-2 * MIB, "-2 MiB"),
    ],
)
def test_bytes_in_readable_units(count, text) -> None:
    assert format_bytes(count) == text


def test_bytes_must_be_a_number() -> None:
    with pytest.raises(TypeError):
        format_bytes("20 MiB")
