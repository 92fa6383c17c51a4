"""The codes to keep: files of ``book/keep`` that pages show word for word and that work alone."""

import os
import time

import pytest

from notebooks import BOOK, NOTEBOOKS, keep_cells, read
from pasted import LIMIT, Done

CELLS = [(path, cell.id) for path in NOTEBOOKS for cell in keep_cells(read(path))]
FILES = sorted((BOOK / "keep").glob("*.py"))
SCRIPTS = ("mnist",)  # made to be run, not to be imported
UNSHOWN = ("train",)  # the whole program
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: not on Windows")
# A whole epoch of MNIST takes a CPU a minute or more. Here are no data, none can get there, and of
# the images that are made up instead there are fewer.
ENVIRONMENT = {"00_quickstart": {"DATA_ROOT": os.devnull}}


def problems(done: Done) -> list[str]:
    """What is wrong with code to keep that ran like this."""
    if done.status is None:
        return [f"ran for more than {LIMIT} s, and nobody waits that long: make it smaller"]
    if done.status != 0:
        return [
            f"failed when pasted into an empty script (exit status {done.status}), as it will for "
            f"the reader: repair it, or write out what it needs\n{done.err}"
        ]
    found = []
    if not done.out.strip():
        found.append("printed nothing, so nobody sees that it works: let it print its result")
    if done.cuda["available"] and not done.cuda["used"]:
        found.append(
            "left the GPU of this machine idle, though the book is about using it: choose the "
            "device by torch.cuda.is_available(), and put the tensors there"
        )
    return found


def test_pages_show_the_files_word_for_word() -> None:
    shown = {cell.source for path in NOTEBOOKS for cell in keep_cells(read(path))}
    files = {f.read_text(encoding="utf-8").strip("\n") for f in FILES if f.stem not in UNSHOWN}
    only_shown = [source.splitlines()[0] for source in shown - files]
    assert only_shown == [], "a cell tagged keep is a file of book/keep: change both"
    only_files = [source.splitlines()[0] for source in files - shown]
    assert only_files == [], "a file of book/keep is a cell tagged keep: change both"
    for file in FILES:
        assert file.read_text(encoding="utf-8").startswith(f'"""{file.name}: '), file.name


def test_to_import_them_does_nothing(run) -> None:
    """So that one can import another, as the whole program does: no tensor, no seed, no word."""
    names = ", ".join(file.stem for file in FILES if file.stem not in SCRIPTS)
    none = [f"torch.{call} = " for call in ("rand", "randn", "manual_seed", "empty", "ones")]
    code = f"import torch, torch._dynamo\n{''.join(none)}None\nimport {names}"
    done = run(code, env={"PYTHONPATH": str(BOOK / "keep")})
    assert (done.status, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize("path, name", CELLS, ids=[f"{p.stem}-{name}" for p, name in CELLS])
def test_code_to_keep_runs_as_pasted(path, name, run) -> None:
    source = next(cell.source for cell in keep_cells(read(path)) if cell.id == name)
    source = source.replace("(1000, 500)", "(200, 100)")
    assert problems(run(source, env=ENVIRONMENT.get(path.stem, {}))) == []


@pytest.mark.parametrize(
    "source, said",
    [
        ("import torch\nprint(torch.ones(3).sum().item())", ""),
        ("from utils.timing import measure\nprint(measure)", "imports utils, which only this book"),
        ("import utils\nprint(utils)", "imports utils, which only this book has"),
        ("import torch\nx = torch.ones(3)", "printed nothing"),
        ("print(1)\nraise ValueError('no such thing')", "ValueError: no such thing"),
        ("print(1)\nraise SystemExit(3)", "exit status 3"),
        ("print(1)\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "exit status -11"),
        ("print(open('data.txt').read())", "FileNotFoundError"),
    ],
)
def test_what_does_not_work_is_noticed(source, said, run) -> None:
    found = "\n".join(problems(run(source)))
    assert said in found and bool(said) is bool(found)


def test_a_cell_that_does_not_end_is_ended_with_its_children(run, tmp_path) -> None:
    done = run("import os\nprint(os.getpid(), flush=True)\nos.fork()\nwhile True: pass", limit=0.5)
    assert "more than" in problems(done)[0]
    with pytest.raises(ProcessLookupError):
        for _ in range(100):  # the group is gone as soon as init has reaped the other
            os.killpg(int(done.out), 0)
            time.sleep(0.05)


def test_a_cell_runs_as_a_script_in_an_empty_folder(run) -> None:
    done = run("import os, sys\nprint(os.listdir(), __name__, sys.argv, sys.stdin.read() == '')")
    assert done.out == "['script.py'] __main__ ['script.py'] True\n", done.err


def test_a_gpu_that_stays_idle_is_noticed() -> None:
    idle = Done(0, "3.0\n", "", {"available": True, "used": False})
    assert "left the GPU" in problems(idle)[0]
    assert problems(idle._replace(cuda={"available": True, "used": True})) == []
    assert problems(idle._replace(cuda={"available": False, "used": False})) == []
