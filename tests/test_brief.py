"""Which numbers of the box In short count; how they are checked: test_in_short.py."""

import pytest

from utils.cards import numbers_in


@pytest.mark.parametrize(
    "text, numbers",
    [
        ("- 15x at 55 GB/s, 93%, in 2.5 ms", ["15", "55", "93", "2.5"]),
        ("36,906 images; of 63, 10 of 10.", ["36,906", "63", "10", "10"]),
        (
            "1.1 to 1.9, 4–7, 10-20, 1/3, 1,2",
            ["1.1", "1.9", "4", "7", "10", "20", "1", "3", "1", "2"],
        ),
        ("from -3 to −4 (-5)", ["-3", "−4", "-5"]),
        ("**55** GB/s, *7* s, [8 GB/s](03_tensors.ipynb)", ["55", "7", "8"]),
        ("80GB of 2 cards, 10^9 bytes", ["80", "2", "10"]),
    ],
)
def test_numbers_of_a_text(text, numbers) -> None:
    assert numbers_in(text) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "`x[3]`, ``a `4` b``",
        "float32, H100, bf16, PCIe5, x16, ResNet-50, 2D, 3rd, 12th",
        "PCIe 5, Python 3.12, PyTorch 2.11.0, torch **2.11.0+cu130**, CUDA 13.0, NVLink 4, HBM 3",
        "chapter 4, [chapter 1.5](15_transfers.ipynb), Chapters 2, Figure 3",
        "https://docs.pytorch.org/docs/2.11/ and [there](https://a.b/2)",
        "1. one\n2. two",
    ],
)
def test_numbers_that_claim_nothing(text) -> None:
    assert numbers_in(text) == []


def test_a_name_covers_only_the_number_that_follows_it() -> None:
    assert numbers_in("PCIe 5 carries 63 GB/s, torch makes 2 copies") == ["63", "2"]
    assert numbers_in("chapters 4 and 5") == ["5"]
