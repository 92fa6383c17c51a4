"""Scripts that run as a reader would run them: alone in a folder, without this book; see alone.py.

Each is a fork of a process that has imported torch.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import forks

LIMIT = 60  # seconds that a script may take
# As of `python -W error`: what warns today fails tomorrow. The one warning is of one Python only.
WARNINGS = ("-W", "error", "-W", "ignore:Guards may run slower on Python 3.13.0")


class Done(NamedTuple):
    """What came of a script."""

    status: int | None  # None if it took too long
    out: str
    err: str
    cuda: dict[str, bool]  # "available", "used"; empty if the script did not come to its end


@pytest.fixture
def run(tmp_path) -> Callable[..., Done]:
    """A function that runs a source as a script of its own, each time in the same folder."""

    def run(source: str, limit: float = LIMIT, env: dict[str, str] | None = None) -> Done:
        folder, cuda = tmp_path / "script", tmp_path / "cuda"
        folder.mkdir(exist_ok=True)
        (folder / "script.py").write_text(source, encoding="utf-8")
        cuda.unlink(missing_ok=True)
        command = [sys.executable, *WARNINGS, str(Path(__file__).with_name("alone.py"))]
        where = {"cwd": folder, "env": {**os.environ, **(env or {})}, "start_new_session": True}
        where |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with forks.Popen(command, **where, encoding="utf-8") as process:
            try:
                out, err = process.communicate(timeout=limit)
                status = process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                (out, err), status = process.communicate(), None
        return Done(status, out, err, json.loads(cuda.read_text()) if cuda.exists() else {})

    return run
