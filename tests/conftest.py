"""A throw-away book with one experiment, on a machine that has as many GPUs as a test wants.

And, from pasted.py, ``run``, which runs a script as a reader would; from ranks.py what tests of
ranks share; from pages.py, ``site`` and ``open_page``, the built pages in a browser.
"""

import gc
import importlib
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbval.kernel
import pytest

import forks
import kernels
from pages import browser, open_page, site  # noqa: F401
from pasted import run  # noqa: F401
from ranks import forked, forked_ranks, nothing_left, script  # noqa: F401
from utils import device
from utils.record import Experiment, file

PROVENANCE = {"gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 1, "driver": "580.1", "cudnn": 91900}
PROVENANCE |= {"torch": "2.11.0+cu130", "cuda": "13.0", "python": "3.12.3", "cpu": "a CPU"}
PROVENANCE |= {"cpu_cores": 16, "date": "2026-11-20"}
# Started first, or the last of several workers goes on alone: each takes minutes, file by file.
LONGEST = (
    *(f"tests/test_{name}.py" for name in ("site", "train", "chapter", "whole", "keep", "scripts")),
    *("book/54_sharding.ipynb", "book/55_beyond.ipynb", "book/72_language_model.ipynb"),
    *(f"tests/test_{name}.py" for name in ("bootstrap", "search", "recorder", "compare")),
    *("book/52_ddp.ipynb", "book/troubleshooting.ipynb", "book/24_fitting.ipynb"),
    *("book/43_compile.ipynb", "book/51_data_parallel.ipynb", "book/62_bottlenecks.ipynb"),
    *("book/53_scaling.ipynb", "book/21_memory.ipynb", "book/41_data.ipynb"),
)
SOURCE = """
from utils.record import experiment

@experiment(needs={needs!r})
def speed():
    {body}
"""


def pytest_xdist_setupnodes() -> None:
    if not shutil.which("nvidia-smi"):  # CUDA does not survive a fork
        subprocess.Popen = forks.Popen  # by which the workers are started


def pytest_sessionstart() -> None:
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # rewrites some tests' asserts for all
        for file in sorted(Path(__file__).parent.glob("test_*.py"))[int(worker[2:]) :: 4]:
            with suppress(Exception):  # said when it is collected
                importlib.import_module(file.stem)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
    if not shutil.which("nvidia-smi"):  # CUDA does not survive a fork
        nbval.kernel.start_new_kernel = kernels.start


@pytest.fixture
def forked_pythons(monkeypatch) -> None:
    """Each Python that is started is a fork that has imported torch."""
    monkeypatch.setattr(subprocess, "Popen", forks.Popen)


def pytest_collection_finish() -> None:
    gc.freeze()  # what stands now stays: to look for garbage in it would take a second each time


@pytest.fixture
def book(tmp_path, monkeypatch) -> Path:
    """An empty book, with its records folder and no recording under way."""
    records = tmp_path / "book" / "records"
    records.mkdir(parents=True)
    monkeypatch.setattr(file, "RECORDS", records)
    monkeypatch.delenv("BOOK_RECORD_TO", raising=False)
    monkeypatch.delenv("BOOK_EXPERIMENTS", raising=False)
    return tmp_path


@pytest.fixture
def gpu(monkeypatch):
    """A machine that claims one GPU; returns the setter of the count, and of what else it is."""

    def set_count(count: int, **more: object) -> None:
        monkeypatch.setattr(device, "gpu_count", lambda: count)
        monkeypatch.setattr(device, "capability", lambda: (9, 0))
        here = {**PROVENANCE, "gpu": "Another GPU" if count else None, "gpu_count": count}
        monkeypatch.setattr(device, "provenance", lambda: {**here, **more})

    set_count(1)
    return set_count


@pytest.fixture
def make(book, monkeypatch):
    """A function that imports an experiment from a file of its own, as from a notebook's cell."""
    # Python takes compiled code for fresh if its source has the same size, and the same second.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def make(body: str = "return {'x': 1.5}", needs: str = "cuda") -> Experiment:
        file = book / "cell.py"
        file.write_text(textwrap.dedent(SOURCE.format(needs=needs, body=body)))
        sys.modules.pop("cell", None)
        sys.path.insert(0, str(book))
        try:
            import cell
        finally:
            sys.path.remove(str(book))
        return cell.speed

    return make


@pytest.fixture
def recording(book, monkeypatch):
    """A context in which what is measured becomes a record of the book."""

    @contextmanager
    def recording() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setenv("BOOK_RECORD_TO", str(file.RECORDS))
            yield

    return recording


@pytest.fixture
def recorded(make, gpu, recording) -> Path:
    """The record that a GPU machine left, on a machine that now has no GPU."""
    with recording():
        make()()
    gpu(0)
    return file.RECORDS / "speed.json"
