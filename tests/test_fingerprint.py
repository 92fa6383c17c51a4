"""The fingerprint changes with the code that was measured, and with nothing else."""

import linecache
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from utils import fingerprint as module
from utils.fingerprint import MEASURING, fingerprint, source_of
from utils.programs import Program

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


def test_the_cells_of_a_kernel_are_those_beside_the_function_which_comes_last(monkeypatch) -> None:
    kernel = ModuleType("kernel")
    monkeypatch.setitem(sys.modules, "kernel", kernel)
    cells = {"k/1.py": "def run(): ...", "k/2.py": "STEPS = 2", "elsewhere/3.py": "STEPS = 3"}
    for name, text in cells.items():
        monkeypatch.setitem(linecache.cache, name, (len(text), None, [text], name))
    monkeypatch.setitem(linecache.cache, "k/4.py", (lambda: "not read yet",))
    exec(compile(cells["k/1.py"], "k/1.py", "exec"), vars(kernel))
    assert module.cells_of(kernel.run) == ["STEPS = 2", "def run(): ..."]


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


def test_a_helper_that_another_module_hands_on_is_followed(helpers) -> None:
    cell = "from utils.models import clock\ndef run():\n    return clock()"
    assert "time . time ( )" in source_of("run", [cell])


def test_a_variable_that_is_called_like_a_module_is_not_the_module(helpers) -> None:
    cell = "from utils import models\ndef run():\n    models = 3\n    return models"
    assert "Net" not in source_of("run", [cell])


def test_the_modules_that_decide_what_is_measured() -> None:
    """Leaving one out would let its changes pass unnoticed."""
    assert MEASURING == ("timing", "stopwatch", "models", "data", "memory", "weighing")
    assert all((module.UTILS / f"{name}.py").is_file() for name in MEASURING)


REAL = """
from utils.data import MEAN, STD, root
from utils.memory import MIB, peak_bytes
from utils.models import MnistCNN
from utils.stopwatch import wall
from utils.timing import measure
from utils.weighing import weigh
def run():
    return MnistCNN(), measure(len), (MEAN, STD, root()), peak_bytes(len) / MIB, wall(len), weigh()
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
        ("memory", "gc.collect()", "gc.collect(0)", True),
        ("stopwatch", "median(seconds[2:])", "median(seconds)", True),
        ("weighing", "lr=1e-4", "lr=1e-3", True),
        ("models", '"""The small CNN', '"""A small CNN', False),
        ("timing", "for _ in range(3):", "for _ in range(3):  # warm", False),
        ("stopwatch", "calls=10", "calls=20", False),
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
    assert "\n\nspeed = 1\n" in source_of("run", cells)
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


# A program of three scripts; what is planted below is one change of one of them.
PROGRAM = {
    "run": "import os\nfrom sys import argv\n\nimport tools\nfrom group import start, warm\n"
    "from torch import nn\n\nSTEPS = 3\nMODE = os.name\nif STEPS:\n    MODE += argv[0]\n\n\n"
    "def train(steps=2):\n    return nn.Linear(steps, STEPS), wait(), tools.clean(MODE)\n\n\n"
    'def wait():\n    """Wait."""\n    return warm()  # long\n\n\n'
    "def page():\n    return 4\n\n\n"
    'if __name__ == "__main__":\n    start()\n    train()\n',
    "group": "import os\nfrom torch import nn\n\nROUNDS = 5\nos.environ['A'] = '1'\n\n\n"
    "class Timer:\n    rounds: int = 7\n\n    @property\n    def all(self):\n"
    "        return ROUNDS\n\n\ndef start():\n    return Timer()\n\n\n"
    "def warm():\n    return ROUNDS\n\n\ndef spare():\n    return nn.ReLU()\n\n\n"
    'if __name__ == "__main__":\n    spare()\n',
    "tools": "def clean(x):\n    return x\n\n\ndef warm():\n    return 6\n",
    "other": "def spare():\n    return 8\n",
}
STARTED = ['def run():\n    go("run.py")']


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """The scripts of PROGRAM in a folder, and a function: the hash after planted changes."""
    monkeypatch.setattr(module, "SCRIPTS", tmp_path)

    def plant(*changes: tuple[str, str, str], program: dict[str, str] = PROGRAM) -> str:
        texts = dict(program)
        for name, old, new in changes:
            assert old in texts[name], f"{old!r} is not in {name}.py"
            texts[name] = texts[name].replace(old, new)
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        return fingerprint("run", STARTED)

    return plant


PART = "import os\n\nLEVEL = 3\nos.nice(LEVEL)\n\n\ndef f(x):\n    return LEVEL * x\n"
WHOLE = """\
import os
from part import f

