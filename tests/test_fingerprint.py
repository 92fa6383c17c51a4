"""The fingerprint changes with the code that was measured, and with nothing else."""

import linecache
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from utils.record import fingerprint as module
from utils.record.fingerprint import MEASURING, UTILS, covered, fingerprint

PLANTED = yaml.safe_load(Path(__file__).with_name("fingerprint.yml").read_text(encoding="utf-8"))
HELPERS, PROGRAM, WAYS = PLANTED["helpers"], PLANTED["scripts"], PLANTED["ways"]

CELLS = [
    "import torch\nfrom torch.nn import functional as F\nSIZES = [1, 2]\nother = 3",
    "def helper(n):\n    return F.relu(n) * SIZES[0]",
    "class Unused:\n    pass",
    '@experiment(needs="cuda")\ndef run():\n    """Why."""\n    # why\n\n    return helper(other)',
]
BEFORE = fingerprint("run", CELLS)


def test_covers_the_experiment_and_all_it_uses() -> None:
    assert covered("run", CELLS) == [
        '@ experiment ( needs = "cuda" )\ndef run ( ) :\n    return helper ( other )',
        "SIZES = [ 1 , 2 ]",
        "def helper ( n ) :\n    return F . relu ( n ) * SIZES [ 0 ]",
        "F = torch.nn.functional",
    ]


@pytest.mark.parametrize("index, old, new", PLANTED["cells_count"] + PLANTED["cells_do_not"])
def test_changes_with_what_was_measured_and_with_nothing_else(index, old, new) -> None:
    assert old in CELLS[index]
    cells = [c.replace(old, new) if c == CELLS[index] else c for c in CELLS]
    assert (fingerprint("run", cells) != BEFORE) is ([index, old, new] in PLANTED["cells_count"])


def test_of_definitions_in_two_cells_the_later_counts_and_of_two_in_one_both() -> None:
    later = covered("f", ["def f():\n    return 1", "def f():\n    return 2"])
    assert later == ["def f ( ) :\n    return 2"]
    both = "N = 1\nN = N + 1\ndef f():\n    return N"
    assert fingerprint("f", [both]) != fingerprint("f", [both.replace("N = 1", "N = 2")])
    assert fingerprint("f", [both]) != fingerprint("f", [both.replace("N + 1", "N + 2")])


@pytest.mark.parametrize("b", ["A, B = 1, 2", "(A, B), c = (1, 2), 3", "A = B = 2", "B: int = 2"])
def test_constants_assigned_together_are_covered(b: str) -> None:
    run = "def run():\n    return B"
    assert fingerprint("run", [b, run]) != fingerprint("run", [b.replace("2", "5"), run])


def test_cells_that_are_not_python_define_nothing() -> None:
    cells = ["%matplotlib inline", "!ls", "def f():\n    pass"]
    assert covered("f", cells) == ["def f ( ) :\n    pass"]
    with pytest.raises(KeyError, match="no cell defines 'nothing'"):
        fingerprint("nothing", cells)


def test_the_cells_of_a_kernel_are_those_beside_the_function_which_comes_last(monkeypatch) -> None:
    kernel = ModuleType("kernel")
    monkeypatch.setitem(sys.modules, "kernel", kernel)
    cells = {"k/1.py": "def run(): ...", "k/2.py": "STEPS = 2", "elsewhere/3.py": "STEPS = 3"}
    for name, text in cells.items():
        monkeypatch.setitem(linecache.cache, name, (len(text), None, [text], name))
    monkeypatch.setitem(linecache.cache, "k/4.py", (lambda: "not read yet",))
    exec(compile(cells["k/1.py"], "k/1.py", "exec"), vars(kernel))
    assert module.cells_of(kernel.run) == ["STEPS = 2", "def run(): ..."]


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
    assert covered("Böx", [STRINGS]) == [TEXT]


@pytest.mark.parametrize("python", OTHERS, ids=lambda p: Path(p).name)
def test_the_same_text_on_the_other_pythons_of_this_machine(python: str) -> None:
    code = "import runpy, sys; covered = runpy.run_path(sys.argv[1])['covered']\n"
    code += "sys.stdout.buffer.write(covered('Böx', [sys.argv[2]])[0].encode())"
    command = [python, "-X", "utf8", "-B", "-c", code, module.__file__, STRINGS]
    done = subprocess.run(command, capture_output=True)
    if b"command not found" in done.stderr:  # a version manager's stand-in
        pytest.skip(f"{python} does not start")
    assert done.stdout.decode() == TEXT, done.stderr.decode()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="not Python before 3.12")
def test_the_same_quotes_within_an_f_string() -> None:
    assert covered("A", ['A = f"{d["a # b"]}"  # why']) == ['A = f"{d["a # b"]}"']


# --- helpers -------------------------------------------------------------------------------------


