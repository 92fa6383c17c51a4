"""The fingerprint changes with the code that was measured, and with nothing else."""

import pytest

from utils import fingerprint as module
from utils.fingerprint import fingerprint, source_of

CELLS = [
    "import torch\nSIZES = [1, 2]\nother = 3",
    "def helper(n):\n    return n * SIZES[0]",
    "class Unused:\n    pass",
    '@experiment(needs="cuda")\ndef run():\n    # why\n\n    return helper(other)',
]


def changed(index: int, old: str, new: str) -> bool:
    assert old in CELLS[index]
    cells = list(CELLS)
    cells[index] = cells[index].replace(old, new)
    return fingerprint("run", cells) != fingerprint("run", CELLS)


def test_covers_the_experiment_and_all_it_uses() -> None:
    assert source_of("run", CELLS) == (
        '@experiment(needs="cuda")\ndef run():\n    return helper(other)\n\n'
        "SIZES = [1, 2]\n\n"
        "def helper(n):\n    return n * SIZES[0]"
    )


@pytest.mark.parametrize(
    "index, old, new",
    [
        (3, "helper(other)", "helper(other) + 1"),
        (3, '"cuda"', '"gpus:2"'),
        (1, "n *", "n +"),
        (0, "[1, 2]", "[1, 3]"),
    ],
)
def test_changes_with_what_was_measured(index: int, old: str, new: str) -> None:
    assert changed(index, old, new)


@pytest.mark.parametrize(
    "index, old, new",
    [
        (3, "# why", "# because"),
        (3, "\n\n", "\n\n\n"),
        (0, "other = 3", "other = 4"),
        (2, "pass", "x = 1"),
    ],
)
def test_ignores_comments_blank_lines_and_unrelated_code(index: int, old: str, new: str) -> None:
    assert not changed(index, old, new)


def test_of_two_definitions_the_later_counts() -> None:
    assert "return 2" in source_of("f", ["def f():\n    return 1", "def f():\n    return 2"])


@pytest.mark.parametrize(
    "cell", ["A, B = 1, 2", "(A, B), c = (1, 2), 3", "A = B = 2", "B: int = 2"]
)
def test_constants_assigned_together_are_covered(cell: str) -> None:
    cells = [cell, "def run():\n    return B"]
    assert cell in source_of("run", cells)
    assert fingerprint("run", cells) != fingerprint("run", [cell.replace("2", "5"), cells[1]])


def test_scripts_that_an_experiment_names_are_covered(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "SCRIPTS", tmp_path)
    script = tmp_path / "train.py"
    script.write_text("# why\nspeed = 1\n")
    cells = ['NAME = "train.py"', "def start():\n    go(NAME)", "def run():\n    start()"]
    before = fingerprint("run", cells)
    assert source_of("run", cells).endswith("\n\nspeed = 1")
    script.write_text("# because\n\nspeed = 1\n")
    assert fingerprint("run", cells) == before
    script.write_text("speed = 2\n")
    assert fingerprint("run", cells) != before
    assert "speed" not in source_of("run", [*cells[1:], 'def other():\n    return "train.py"'])


def test_scripts_that_a_script_imports_are_covered(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "SCRIPTS", tmp_path)
    (tmp_path / "a.py").write_text("import os, b\n")
    (tmp_path / "b.py").write_text("from c import x\nfrom a import y\n")
    (tmp_path / "c.py").write_text("x = 1\n")
    assert "x = 1" in source_of("run", ['def run():\n    go("a.py")'])


def test_cells_that_are_not_python_define_nothing() -> None:
    assert source_of("f", ["%matplotlib inline", "!ls", "def f():\n    pass"])


def test_unknown_name() -> None:
    with pytest.raises(KeyError, match="no cell defines 'nothing'"):
        fingerprint("nothing", CELLS)
