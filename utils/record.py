"""Run notebooks on the machine at hand; write their records, traces and stored outputs.

    python -m utils.record                       every notebook
    python -m utils.record book/03_tensors.ipynb one of them

Experiments that this machine can run are measured and recorded; the others are replayed and keep
their records. A notebook whose run fails leaves itself and all records as they were.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from tqdm import tqdm

from utils import device
from utils.experiment import RECORDS
from utils.trace import TRACES

BOOK = RECORDS.parent
ROOT = BOOK.parent


class RecordingError(RuntimeError):
    """A notebook could not be recorded; nothing was changed."""


def run(notebook: nbformat.NotebookNode, folder: Path, records: Path, timeout: int) -> None:
    """Execute ``notebook`` in place, in ``folder``; records of its experiments go to ``records``.

    Raises
    ------
    RecordingError
        If a cell fails, runs longer than ``timeout`` seconds, or kills the kernel.
    """
    code = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    bar = tqdm(total=len(code), unit="cell", file=sys.stderr)
    at = {"cell": 0}

    def started(cell: nbformat.NotebookNode, cell_index: int) -> None:
        if cell.cell_type != "code":
            return
        at["cell"] = cell_index
        bar.set_postfix_str((cell.source.splitlines() or [""])[-1][:40])

    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
        on_cell_start=started,
        on_cell_executed=lambda cell, cell_index, execute_reply: bar.update(),
    )
    # The project's root on the path: a GPU machine without network need not install the package.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "BOOK_RECORD_TO": str(records), "PYTHONPATH": path}
    try:
        client.execute(env=env)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        cell = notebook.cells[at["cell"]]
        number = code.index(at["cell"]) + 1 if at["cell"] in code else "?"
        message = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
        raise RecordingError(
            f"code cell {number} (id {cell.get('id', '?')}) failed:\n{message}"
        ) from None
    finally:
        bar.close()


def record(path: Path, *, timeout: int = 600) -> list[str]:
    """Record the notebook at ``path``: its stored outputs and the records of its experiments.

    Parameters
    ----------
    path : Path
        A notebook of the book.
    timeout : int
        Seconds that one cell may take.

    Returns
    -------
    list of str
        The names of the records written.

    Raises
    ------
    RecordingError
        If there is no such notebook or a cell fails. The notebook and all records are then as they
        were.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise RecordingError(f"{path}: no such notebook") from None
    except (nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise RecordingError(f"{path} is not a notebook: {str(error)[:100]}") from None
    metadata = notebook.metadata.copy()
    with tempfile.TemporaryDirectory() as staging:
        run(notebook, path.parent, Path(staging), timeout)
        notebook.metadata = metadata  # not the kernel's: it names this machine's Python
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # timing
        written = sorted(p.name for p in Path(staging).glob("*.json"))
        traces = sorted(p.name for p in Path(staging).glob("*.json.gz"))
        goals = {name: RECORDS / name for name in written}
        goals |= {name: TRACES / name for name in traces}
        for name, goal in goals.items():
            goal.parent.mkdir(exist_ok=True)
            shutil.move(str(Path(staging) / name), f"{goal}.partial")
        for goal in goals.values():
            Path(f"{goal}.partial").replace(goal)
        partial = path.with_suffix(".partial")
        nbformat.write(notebook, partial)
        partial.replace(path)
    return written


def held_back() -> str | None:
    """Return why a GPU is slower than its power limit explains; None if none is.

    Under a second of large matrix products a healthy card is at its highest clock or at its limit
    of power. One that is at neither is held back by heat, or by the machine around it, and its
    measurements would be real and misleading.
    """
    found = (_held_back(index) for index in range(device.gpu_count()))
    return next((why for why in found if why), None)


def _held_back(index: int) -> str | None:
    a = torch.randn(4096, 4096, device=f"cuda:{index}", dtype=torch.float16)
    said, until = None, time.perf_counter() + 1
    while said is None:
        for _ in range(50):
            a @ a
        if time.perf_counter() > until:  # ask while the queue is full
            said = device.nvidia_smi("clocks.sm,clocks.max.sm,power.draw,power.limit") or [""]
        torch.cuda.synchronize(a.device)
    try:
        clock, highest, power, limit = (float(number) for number in said[index].split(","))
    except (ValueError, IndexError):  # some cards do not tell
        return None
    if clock > 0.7 * highest or power > 0.8 * limit:
        return None
    return (
        f"under full load GPU {index} runs at {clock:.0f} of {highest:.0f} MHz and draws "
        f"{power:.0f} of {limit:.0f} W, so something other than its power limit holds it back"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m utils.record",
        description="Run notebooks on this machine; write their records and stored outputs.",
        epilog="A failing cell leaves its notebook and all records as they were.",
    )
    parser.add_argument(
        "notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="default: all of book/*.ipynb"
    )
    parser.add_argument(
        "--allow-cpu",
        action="store_true",
        help="record without a GPU: only experiments that need none are measured",
    )
    parser.add_argument(
        "--timeout", type=int, default=600, metavar="S", help="seconds a cell may take (600)"
    )
    options = parser.parse_args(arguments)
    if device.gpu_count() == 0 and not options.allow_cpu:
        print(
            "record: this machine has no CUDA GPU. Run on a GPU machine, or give --allow-cpu to "
            "record only what needs none.",
            file=sys.stderr,
        )
        return 2
    failed = 0
    slow = held_back()
    for path in options.notebooks or sorted(BOOK.glob("*.ipynb")):
        try:
            written = record(path.resolve(), timeout=options.timeout)
        except RecordingError as error:
            print(f"record: {path.name}: {error}\nNothing of it was changed.", file=sys.stderr)
            failed += 1
        else:
            print(f"{path.name}: {len(written)} records")
    slow = slow or held_back()
    if slow:
        print(f"record: WARNING: {slow}. Do not keep these measurements.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
