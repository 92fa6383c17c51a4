"""What a machine lacks of what an experiment needs, and what stands for a measurement meanwhile."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from utils import device

NOTICE = "NOT RECORDED YET"


class ExperimentError(RuntimeError):
    """An experiment can be neither run nor replayed as it stands; the message says what to do."""


class NotRecorded:
    """A result that nobody has measured: whatever is done with it gives a placeholder again.

    It counts as true and compares as true, so that the assertions of a draft pass; a loop over it
    runs zero times; as a number it is ``nan``, and in a text ``—``.
    """

    def __getattr__(self, name: str) -> "NotRecorded":
        if name.startswith("_"):  # what NumPy, IPython and copy look for, it does not have
            raise AttributeError(name)
        return self

    def _same(self, *anything: Any, **more: Any) -> "NotRecorded":
        return self

    def _true(self, *anything: Any) -> bool:
        return True

    __call__ = __getitem__ = _same
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _same
    __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _same
    __neg__ = __pos__ = __abs__ = __round__ = __or__ = __ror__ = __and__ = __rand__ = _same
    __deepcopy__ = __copy__ = _same
    __bool__ = __contains__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _true
    __hash__ = object.__hash__

    def __iter__(self):
        return iter(())

    def __float__(self) -> float:
        return float("nan")

    def __int__(self) -> int:
        return 0

    __index__ = __len__ = __int__

    def __str__(self, spec: str = "") -> str:
        return "—"

    __format__ = __str__

    def __repr__(self) -> str:
        return f"<{NOTICE}>"


def never_recorded(path: Path) -> bool:
    """Return whether git is sure that no file was ever at ``path``: a draft, not a loss.

    A record that git knows, or of which no git can tell, was removed or not delivered.
    """
    if path.exists():
        return False
    command = ["git", "log", "-1", "--format=%h", "--all", "--", path.name]
    try:
        done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and not done.stdout.strip()


# --- what experiments need -----------------------------------------------------------------------

_NEED = re.compile(
    r"cpu|cuda|mnist|triton|torchao|onnxruntime|c\+\+|linux|gpus:[1-9]\d*|sm:\d+\.\d+"
)


def missing(needs: Sequence[str]) -> str | None:
    """Return why this machine lacks one of ``needs``, or None if it has them all.

    Needs are ``"cpu"`` (always there), ``"cuda"``, ``"gpus:N"``, ``"sm:X.Y"`` (compute capability
    at least X.Y), ``"mnist"`` (the real data set, not the stand-in), ``"triton"`` (the compiler
    that torch's Linux wheels bring along), ``"torchao"`` and ``"onnxruntime"`` (which
    ``requirements.txt`` leaves out), ``"c++"`` (a C++ compiler and Python's headers, which
    ``torch.compile`` needs for a CPU) and ``"linux"``.

    Raises
    ------
    ExperimentError
        If a need is none of these.
    """
    for need in needs:
        if not _NEED.fullmatch(need):
            raise ExperimentError(
                f"unknown need {need!r}: use 'cpu', 'cuda', 'gpus:N', 'sm:X.Y', 'mnist', 'triton', "
                "'torchao', 'onnxruntime', 'c++' or 'linux'"
            )
    return next(filter(None, map(_lack, needs)), None)


def _lack(need: str) -> str | None:
    kind, _, least = need.partition(":")
    if kind == "mnist":
        from utils import data  # torch, torchvision and seconds

        return data.missing_mnist()
    if kind in ("triton", "torchao", "onnxruntime") and not find_spec(kind):
        return f"no {kind} here"
    if kind == "linux" and sys.platform != "linux":
        return "not Linux here"
    if kind == "c++":
        header = os.path.join(sysconfig.get_path("include"), "Python.h")
        found = any(map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "clang++")))
        return None if found and os.path.exists(header) else "no C++ compiler here"
    if kind in ("cuda", "gpus", "sm"):
        have = device.gpu_count()
        if have == 0:
            return "no CUDA GPU here"
        if kind == "gpus" and have < int(least):
            return f"{have} GPU here, {least} needed"
        if kind == "sm" and device.capability() < tuple(map(int, least.split("."))):
            return f"needs compute capability {least}"
    return None
