"""The process that kernels.py starts: it imports what notebooks import, then forks itself for each.

Nothing here imports Jupyter's side of a kernel, which would take a second more.
"""

import faulthandler
import gc
import json
import os
import signal
import sys
from typing import IO


def serve(imported: list[str], orders: IO[str], answers: IO[str]) -> None:
    """Fork a kernel for each order, and answer with its number, until nobody orders any more."""
    faulthandler.register(signal.SIGUSR1)
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as kernels set it
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, by torch._dynamo
    for name in imported:
        __import__(name)
    del os.environ["TRITON_INTERPRET"]  # chapter 4.5 sets it, as it would before importing Triton
    gc.freeze()  # no kernel looks for garbage in what was imported
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
    serve(sys.argv[1:], sys.stdin, sys.stdout)