LEVEL = 2


def g():
    return f(LEVEL), len(f"{os.name!r}")  # why


if __name__ == "__main__":
    g()
"""
RUN = """\
os . nice ( LEVEL )
LEVEL = #2
os = os

if __name__ == "__main__" :
    g ( )
g = #3

LEVEL = 3
LEVEL = #2

def g ( ) :
    return f ( LEVEL ) , len ( f"{os.name!r}" )
LEVEL = #4
f = #5
os = os

LEVEL = 2
LEVEL = #4

def f ( x ) :
    return LEVEL * x
LEVEL = #2"""


def test_the_text_of_a_program(tmp_path) -> None:
    """To the letter, for it has to be the same on every Python."""
    (tmp_path / "whole.py").write_text(WHOLE)
    (tmp_path / "part.py").write_text(PART)
    assert Program(tmp_path, "whole").text == RUN


def test_a_chain_leads_to_its_first_name_in_another_script(tmp_path) -> None:
    (tmp_path / "whole.py").write_text("import part\n\nprint(part.Box.size)\n")
    (tmp_path / "part.py").write_text("class Box:\n    size = 2\n\n\ndef spare(): ...\n")
    text = Program(tmp_path, "whole").text
    assert "size = 2" in text and "spare" not in text


@pytest.mark.parametrize("bases, counts", [("", False), ("(object)", False), ("(flag=1)", True)])
def test_a_class_that_nobody_uses_counts_if_to_make_it_runs_code(tmp_path, bases, counts) -> None:
    (tmp_path / "whole.py").write_text("from part import f\n\nf()\n")
    (tmp_path / "part.py").write_text(f"def f(): ...\n\n\nclass Spare{bases}:\n    size = 2\n")
    assert ("size = 2" in Program(tmp_path, "whole").text) is counts


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("run", "nn.Linear(steps, STEPS)", "nn.Linear(STEPS, steps)"),
        ("run", "STEPS = 3", "STEPS = 4"),
        ("run", "steps=2", "steps=3"),
        ("run", "    start()\n    train()", "    train()\n    start()"),
        ("run", "MODE = os.name\nif STEPS:\n    MODE += argv[0]", "if STEPS:\n    MODE = os.name"),
        ("run", "import os\nfrom sys import argv", "import os\nfrom other import argv"),
        ("run", "from torch import nn", "from other import nn"),
        ("run", "import os\n", "import os\nimport json\n"),
        ("run", "import start, warm", "import start\nfrom tools import warm"),
        ("run", "import start, warm", "import warm as start, start as warm"),
        ("run", "import tools", "import group as tools"),
        ("run", "return 4", "return 5"),
        ("run", "def page", "@print\ndef page"),
        ("run", "STEPS = 3\nMODE = os.name", "MODE = os.name\nSTEPS = 3\nSTEPS = STEPS + 1"),
        ("run", "from torch import nn\n\nSTEPS = 3\nMODE = os.name\n",
         "STEPS = 3\nMODE = os.name\nfrom torch import nn\n"),
        ("run", "import tools\n", "import other\nimport tools\n"),
        ("group", "ROUNDS = 5", "ROUNDS = 6"),
        ("group", "['A'] = '1'", "['A'] = '2'"),
        ("group", "return Timer()", "return Timer"),
        ("group", "rounds: int = 7", "rounds: int = 8"),
        ("group", "def spare", "@print\ndef spare"),
        ("group", "def spare():", "def spare(x=print()):"),
        ("group", "class Timer:", "class Timer(metaclass=M):"),
        ("group", "def warm():\n", "def warm():\n    ROUNDS = 1\ndef warm():\n"),
        ("group", "    spare()\n", "    spare()\nelse:\n    print()\n"),
        ("tools", "return x", "return -x"),
        ("tools", "def clean", "print()\n\n\ndef clean"),
    ],
)  # fmt: skip
def test_planted_changes_of_scripts_count(scripts, name, old, new) -> None:
    assert scripts((name, old, new)) != scripts()


WAIT = 'def wait():\n    """Wait."""\n    return warm()  # long\n\n\n'
START = "def start():\n    return Timer()\n\n\n"


