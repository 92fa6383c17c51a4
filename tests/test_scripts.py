"""The scripts of the book: shown in the page, they explain themselves, and run."""

import ast
import re
import runpy
import sys

import pytest

from pasted import Done
from ranks import quick
from utils.ranks import Source, torchrun
from utils.ranks import start as scripts
from utils.record import SCRIPTS

# Chapter 0's script is for pasting, and says there how to use it: test_quickstart.py.
# What has no main guard is what scripts share.
# Measured while it took its model from utils; recorded again without, it leaves the list.
NOT_ALONE = ("first_step.py",)
FILES = sorted(
    path
    for path in SCRIPTS.glob("*.py")
    if '"__main__"' in path.read_text() and path.name not in NOT_ALONE
)
RANKED = [path for path in FILES if "torch.distributed" in path.read_text()]
every_script = pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
every_ranked_script = pytest.mark.parametrize("path", RANKED, ids=lambda p: p.name)


def test_source_shows_the_file_or_parts_of_it(monkeypatch, tmp_path) -> None:
    text = "import os\n\n\n@cache\ndef one():\n    # why\n    return 1\n\n\nclass Two:\n    pass\n"
    (tmp_path / "s.py").write_text(text)
    monkeypatch.setattr(scripts, "SCRIPTS", tmp_path)
    assert repr(Source("s.py")) == "# book/scripts/s.py\n" + text.strip()
    shown = Source("s.py", "Two", "one")._repr_markdown_()
    parts = "class Two:\n    pass\n\n\n@cache\ndef one():\n    # why\n    return 1"
    assert shown == f"`book/scripts/s.py`\n\n```python\n{parts}\n```"
    with pytest.raises(ValueError, match="defines one, Two, but not three"):
        Source("s.py", "three")
    with pytest.raises(FileNotFoundError):
        Source("t.py")


@pytest.fixture
def start(run):
    """A function that starts a script with arguments, as Python would in a terminal."""

    def start(*command: str) -> Done:
        return run(START.format(command=[str(part) for part in command]))

    return start


START = """
import os, runpy, sys
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)
sys.argv = {command}
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@every_script
def test_scripts_explain_themselves(path, start) -> None:
    done = start(path, "--help")
    assert done.status == 0 and "usage:" in done.out, done.err
    how = "torchrun " if path in RANKED else "python "
    assert how in (ast.get_docstring(ast.parse(path.read_text())) or "")


@every_ranked_script
def test_scripts_started_without_torchrun_say_so(path, start) -> None:
    done = start(path)
    assert done.status not in (0, None) and "torchrun" in done.err
    assert "Traceback" not in done.err


@every_script
def test_scripts_stand_alone(path) -> None:
    text = path.read_text()
    assert not re.search(r"^\s*(?:from|import) utils", text, re.MULTILINE)
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    long = [f.name for f in functions if f.end_lineno - f.lineno >= 50]
    assert not long and len(text.splitlines()) <= 400


def test_by_hand_refuses_a_batch_that_cannot_be_shared(monkeypatch, capfd) -> None:
    """Before it joins a group: 7 samples on 2 ranks were a traceback in the middle."""
    monkeypatch.syspath_prepend(str(SCRIPTS))  # as Python does for a script that it starts
    monkeypatch.setattr(sys, "argv", ["by_hand.py", "--samples", "7"])
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(SCRIPTS / "by_hand.py"), run_name="__main__")
    assert "a multiple of 2, at least 6" in capfd.readouterr().err


def test_five_bugs_knows_how_many_there_are(capsys, monkeypatch) -> None:
    bugs = runpy.run_path(str(SCRIPTS / "five_bugs.py"))
    for wrong in (-1, 6):
        monkeypatch.setattr(sys, "argv", ["five_bugs.py", f"--show={wrong}"])
        with pytest.raises(SystemExit, match="2"):
            bugs["main"]()
        assert "invalid choice" in capsys.readouterr().err


@quick
@pytest.mark.usefixtures("nothing_left")
def test_training_speed_can_be_measured_without_a_gpu() -> None:
    options = ["--model", "mlp", "--batch", 8, "--global-batch", 8, "--ranks", 1, 2]
    options += ["--wrap", "auto", "lean", "--steps", 1, "--blocks", 1]
    rows = torchrun("ddp_speed.py", *options, ranks=2, device="cpu", quiet=True)[0]["rows"]
    tried = [(row["ranks"], row["batch"], row["wrapped"], row["lean"]) for row in rows]
    one, two = [(1, 8, False, False)], [(2, 8, True, False), (2, 8, True, True)]
    assert tried == one + two + [(2, 4, True, False), (2, 4, True, True)]
    assert all(row["step_ms"] > 0 for row in rows)
