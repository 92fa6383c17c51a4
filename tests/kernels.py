"""Kernels that have torch imported when they start, for a run of all notebooks.

Each notebook begins with the same imports, four seconds of a processor. Here one process imports
them once, and every kernel is a fork of it, with an environment, a folder and a session of its own.
`pytest --nbval book/NOTEBOOK.ipynb` does without: only the tests' conftest.py asks for it, and only
where there is no GPU.
"""

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
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
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


@cache
def server() -> subprocess.Popen:
    """Start the process that has imported everything; it ends with this one."""
    command = [sys.executable, __file__]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, start_new_session=True)


def launch(command: list[str], **options: object) -> Kernel:
    """Stand in for ``jupyter_client.launcher.launch_kernel``."""
    order = {"argv": command, "env": dict(options["env"]), "cwd": str(options["cwd"])}
    if server().poll() is not None:  # somebody has ended it: the next notebooks get another
        server.cache_clear()
    asked, answers = server().stdin, server().stdout
    print(json.dumps(order), file=asked, flush=True)
    return Kernel(int(answers.readline()))


def start(*arguments: object, **options: object) -> object:
    """Stand in for ``nbval.kernel.start_new_kernel``."""
    with patch.object(local_provisioner, "launch_kernel", launch):
        return start_new_kernel(*arguments, **options)


def serve(orders: IO[str], answers: IO[str]) -> None:
    """Fork a kernel for each order, and answer with its number, until nobody orders any more."""
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as kernels set it
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, by torch._dynamo
    for name in IMPORTED:
        __import__(name)
    del os.environ["TRITON_INTERPRET"]  # chapter 4.5 sets it, as it would before importing Triton
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # kernels that end leave no zombie
    for line in orders:
        if os.fork() == 0:
            os.setsid()  # before it answers: who is asked to end it signals its whole group
            print(os.getpid(), file=answers, flush=True)
            become(**json.loads(line))


def become(argv: list[str], env: dict[str, str], cwd: str) -> None:
    """Turn this process into the kernel that ``argv`` names: ``python -m ipykernel_launcher …``."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(2, 1)  # the server's output is for its answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    del sys.path[0]  # the folder of this file
    sys.argv = argv[argv.index("-m") + 1 :]

    import random

    import numpy as np
    from ipykernel.kernelapp import IPKernelApp

    random.seed()
    np.random.seed()
    IPKernelApp.launch_instance(parent_handle=os.getppid())  # it ends when the server has ended
    sys.exit()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
