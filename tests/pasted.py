"""Scripts that run as a reader would run them: alone in a folder, without this book.

One helper process imports torch and torchvision once; for every script it forks a child, which runs
script.py in a folder where ``utils`` cannot be imported.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from notebooks import ROOT

LIMIT = 60  # seconds that a script may take


class Done(NamedTuple):
    """What came of a script."""

    status: int | None  # None if it took too long
    out: str
    err: str
    cuda: dict[str, bool]  # "available", "used"; empty if the script did not come to its end


# --- the helper process ------------------------------------------------------------------------


class NoUtils(MetaPathFinder):
    """Stands before all other finders, so that also an installed ``utils`` is out of reach."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] == "utils":
            raise ImportError("the code to keep imports utils, which only this book has", name=name)


def serve() -> None:
    """Run every script that a line of the standard input asks for, one after the other."""
    # Which take seconds; the children find them done. The third is of the first optimizer.
    for name in ("torch", "torchvision", "torch._dynamo"):
        importlib.import_module(name)
    gc.freeze()  # no child looks for garbage in what was imported
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ.update(job["env"])
            run_alone(Path(job["folder"]))
        print(json.dumps(wait_for(child, job["limit"])), flush=True)


def run_alone(folder: Path) -> NoReturn:
    """In a child: run ``folder/script/script.py`` as a reader would, and note what CUDA did."""
    os.setsid()  # a group of its own, so that its children end with it
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.dup2(os.open(folder / "out", new), 1)
    os.dup2(os.open(folder / "err", new), 2)
    os.chdir(folder / "script")
    for name in [name for name in sys.modules if name.split(".")[0] == "utils"]:
        del sys.modules[name]
    ours = {str(ROOT), str(ROOT / "tests"), ""}
    sys.path[:] = [os.getcwd(), *(path for path in sys.path if path not in ours)]
    sys.meta_path.insert(0, NoUtils())
    sys.argv = ["script.py"]
    warnings.simplefilter("error")  # as `python -W error` does: what warns today fails tomorrow
    warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")  # only that one's
    try:
        runpy.run_path("script.py", run_name="__main__")
    except SystemExit as end:  # what Python does with it, but for tearing torch down: see below
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        if end.code not in (None, 0):
            leave(1 if isinstance(end.code, str) else end.code)

    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    used = any(torch.cuda.max_memory_allocated(index) > 0 for index in devices)
    cuda = {"available": torch.cuda.is_available(), "used": used}
    (folder / "cuda").write_text(json.dumps(cuda))
    leave(0)


def leave(status: int) -> NoReturn:
    """End this process at once: to tear torch down would take a second or two more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


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


# --- for tests ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def helper() -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-c", "import pasted; pasted.serve()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT / "tests", stdin=pipe, stdout=pipe, text=True
    ) as process:
        yield process
        process.stdin.close()  # which ends it


@pytest.fixture
def run(helper, tmp_path) -> Callable[..., Done]:
    """A function that runs a source as a script of its own, each time in the same folder."""

    def run(source: str, limit: float = LIMIT, env: dict[str, str] | None = None) -> Done:
        (tmp_path / "script").mkdir(exist_ok=True)
        (tmp_path / "script" / "script.py").write_text(source, encoding="utf-8")
        cuda = tmp_path / "cuda"
        cuda.unlink(missing_ok=True)
        job = {"folder": str(tmp_path), "limit": limit, "env": env or {}}
        print(json.dumps(job), file=helper.stdin, flush=True)
        status = json.loads(helper.stdout.readline())
        out, err = ((tmp_path / name).read_text(encoding="utf-8") for name in ("out", "err"))
        return Done(status, out, err, json.loads(cuda.read_text()) if cuda.exists() else {})

    return run
