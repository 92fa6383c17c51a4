"""The code to keep works when it is pasted into an empty script, without this book.

One helper process imports torch once; for every cell it forks a child, which runs the cell as
script.py in an empty folder where ``utils`` cannot be imported.
"""

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from notebooks import NOTEBOOKS, ROOT, keep_cells, read

LIMIT = 60  # seconds that a cell may take
CELLS = [(path, cell.id) for path in NOTEBOOKS for cell in keep_cells(read(path))]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: not on Windows")


class Done(NamedTuple):
    """What came of a script."""

    status: int | None  # None if it took too long
    out: str
    err: str
    cuda: dict[str, bool]  # "available", "used"; empty if the script did not come to its end


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


# --- the helper process ------------------------------------------------------------------------


class NoUtils(MetaPathFinder):
    """Stands before all other finders, so that also an installed ``utils`` is out of reach."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] == "utils":
            raise ImportError("the code to keep imports utils, which only this book has", name=name)


def serve() -> None:
    """Run every script that a line of the standard input asks for, one after the other."""
    importlib.import_module("torch")  # which takes seconds; the children find it done
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            run_alone(Path(job["folder"]))
        print(json.dumps(wait_for(child, job["limit"])), flush=True)


def run_alone(folder: Path) -> NoReturn:
    """In a child: run ``folder/script/script.py`` as a reader would, and note what CUDA did."""
    os.setsid()  # a group of its own, so that its children end with it
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(folder / "out", os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(os.open(folder / "err", os.O_WRONLY | os.O_CREAT), 2)
    os.chdir(folder / "script")
    for name in [name for name in sys.modules if name.split(".")[0] == "utils"]:
        del sys.modules[name]
    ours = {str(ROOT), str(ROOT / "tests"), ""}
    sys.path[:] = [os.getcwd(), *(path for path in sys.path if path not in ours)]
    sys.meta_path.insert(0, NoUtils())
    sys.argv = ["script.py"]
    runpy.run_path("script.py", run_name="__main__")

    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    used = any(torch.cuda.max_memory_allocated(index) > 0 for index in devices)
    cuda = {"available": torch.cuda.is_available(), "used": used}
    (folder / "cuda").write_text(json.dumps(cuda))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # to tear torch down would take half a second more


def wait_for(child: int, limit: float) -> int | None:
    """Exit status of ``child``; None if it, and what it started, was ended after ``limit`` s."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


# --- the tests ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def helper() -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-c", "import test_keep; test_keep.serve()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT / "tests", stdin=pipe, stdout=pipe, text=True
    ) as process:
        yield process
        process.stdin.close()  # which ends it


@pytest.fixture
def run(helper, tmp_path) -> Callable[..., Done]:
    """A function that runs a source as a script of its own."""

    def run(source: str, limit: float = LIMIT) -> Done:
        (tmp_path / "script").mkdir()
        (tmp_path / "script" / "script.py").write_text(source, encoding="utf-8")
        print(json.dumps({"folder": str(tmp_path), "limit": limit}), file=helper.stdin, flush=True)
        status = json.loads(helper.stdout.readline())
        out, err = ((tmp_path / name).read_text(encoding="utf-8") for name in ("out", "err"))
        cuda = tmp_path / "cuda"
        return Done(status, out, err, json.loads(cuda.read_text()) if cuda.exists() else {})

    return run


def test_there_is_code_to_keep() -> None:
    assert CELLS, "no notebook has a cell tagged keep, and many readers come for nothing else"


@pytest.mark.parametrize("path, name", CELLS, ids=[f"{p.stem}-{name}" for p, name in CELLS])
def test_code_to_keep_runs_as_pasted(path, name, run) -> None:
    source = next(cell.source for cell in keep_cells(read(path)) if cell.id == name)
    assert problems(run(source)) == []


GOOD = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
print(torch.ones(3, device=device).sum().item())
"""


def test_good_code_is_good(run) -> None:
    done = run(GOOD)
    assert (
        problems(done) == [] and done.out == "3.0\n" and done.cuda.keys() == {"available", "used"}
    )


@pytest.mark.parametrize(
    "source, said",
    [
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
    assert said in "\n".join(problems(run(source)))


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
