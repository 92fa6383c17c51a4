"""Processes as forks of one that has imported torch, which would take each of them two seconds."""

import functools
import gc
import importlib
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

KEEP = Path(__file__).resolve().parent.parent / "book" / "keep"
# What a script imports: modules of torch, another script, a code to keep.
NAMED = re.compile(r"^ *(?:from|import) ([\w.]+)(?: import (\w+))?", re.MULTILINE)


class Forked:
    """A process as a fork of this one.

    It has what torchrun() asks of a ``subprocess.Popen``. Its memory holds the environment it was
    given, but /proc still shows this process's; so it looks itself whether it has ended.
    """

    def __init__(self, act: Callable[[], int | None], env: dict, stdout: int, stderr: int) -> None:
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                gc.freeze()  # what it inherited and nobody needs must not close files of its own
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(stdout, 1)
                os.dup2(stderr, 2)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
                os.environ.clear()
                os.environ.update(env)
                status = act() or 0
            except BaseException as error:
                status = error.code if isinstance(error, SystemExit) else 1
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status if isinstance(status, int) else 1)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("the launcher", timeout)
            time.sleep(0.01)
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@functools.cache
def import_for(script: Path) -> None:
    """Import what a script needs of torch, so that the forks find it there."""
    text = script.read_text(encoding="utf-8")
    for module, name in NAMED.findall(text):
        beside = [folder / f"{module}.py" for folder in (script.parent, KEEP)]
        if found := [path for path in beside if path.exists()]:
            import_for(found[0])
        elif module.split(".")[0] == "torch":
            with suppress(ImportError):  # the name is no module
                importlib.import_module(f"{module}.{name}".rstrip("."))
    if "optim." in text:  # the first optimizer imports it
        importlib.import_module("torch._dynamo")
    gc.freeze()  # no fork looks for garbage in what was imported


def start_rank(
    args: list[str], env: dict[str, str], stdout: IO | None, stderr: IO | None, **how: object
) -> Forked:
    """Stand in for ``subprocess.Popen`` where torchrun starts a script: its ranks must not hang.

    Who looks for processes of a run by their environment does not find a fork.
    """
    command = list(args[args.index("-u") + 1 :])
    import_for(Path(command[0]))

    def act() -> None:
        sys.argv, sys.path[0] = command, os.path.dirname(command[0])
        runpy.run_path(command[0], run_name="__main__")

    out, err = (file.fileno() if file else own for file, own in ((stdout, 1), (stderr, 2)))
    return Forked(act, env, out, err)
