"""The fingerprint changes with the code that was measured, and with nothing else."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from utils import fingerprint as module
from utils.fingerprint import MEASURING, fingerprint, source_of

CELLS = [
    "import torch\nfrom torch.nn import functional as F\nSIZES = [1, 2]\nother = 3",
    "def helper(n):\n    return F.relu(n) * SIZES[0]",
    "class Unused:\n    pass",
    '@experiment(needs="cuda")\ndef run():\n    """Why."""\n    # why\n\n    return helper(other)',
]


def changed(index: int, old: str, new: str) -> bool:
    assert old in CELLS[index]
    cells = list(CELLS)
    cells[index] = cells[index].replace(old, new)
    return fingerprint("run", cells) != fingerprint("run", CELLS)


def test_covers_the_experiment_and_all_it_uses() -> None:
    assert source_of("run", CELLS) == (
        '@ experiment ( needs = "cuda" )\ndef run ( ) :\n    return helper ( other )\n\n'
        "SIZES = [ 1 , 2 ]\n\n"
        "def helper ( n ) :\n    return F . relu ( n ) * SIZES [ 0 ]\n\n"
        "F = torch.nn.functional"
    )


@pytest.mark.parametrize(
    "index, old, new",
    [
        (3, "helper(other)", "helper(other) + 1"),
        (3, '"cuda"', '"gpus:2"'),
        (1, "n)", "n +"),
        (1, "* SIZES", "+ SIZES"),
        (0, "[1, 2]", "[1, 3]"),
        (0, "from torch.nn import", "from other import"),
    ],
)
def test_changes_with_what_was_measured(index: int, old: str, new: str) -> None:
    assert changed(index, old, new)


@pytest.mark.parametrize(
    "index, old, new",
    [
        (3, "# why", "# because"),
        (3, "Why.", "Because.\n\n    All of it.\n    "),
        (3, "(other)", "(other)  # at last"),
        (3, "(other)", "(\n        other\n    )"),
        (3, "\n\n", "\n\n\n"),
        (0, "other = 3", "other = 4"),
        (0, "import torch\n", "import os, torch\n"),
        (2, "pass", "x = 1"),
    ],
)
def test_ignores_comments_docstrings_layout_and_unrelated_code(index, old, new) -> None:
    assert not changed(index, old, new)


def test_of_two_definitions_the_later_counts() -> None:
    assert "return 2" in source_of("f", ["def f():\n    return 1", "def f():\n    return 2"])


@pytest.mark.parametrize(
    "cell", ["A, B = 1, 2", "(A, B), c = (1, 2), 3", "A = B = 2", "B: int = 2"]
)
def test_constants_assigned_together_are_covered(cell: str) -> None:
    cells = [cell, "def run():\n    return B"]
    assert fingerprint("run", cells) != fingerprint("run", [cell.replace("2", "5"), cells[1]])


def test_cells_that_are_not_python_define_nothing() -> None:
    assert source_of("f", ["%matplotlib inline", "!ls", "def f():\n    pass"])


def test_unknown_name() -> None:
    with pytest.raises(KeyError, match="no cell defines 'nothing'"):
        fingerprint("nothing", CELLS)


# --- the same text on every Python ---------------------------------------------------------------

STRINGS = '''
@first
@second("a # b", key="c")
class Böx(Base, metaclass=M):
    """Docstring with 'quotes' and # no comment."""

    text = """two

    # lines, not a comment
    """
    raw, data, joined = r"\\d#", b"\\x00#", "a" 'b' f"c"

    def f(self, µ: int = 1_000) -> str:
        "another docstring"
        x = 1 + \\
            2; y = {
            "k": [1, 2],  # trailing
        }
        é = f"# {self.g(f'{x!r:>{µ}}')} {{}} {y['k'][0]:.2f}" + 'é'  # ü
        return f"""{x}
  # kept {
            µ
        } é""" rf'\\{x}' f""

    async def g(self, *, a=lambda: 0x1F, **b): return ...
