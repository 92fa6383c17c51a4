"""Kernels that have torch imported when they start, for a run of all notebooks.

Each notebook begins with the same imports, four seconds of a processor. Here one process imports
them once, and every kernel is a fork of it, with an environment, a folder and a session of its own.
`pytest --nbval book/NOTEBOOK.ipynb` does without: only the tests' conftest.py asks for it, and only
where there is no GPU.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO
from unittest.mock import patch

from jupyter_client.provisioning import local_provisioner
from nbval.kernel import start_new_kernel

IMPORTED = (
    "IPython",
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "torch",
    "torch._dynamo",  # by the first optimizer
    "torch.profiler",
    "torchvision",
)
SERVER = Path(__file__).with_name("kernel_server.py")
AT_START = str(Path(__file__).with_name("at_start"))  # lets torchrun fork its ranks, too
PATIENCE = 60  # seconds that the server may take to import everything and to fork a kernel


class Kernel:
    """A forked kernel, with as much of ``subprocess.Popen`` as Jupyter uses."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """Return 0 once the kernel has ended, however it did; its parent is the server."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout or float("inf"))
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("kernel", timeout)
            time.sleep(0.05)
        return 0

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


@cache
def server() -> tuple[subprocess.Popen, IO[str]]:
    """Start the process that has imported everything, which ends with this one; and its stderr."""
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, the kernels write into it, too
    command = [sys.executable, SERVER, *IMPORTED]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, stderr=errors, start_new_session=True), errors


def launch(command: list[str], **options: object) -> Kernel:
    """Stand in for ``jupyter_client.launcher.launch_kernel``.

    Raises:
        RuntimeError: the server gave no kernel, with where it hung or how it ended.
    """
    path = os.pathsep.join(filter(None, [AT_START, options["env"].get("PYTHONPATH")]))
    env = {**options["env"], "PYTHONPATH": path, "BOOK_FORK_RANKS": "1"}
    order = {"argv": command, "env": env, "cwd": str(options["cwd"])}
    if server()[0].poll() is not None:  # somebody has ended it: the next notebooks get another
        server.cache_clear()
    process, errors = server()
    print(json.dumps(order), file=process.stdin, flush=True)
    if select.select([process.stdout], [], [], PATIENCE)[0]:
        answer = process.stdout.readline()
        if answer:
            return Kernel(int(answer))
    else:
        process.send_signal(signal.SIGUSR1)  # it writes down where it is
        time.sleep(0.5)
    process.kill()
    with suppress(subprocess.TimeoutExpired):  # a disk that hangs keeps it
        process.wait(10)
    errors.seek(0)
    raise RuntimeError(f"the server of kernels gave none:\n{errors.read()[-4000:]}")


def start(*arguments: object, **options: object) -> object:
    """Stand in for ``nbval.kernel.start_new_kernel``; what went wrong the first time is a warning.

    It may be that another process has just taken a port that was free for the kernel.
    """
    with patch.object(local_provisioner, "launch_kernel", launch):
        try:
            return start_new_kernel(*arguments, **options)
        except RuntimeError as error:
            warnings.warn(f"a kernel did not start: {error}", stacklevel=2)
            return start_new_kernel(*arguments, **options)