SAME = {
    "words": [("run", '"""Wait."""', '"""Wait for all."""'), ("run", "  # long", "")],
    "order of constants": [("run", "STEPS = 3\nMODE = os.name", "MODE = os.name\nSTEPS = 3")],
    "order of functions": [("run", WAIT, ""), ("run", "def train", WAIT + "def train")],
    "a function moves": [
        ("run", WAIT, ""),
        ("run", "import start, warm\n", "import start\nfrom tools import wait\n"),
        ("tools", "def warm():\n    return 6\n", "from group import warm\n" + WAIT),
    ],
    "a constant moves": [
        ("run", "STEPS = 3\n", "from other import STEPS\n"),
        ("other", "def spare", "STEPS = 3\ndef spare"),
    ],
    "a constant of a helper moves": [
        ("group", "ROUNDS = 5\n", "from tools import ROUNDS\n"),
        ("tools", "def clean", "ROUNDS = 5\ndef clean"),
    ],
    "from one helper to another": [
        ("group", START, ""),
        ("other", "def spare", "from group import Timer\n" + START + "def spare"),
        ("run", "import start, warm\n", "import warm\nfrom other import start\n"),
    ],
    "imported where it is used": [
        ("run", "import start, warm", "import start"),
        ("run", "return warm()", "from group import warm\n    return warm()"),
    ],
    "an unused function of a helper": [("group", "return nn.ReLU()", "return nn.GELU()")],
    "what a helper does when it is started": [("group", "    spare()\n", "    print()\n")],
    "a script that is not imported": [("other", "return 8", "return 9")],
    "another function of the same name": [("tools", "return 6", "return 7")],
}


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_what_scripts_say_and_where_it_stands_does_not_count(scripts, changes) -> None:
    assert scripts(*changes) == scripts()


def test_which_of_two_functions_of_one_name_is_called_counts(scripts) -> None:
    """All texts and all origins are there before and after; only who calls whom has changed."""
    both = [("run", "import tools", "import tools\nfrom tools import warm as other")]
    crossed = [("run", "import start, warm", "import start, warm as other")]
    crossed += [("run", "import tools", "import tools\nfrom tools import warm")]
    used = ("run", "return 4", "return other()")
    assert scripts(*both, used) != scripts(*crossed, used)


LOOKED_UP = [  # what makes spare(), which nobody names, count
    ("group", "return Timer()", "return globals()['spare']"),
    ("group", "return Timer()", "return vars()"),
    ("group", "return Timer()", "return f'{eval(ROUNDS)}'"),
    ("group", "return Timer()", "return __name__"),
    ("group", "return Timer()", "global ROUNDS\n    ROUNDS += 1"),
    ("run", "return 4", "import group\n    return getattr(group, input())"),
    ("run", "return 4", "import group\n    return group.__dict__['spare']"),
    ("run", "return 4", "import group\n    group.ROUNDS = 3"),
    ("run", "return 4", "import group as g\n    return [g]"),
    ("run", "return 4", "import group as g\n    return g.ROUNDS, g"),
    ("run", "return 4", "return 'group.py'"),  # starts it, as a program of its own
    ("run", "return 4", "import sys\n    return sys.modules['group'].spare"),
    ("run", "return 4", "return start.__globals__['spare']"),
    ("run", "return 4", "exec('import group; group.spare()')"),
    ("run", "import tools\n", "import tools\nfrom importlib import import_module\n"),
    ("run", "import tools\n", "import tools\nfrom group import *\n"),
    ("run", "import tools\n", "import tools\nimport group\n"),
    ("run", "import tools\n", "import tools\nfrom group import spare\n"),
    ("tools", "return x", "import group\n    return x.run(group)"),
]


@pytest.mark.parametrize("change", LOOKED_UP, ids=lambda change: change[2])
def test_what_may_be_looked_up_counts(scripts, change) -> None:
    assert scripts(change, ("group", "nn.ReLU", "nn.GELU")) != scripts(change)


def test_scripts_that_import_from_a_folder_are_refused(scripts, tmp_path) -> None:
    (tmp_path / "shared").mkdir()
    with pytest.raises(ValueError, match="shared is a folder"):
        scripts(("run", "import tools\n", "import tools\nfrom shared.tools import clean\n"))


def test_scripts_that_import_each_other(scripts) -> None:
    circle = [("tools", "def clean", "from run import nothing, train\n\n\ndef clean")]
    circle += [("run", "import tools\n", "import tools\nfrom tools import nothing\n")]
    assert scripts(*circle, ("tools", "return x", "return -x")) != scripts(*circle)