'''
TEXT = r'''@ first
@ second ( "a # b" , key = "c" )
class Böx ( Base , metaclass = M ) :
    text = """two

    # lines, not a comment
    """
    raw , data , joined = r"\d#" , b"\x00#" , "a" 'b' f"c"
    def f ( self , µ : int = 1_000 ) -> str :
        x = 1 + 2 ; y = { "k" : [ 1 , 2 ] , }
        é = f"# {self.g(f'{x!r:>{µ}}')} {{}} {y['k'][0]:.2f}" + 'é'
        return f"""{x}
  # kept {
            µ
        } é""" rf'\{x}' f""
    async def g ( self , * , a = lambda : 0x1F , ** b ) : return ...'''
OTHERS = [p for v in range(10, 16) if (p := shutil.which(f"python3.{v}"))]


def test_every_kind_of_string_comment_and_layout() -> None:
    assert source_of("Böx", [STRINGS]) == TEXT


@pytest.mark.parametrize("python", OTHERS, ids=lambda p: Path(p).name)
def test_the_same_text_on_the_other_pythons_of_this_machine(python: str) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from utils.fingerprint import source_of\n"
        "sys.stdout.buffer.write(source_of('Böx', [sys.argv[2]]).encode())"
    )
    command = [python, "-X", "utf8", "-B", "-c", code, str(module.UTILS.parent), STRINGS]
    done = subprocess.run(command, capture_output=True)
    if b"command not found" in done.stderr:  # a version manager's stand-in
        pytest.skip(f"{python} does not start")
    assert done.stdout.decode() == TEXT, done.stderr.decode()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="not Python before 3.12")
def test_the_same_quotes_within_an_f_string() -> None:
    cell = 'A = f"{d["a # b"]}"  # why'
    assert source_of("A", [cell]) == 'A = f"{d["a # b"]}"'


# --- helpers -------------------------------------------------------------------------------------

HELPERS = {
    "models": '"""Networks."""\nfrom torch import nn\nfrom utils.plotting import BLUE\n'
    "from utils.timing import clock\nWIDTH = 32\nlimit = 3\nlimit += 1\n\n\n"
    'class Net(nn.Module):\n    """A net."""\n\n    size = WIDTH\n\n\n'
    "def draw(ax):\n    return BLUE\n\n\ndef slow():\n    return clock() + limit\n",
    "timing": "import time\n\n\ndef clock():\n    return time.time()\n",
    "plotting": "BLUE = 'blue'\n",
}


@pytest.fixture
def helpers(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(module, "UTILS", tmp_path)
    monkeypatch.setattr(module, "SCRIPTS", tmp_path)
    for name, text in HELPERS.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


WAYS = [
    "from utils.models import Net, slow\ndef run():\n    return Net(), slow()",
    "from utils.models import Net as N\nfrom utils import models\n"
    "def run():\n    return N(), models.slow()",
    "import utils.models\ndef run():\n    return utils.models.Net(), utils.models.slow()",
    "def run():\n    from utils.models import Net, slow\n    return Net(), slow()",
    "from utils import models\ndef run():\n    return every(models)",
]


@pytest.mark.parametrize("cell", WAYS)
@pytest.mark.parametrize(
    "file, old, new",
    [
        ("models", "size = WIDTH", "size = 2 * WIDTH"),
        ("models", "WIDTH = 32", "WIDTH = 64"),
        ("models", "limit += 1", "limit += 2"),
        ("models", "+ limit", "- limit"),
        ("timing", "time.time()", "time.perf_counter()"),
        ("timing", "import time", "import mytime as time"),
    ],
)
def test_helpers_that_measure_are_followed_name_by_name(helpers, cell, file, old, new) -> None:
    before = fingerprint("run", [cell])
    path = helpers / f"{file}.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert fingerprint("run", [cell]) != before


@pytest.mark.parametrize("cell", WAYS[:-1])
@pytest.mark.parametrize(
    "file, old, new",
    [
        ("models", "A net.", "One net."),
        ("models", "Networks.", "All networks."),
        ("models", "WIDTH = 32", "WIDTH = 32  # channels"),
        ("models", "return BLUE", "return 2 * BLUE"),
        ("models", "import BLUE", "import BLUE, Table"),
        ("plotting", "'blue'", "'red'"),
    ],
)
def test_what_a_helper_says_or_draws_does_not_count(helpers, cell, file, old, new) -> None:
    before = fingerprint("run", [cell])
    path = helpers / f"{file}.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert fingerprint("run", [cell]) == before


def test_a_helper_may_move(helpers, monkeypatch) -> None:
    cell = "from utils.timing import clock\ndef run():\n    return clock()"
    before = fingerprint("run", [cell])
    (helpers / "timing.py").rename(helpers / "clocks.py")
    monkeypatch.setattr(module, "MEASURING", ("clocks",))
    assert fingerprint("run", [cell.replace("timing", "clocks")]) == before


def test_a_variable_that_is_called_like_a_module_is_not_the_module(helpers) -> None:
    cell = "from utils import models\ndef run():\n    models = 3\n    return models"
    assert "Net" not in source_of("run", [cell])


def test_the_modules_that_decide_what_is_measured() -> None:
    """Adding one makes records stale; leaving one out would let its changes pass unnoticed."""
    assert MEASURING == ("timing", "models", "data", "memory")
    assert all((module.UTILS / f"{name}.py").is_file() for name in MEASURING)


REAL = """
from utils.data import MEAN, STD, root
from utils.memory import MIB, peak_bytes
from utils.models import MnistCNN
from utils.timing import measure
def run():
    return MnistCNN(), measure(len), (MEAN, STD, root()), peak_bytes(len) / MIB
"""


@pytest.fixture
def real(tmp_path, monkeypatch) -> Path:
    """A copy of the helpers as they are."""
    copy = tmp_path / "utils"
    shutil.copytree(module.UTILS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "UTILS", copy)
    return copy


@pytest.mark.parametrize(
    "file, old, new, counts",
    [
        ("models", "nn.Conv2d(1, 32, 3)", "nn.Conv2d(1, 32, 3, bias=False)", True),
        ("timing", "Timing(found.median", "Timing(found.mean", True),
        ("data", "MEAN, STD = 0.1307", "MEAN, STD = 0.5", True),
        ("memory", "max_memory_allocated()", "max_memory_reserved()", True),
        ("memory", "2**10, 2**20", "10**3, 10**6", True),
        ("models", '"""The small CNN', '"""A small CNN', False),
        ("timing", "for _ in range(3):", "for _ in range(3):  # warm", False),
        ("memory", 'ec="white"', 'ec="black"', False),
        ("models", "tied ones counted once", "tied ones once", False),
    ],
)
def test_planted_changes_of_the_helpers_as_they_are(real, file, old, new, counts) -> None:
    before = fingerprint("run", [REAL])
    path = real / f"{file}.py"
    assert old in path.read_text(), "the helper has changed: plant another"
    path.write_text(path.read_text().replace(old, new, 1))
    assert (fingerprint("run", [REAL]) != before) is counts


# --- scripts -------------------------------------------------------------------------------------


def test_scripts_that_an_experiment_names_are_covered(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "SCRIPTS", tmp_path)
    script = tmp_path / "train.py"
    script.write_text('"""Trains."""\nimport os\n# why\nspeed = 1\n')
    cells = ['NAME = "train.py"', "def start():\n    go(NAME)", "def run():\n    start()"]
    before = fingerprint("run", cells)
    assert "\n\nspeed = 1\n\n" in source_of("run", cells)
    script.write_text('"""Trains well."""\nimport os\n# because\n\nspeed = 1  # m/s\n')
    assert fingerprint("run", cells) == before
    for text in ("import os\nspeed = 2\n", "import os.path as os\nspeed = 1\n", "speed = 1\n"):
        script.write_text(text)
        assert fingerprint("run", cells) != before, text
    assert "speed" not in source_of("run", [*cells[1:], 'def other():\n    return "train.py"'])


def test_the_order_of_a_script_counts(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "SCRIPTS", tmp_path)
    cells = ['def run():\n    go("train.py")']
    lines = ["loss = 1", "loss = 2", "print(loss)"]
    found = set()
    for order in ([0, 1, 2], [1, 0, 2], [0, 2, 1]):
        (tmp_path / "train.py").write_text("\n".join(lines[i] for i in order))
        found.add(fingerprint("run", cells))
    assert len(found) == 3


def test_what_a_script_imports_is_covered(helpers) -> None:
    (helpers / "a.py").write_text("import os, b\nfrom utils.models import Net\n\n\nNet()\n")
    (helpers / "b.py").write_text("def f():\n    from c import x\nfrom a import y\n")
    (helpers / "c.py").write_text("x = 1\n")
    found = source_of("run", ['def run():\n    """Not d.py"""\n    go("a.py")'])
    assert "x = 1" in found and "class Net" in found and "def slow" not in found
    assert re.search("^os = os$", found, re.MULTILINE)
