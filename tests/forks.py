"""Python processes as forks of one that has imported torch, which would take each of them seconds.

``Popen`` is ``subprocess.Popen``, but its ``[sys.executable, …]`` is a fork of a server, which the
first who asks starts, and which ends with it. Whom it forks may ask it, too.
"""

import atexit
import ctypes
import faulthandler
import gc
import importlib.metadata
import json
import multiprocessing.util
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import unittest.mock
import warnings
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

# What notebooks, scripts, ranks and the tests themselves import.
IMPORTED = (
    *("IPython", "ipykernel.kernelapp", "jsonschema", "nbclient", "nbformat", "psutil"),
    *("matplotlib.pyplot", "matplotlib_inline.backend_inline", "torch", "torch._dynamo"),
    *("torch._inductor", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"),
    *("torch.distributed.run", "torch.distributed.tensor.parallel", "torch.profiler"),
    *("sklearn.datasets", "torch.utils.benchmark", "torchvision"),
)
DOOR = "BOOK_FORKS"  # in the environment: the address of the server
ROOM = {"BOOK_ROOM": " " * 60_000}  # any other environment fits in the place of the server's
PATIENCE = 60  # seconds that the server may take to import everything and to fork
# In the environment: what a fork forks, "all" that is Python, or "ranks" and who starts processes.
FORK = "BOOK_FORK"
STARTERS = {"utils.ranks.launcher", "torch.distributed.run", "two_agents.py", "spawns.py"}
Real = subprocess.Popen


# --- who asks ------------------------------------------------------------------------------------


@cache
def address() -> str:
    """Where the server listens."""
    if DOOR not in os.environ:
        path = tempfile.mkdtemp() + "/door"
        with socket.socket(socket.AF_UNIX) as door, open(f"{path}.err", "w") as errors:
            door.bind(path)
            door.listen(100)
            number, env = door.fileno(), {**os.environ, **ROOM}
            env.pop("PYTHONPATH", None)
            # It ends with its input, to which only this process can write.
            how = {"env": env, "stdin": subprocess.PIPE, "stderr": errors, "pass_fds": [number]}
            here = os.path.dirname(os.path.realpath(__file__))
            code = f"import sys; sys.path[0] = {here!r}; import forks; forks.serve({number})"
            server = Real([sys.executable, "-c", code], **how)
            atexit.register(shutil.rmtree, os.path.dirname(path), ignore_errors=True)
            atexit.register(server.communicate)  # which closes its input
        os.environ[DOOR] = path
    return os.environ[DOOR]


class Child(Real):
    """A process that this one forks, if it is to be a Python: torchrun looks among its children."""

    line = None

    @staticmethod
    def forks(args: list[str]) -> bool:
        return args[0] == sys.executable

    def _execute_child(self, args, *rest) -> None:
        if isinstance(args, str) or not self.forks(args):
            return super()._execute_child(args, *rest)
        cwd, env, pipes = rest[4], rest[5], rest[9:15]
        order = {"args": [*map(os.fspath, args[1:])], "cwd": str(cwd or os.getcwd())}
        order |= {"session": bool(rest[20]), "env": {**(env or os.environ), DOOR: address()}}
        own = enumerate((pipes[0], pipes[3], pipes[5]))  # the process's ends
        self.begin(order, [number if end == -1 else end for number, end in own])
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def begin(self, order: dict, ends: list[int]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            become(None, [*map(os.dup, ends)], order)


class Popen(Child):
    """A process that the server forks, if it is to be a Python.

    Raises:
        RuntimeError: the server gave none, with what it said.
    """

    def begin(self, order: dict, ends: list[int]) -> None:
        text = json.dumps(order).encode() + b"\n"
        self.line = socket.socket(socket.AF_UNIX)
        self.line.settimeout(PATIENCE)
        try:
            self.line.connect(address())
            sent = socket.send_fds(self.line, [text], ends)
            self.line.sendall(text[sent:])
            (self.pid,) = struct.unpack("i", self.line.recv(4))
        except (OSError, struct.error) as error:
            self.line.close()
            said = Path(f"{address()}.err").read_text()[-4000:]
            raise RuntimeError(f"no process was forked, {error!r}:\n{said}") from error
        self.line.settimeout(None)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self.line is None:
            return super()._try_wait(flags)
        if not select.select([self.line], [], [], 0 if flags else None)[0]:
            return 0, 0
        status = self.line.recv(4)
        self.line.close()
        return self.pid, struct.unpack("i", status)[0] if status else signal.SIGKILL

    def _internal_poll(self, *state: object, **more: object) -> int | None:
        if self.line is None:
            return super()._internal_poll(*state, **more)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


class PopenOfRanks(Popen):
    """A process that is forked, if it is to start ranks."""

    @staticmethod
    def forks(args: list[str]) -> bool:
        names = {os.path.basename(os.fspath(part)) for part in args[1:3]}
        return args[0] == sys.executable and bool(STARTERS & names)


# --- the server ----------------------------------------------------------------------------------


def serve(number: int) -> None:
    """Fork for whoever comes, and tell of the end, until the process that started this has ended.

    Who hangs up has ended, or been ended: then so is what was forked for it.
    """
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as kernels set it
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, by torch._dynamo
    import torch  # noqa: F401

    # Who asks the driver cannot fork any more, to torch's mind; to import its benchmarks does.
    with unittest.mock.patch("torch.cuda.is_available", return_value=False):
        for name in IMPORTED:
            importlib.import_module(name)
    known = importlib.metadata.entry_points = cache(importlib.metadata.entry_points)
    known(group="torch.distributed.backends")  # each group of ranks would read some 200 files anew
    del os.environ["TRITON_INTERPRET"]  # chapter 4.5 sets it, as it would before importing Triton
    gc.freeze()  # no fork looks for garbage in what was imported
    gc.set_threshold(50_000, 20, 100)  # as in at_start, which this process did not read
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends those who asked
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    door, lines = socket.socket(fileno=number), {}
    while True:
        ready = select.select([0, door, ended, *lines.values()], [], [])[0]
        if 0 in ready:
            return
        if door in ready:
            line, _ = door.accept()
            text, files, *_ = socket.recv_fds(line, 2**20, 3)
            while text and text[-1:] != b"\n":
                text += line.recv(2**20)
            pid = os.fork()
            if pid == 0:
                become(line, files, json.loads(text))
            lines[pid] = line
            del line
            for file in files:
                os.close(file)
        if ended in ready:
            os.read(ended, 4096)
            with suppress(ChildProcessError):
                while (found := os.waitpid(-1, os.WNOHANG))[0]:
                    if line := lines.pop(found[0], None):
                        tell(line, found[1])
        for pid in [pid for pid, line in lines.items() if line in ready]:
            del lines[pid]
            with suppress(ProcessLookupError):
                (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signal.SIGTERM)


def tell(line: socket.socket, number: int) -> None:
    with suppress(OSError):
        line.sendall(struct.pack("i", number))


def become(line: socket.socket | None, files: list[int], order: dict) -> NoReturn:
    """Be what ``python *args`` would be, where and how the order says."""
    gc.freeze()  # or what it inherited and nobody needs may close files of its own
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["session"]:
        os.setsid()
    if line:
        tell(line, os.getpid())  # not before: who is asked to end it may signal its whole group
    for own, file in enumerate(files):
        os.dup2(file, own)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    show(order["env"])
    # Of what is to be done at the end only what is its own, not the server's.
    atexit._clear()
    weakref.finalize._registry.clear()
    for last in (weakref.finalize._exitfunc, multiprocessing.util._exit_function):
        atexit.register(last)
    status = 1
    try:
        act(order["args"])
        status = 0
    except SystemExit as end:
        if (status := end.code or 0) and not isinstance(status, int):
            status = print(end.code, file=sys.stderr) or 1
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    with suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # to tear torch down would take a second or two more


def show(env: dict[str, str]) -> None:
    """Let others see this environment, not the server's: they look for a run's processes by it."""
    with suppress(OSError):  # only Linux has it
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = map(int, fields[47:49])
        text = "".join(f"{name}={value}\0" for name, value in env.items()).encode()
        ctypes.memmove(begin, text[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def act(args: list[str]) -> None:
    """Run ``args``, with what Python reads from them and from the environment when it starts."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    filters = os.environ.get("PYTHONWARNINGS", "").split(",")
    while args[0][0] == "-" and args[0] not in ("-c", "-m"):
        option = args.pop(0)
        unbuffered |= option == "-u"
        sys.dont_write_bytecode |= option == "-B"
        filters += [args.pop(0)] if option == "-W" else []
    for text in filter(None, filters):
        warnings._setoption(text)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.stdin = sys.__stdin__ = os.fdopen(0)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", 1 if unbuffered else -1)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace")
    for own in ("random", "numpy.random"):
        sys.modules[own].seed()
    if args[1:2] == ["ipykernel_launcher"]:
        os.environ["JPY_PARENT_PID"] = str(os.getppid())  # it ends when the server has ended
        if os.environ.get(FORK) == "all":  # else nobody looks at figures: none is drawn
            del sys.modules["matplotlib_inline.backend_inline"]
    else:
        sys.modules["matplotlib"].rcParams["backend"] = os.environ.get("MPLBACKEND", "agg")
    if FORK in os.environ:
        kind = Popen if os.environ[FORK] == "all" else PopenOfRanks
        subprocess.Popen = sys.modules["jupyter_client.launcher"].Popen = kind
        if STARTERS & {os.path.basename(part) for part in args[:2]}:
            from torch.distributed.elastic.multiprocessing.subprocess_handler import (
                subprocess_handler,
            )

            subprocess_handler.Popen = Child
    if args[1:2] == ["utils.ranks.launcher"]:
        args[2] = str(os.getppid())

    what = args.pop(0)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    own = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    first = {"-c": "", "-m": os.getcwd()}.get(what, os.path.dirname(os.path.realpath(what)))
    sys.path[:] = [first, *own, *sys.path[1:]]
    if what == "-m":
        import runpy

        sys.argv = ["-m", *args[1:]]
        runpy._run_module_as_main(args[0])
    elif what == "-c":
        sys.argv = ["-c", *args[1:]]
        exec(compile(args[0], "<string>", "exec"), vars(main))
    else:
        sys.argv, main.__file__ = [what, *args], what
        exec(compile(Path(what).read_bytes(), what, "exec"), vars(main))
