"""What an experiment needs, and what of it this machine lacks."""

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec

from utils import device
from utils.records import ExperimentError


def _mnist_missing() -> str | None:
    from utils import data

    return data.missing_mnist()


def _compiler_missing() -> str | None:
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    found = any(map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "clang++")))
    return None if found and os.path.exists(header) else "no C++ compiler here"


def missing(needs: Sequence[str]) -> str | None:
    """Return why this machine lacks one of ``needs``, or None if it has them all.

    Needs are ``"cpu"`` (always there), ``"cuda"``, ``"gpus:N"``, ``"sm:X.Y"`` (compute capability
    at least X.Y), ``"mnist"`` (the real data set, not the stand-in), ``"triton"`` (the compiler
    that torch's Linux wheels bring along), ``"c++"`` (a C++ compiler and Python's headers, which
    ``torch.compile`` needs for a CPU) and ``"linux"``.

    Raises
    ------
    ExperimentError
        If a need is none of these.
    """
    for need in needs:
        count = re.fullmatch(r"gpus:([1-9]\d*)", need)
        capability = re.fullmatch(r"sm:(\d+)\.(\d+)", need)
        if need == "cpu":
            why = None
        elif need == "mnist":
            why = _mnist_missing()
        elif need == "triton":
            why = None if find_spec("triton") else "no Triton here"
        elif need == "c++":
            why = _compiler_missing()
        elif need == "linux":
            why = None if sys.platform == "linux" else "not Linux here"
        elif need == "cuda" or count or capability:
            have = device.gpu_count()
            if have == 0:
                why = "no CUDA GPU here"
            elif count and have < int(count[1]):
                why = f"{have} GPU here, {count[1]} needed"
            elif capability and device.capability() < (int(capability[1]), int(capability[2])):
                why = f"needs compute capability {capability[1]}.{capability[2]}"
            else:
                why = None
        else:
            raise ExperimentError(
                f"unknown need {need!r}: use 'cpu', 'cuda', 'gpus:N', 'sm:X.Y', 'mnist', 'triton', "
                "'c++' or 'linux'"
            )
        if why:
            return why
    return None