@pytest.fixture
def helpers(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(module, "UTILS", tmp_path)
    monkeypatch.setattr(module, "SCRIPTS", tmp_path)
    monkeypatch.setattr(module, "KEEP", tmp_path / "keep")
    for name, text in HELPERS.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def changes(cell: str, path: Path, old: str, new: str) -> bool:
    """Whether a change of a file changes the hash of what ``cell`` defines as run()."""
    before = fingerprint("run", [cell])
    assert old in path.read_text(), "the file has changed: plant another"
    path.write_text(path.read_text().replace(old, new, 1))
    module.source_from.cache_clear()
    return fingerprint("run", [cell]) != before


@pytest.mark.parametrize("way", ["import tool", "from tool import kept"])
def test_scripts_that_a_notebook_imports_count_with_what_they_import(helpers, way) -> None:
    """As chapter 7.2 imports whole.py, which starts train.py."""
    (helpers / "keep").mkdir()
    tool, kept = helpers / "tool.py", helpers / "keep" / "kept.py"
    tool.write_text("import kept\n\n\ndef turn():\n    return kept.loop()\n")
    kept.write_text("def loop():\n    return 1\n\n\ndef other():\n    return 2\n")
    cell = way + "\ndef run():\n    return " + ("tool.turn()" if way[0] == "i" else "kept.loop()")
    assert not changes(cell, kept, "return 2", "return 3"), "what is not reached"
    assert changes(cell, kept, "return 1", "return 4")


@pytest.mark.parametrize("cell", WAYS, ids=range(len(WAYS)))
def test_helpers_that_measure_are_followed_name_by_name(helpers, cell) -> None:
    for name, old, new in PLANTED["helpers_count"]:
        assert changes(cell, helpers / f"{name}.py", old, new), old
    for name, old, new in PLANTED["helpers_do_not"] if cell is not WAYS[-1] else ():
        (helpers / f"{name}.py").write_text(HELPERS[name])
        assert not changes(cell, helpers / f"{name}.py", old, new), old


def test_a_helper_may_move_and_be_handed_on(helpers, monkeypatch) -> None:
    cell = "from utils.timing import clock\ndef run():\n    return clock()"
    before = fingerprint("run", [cell])
    assert fingerprint("run", [cell.replace("utils.timing", "utils.models")]) != before  # its acts
    handed_on = covered("run", [cell.replace("timing", "models")])
    assert any("time . time ( )" in text for text in handed_on)
    (helpers / "timing.py").rename(helpers / "clocks.py")
    monkeypatch.setattr(module, "MEASURING", ("clocks",))
    assert fingerprint("run", [cell.replace("timing", "clocks")]) == before


REAL = """
from utils.data import MEAN, STD, root
from utils.gpt2_step import peak_and_time
from utils.memory import MIB, peak_bytes
from utils.models import MnistCNN
from utils.timing import measure, wall
def run():
    peak_bytes(len), wall(len), peak_and_time(), measure(len)
    return MnistCNN(), (MEAN, STD, root(), MIB)
"""


@pytest.mark.parametrize("counts", [True, False])
def test_planted_changes_of_the_helpers_as_they_are(tmp_path, monkeypatch, counts) -> None:
    monkeypatch.setattr(module, "UTILS", tmp_path)
    for file, old, new in PLANTED["real_count" if counts else "real_do_not"]:
        for name in MEASURING:
            shutil.copy(UTILS / f"{name}.py", tmp_path)
        assert changes(REAL, tmp_path / f"{file}.py", old, new) is counts, (file, old)


def test_the_modules_that_decide_what_is_measured() -> None:
    """Leaving one out would let its changes pass unnoticed."""
    assert MEASURING == ("timing", "gpt2_step", "models", "data", "memory")
    assert all((module.UTILS / f"{name}.py").is_file() for name in MEASURING)


# --- scripts -------------------------------------------------------------------------------------

STARTED = 'NAME = "run.py"\ndef start():\n    go(NAME)\ndef run():\n    start()'


@pytest.fixture
def scripts(helpers) -> Path:
    """The scripts of PROGRAM in a folder."""
    for name, text in PROGRAM.items():
        (helpers / f"{name}.py").write_text(text)
    return helpers


@pytest.mark.parametrize("name, old, new", PLANTED["scripts_count"])
def test_planted_changes_of_scripts_count(scripts, name, old, new) -> None:
    # What is not only the guard of a start runs when it is imported.
    started = STARTED.replace("run.py", "group.py") if "else:" in new else STARTED
    assert changes(started, scripts / f"{name}.py", old, new)


@pytest.mark.parametrize("name, old, new", PLANTED["scripts_do_not"])
def test_what_a_recording_does_not_reach_does_not_count(scripts, name, old, new) -> None:
    assert not changes(STARTED, scripts / f"{name}.py", old, new)


def test_a_definition_may_move_from_one_script_to_another(scripts) -> None:
    before = fingerprint("run", [STARTED])
    warm = "def warm():\n    return ROUNDS\n\n\n"
    for name, old, new in (
        ("group", warm, ""),
        ("other", "def spare", f"from group import ROUNDS\n\n\n{warm}def spare"),
        ("run", "from group import warm", "from other import warm"),
    ):
        text = (scripts / f"{name}.py").read_text()
        assert old in text
        (scripts / f"{name}.py").write_text(text.replace(old, new))
    assert fingerprint("run", [STARTED]) == before


def test_a_script_counts_only_where_it_is_named(scripts) -> None:
    assert "ROUNDS = 5" in "\n".join(covered("run", [STARTED]))
    assert "ROUNDS" not in "\n".join(covered("run", ["def run():\n    return 'x.py'"]))


@pytest.mark.parametrize("counts", [True, False])
def test_codes_to_keep_count_as_far_as_a_script_uses_them(scripts, counts) -> None:
    (scripts / "keep").mkdir()
    guarded = "if __name__ == '__main__':\n    whole.main()\n"
    (scripts / "run.py").write_text(f"import whole\n\n\n{guarded}")
    for name, old, new in PLANTED["keep_count" if counts else "keep_do_not"]:
        for file, text in PLANTED["keep"].items():
            (scripts / "keep" / f"{file}.py").write_text(text)
        assert changes(STARTED, scripts / "keep" / f"{name}.py", old, new) is counts, (name, old)
