"""Run notebooks on the machine at hand; write their records, traces and stored outputs.

    python -m utils.record                                    every notebook
    python -m utils.record book/15_transfers.ipynb            one of them
    python -m utils.record --to mine book/15_transfers.ipynb  beside the book's, not instead

Experiments that this machine can run are measured and recorded; the others are replayed and keep
their records. A notebook whose run fails leaves itself and all records as they were, unless it is a
draft, with experiments that were never recorded, or ``--keep-going`` was given: then it goes on
after a failing cell, and everything is written; with ``--keep-going`` also what was measured before
the kernel died or somebody ended the run. The first cell runs once more after the last, so that a
figure drawn there from records shows what was just measured.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from tqdm import tqdm

from utils.device import gpu_count, held_back
from utils.record.missing import NOTICE, ExperimentError
from utils.record.notebooks import set_reading_time, tidy
from utils.record.paths import BOOK, RECORDS, ROOT, TRACES
from utils.record.predictions import all_predictions, compare


class RecordingError(RuntimeError):
    """A notebook could not be recorded; nothing was changed."""


class Recording(NamedTuple):
    """What came of recording a notebook."""

    records: list[str]  # the names of those written
    failed: list[str]  # cells that failed, each with its error
    drafts: list[str]  # the notices of experiments that were never recorded


def run(
    notebook: NotebookNode, folder: Path, records: Path, timeout: int, keep_going: bool, new: bool
) -> list[str]:
    """Execute ``notebook`` in place, in ``folder``; records of its experiments go to ``records``.

    Returns
    -------
    list of str
        The cells that failed, each with its error: none unless going on after a failure, which a
        draft does by itself.

    Raises
    ------
    RecordingError
        If a cell fails, runs longer than ``timeout`` seconds, or kills the kernel, or somebody
        interrupts it, and the run does not go on.
    """
    code = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    # Failures are looked at below.
    settings = {"record_timing": False, "coalesce_streams": True, "allow_errors": True}
    settings["extra_arguments"] = ["--IPKernelApp.log_level=ERROR"]  # no warning of open ports
    # Without a GPU, cells so tagged keep the output of one.
    settings["skip_cells_with_tag"] = "" if gpu_count() else "skip-execution"
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", **settings)
    # The project's root on the path: a GPU machine without network need not install the package.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "BOOK_RECORD_TO": str(records), "PYTHONPATH": path}
    env |= {"BOOK_EXPERIMENTS": "new"} if new else {}
    kernel = client.setup_kernel(env=env, cwd=str(folder))
    failed: list[str] = []
    again = [i for i in code[:1] if "recorded(" in notebook.cells[i].source]
    with kernel, tqdm(total=len(code + again), unit="cell", file=sys.stderr) as bar:
        for index in [*code, *again]:
            cell, number = notebook.cells[index], code.index(index) + 1
            name, end = f"code cell {number} (id {cell.get('id', '?')})", ""
            bar.set_postfix_str((cell.source.splitlines() or [""])[-1][:40])
            try:
                client.execute_cell(cell, index, execution_count=number)
                why = _error(cell)
            except (CellTimeoutError, DeadKernelError, KeyboardInterrupt) as error:
                why = (str(error).strip() or "interrupted").splitlines()[0]
                end = "; no later cell has run"
            keep_going = keep_going or (not end and NOTICE in str(cell.get("outputs")))
            if why and not keep_going:
                raise RecordingError(f"{name} failed: {why}")
            failed += [f"{name}: {why}{end}"] if why else []
            if end:
                break
            bar.update()
    return failed


def _error(cell: NotebookNode) -> str | None:
    """The cell's own error in a few lines, None without one: what it says, and the failing line."""
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            said = " ".join(output.evalue.split())
            trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
            arrows = re.findall(r"^-+> *\d+ (.*)$", trace, re.MULTILINE)
            at = f"\n    {arrows[0].strip()}" if arrows else ""
            return f"{output.ename}: {said[:600]}{at}"
    return None


def record(
    path: Path,
    *,
    timeout: int = 600,
    keep_going: bool = False,
    new: bool = False,
    to: Path | None = None,
) -> Recording:
    """Record the notebook at ``path``: its stored outputs and the records of its experiments.

    Parameters
    ----------
    path : Path
        A notebook of the book.
    timeout : int
        Seconds that one cell may take.
    keep_going : bool
        Go on after a failing cell and write what there is.
    new : bool
        Measure only what was never recorded or is stale; keep all other records.
    to : Path, optional
        A folder for the records of what was measured here. The notebook, and the book's own
        records, then stay as they are.

    Returns
    -------
    Recording
        The records written; and, where the run went on, what failed.

    Raises
    ------
    RecordingError
        If there is no such notebook, or a cell fails and the run does not go on. The notebook and
        all records are then as they were.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)  # which read() does, too, but goes on
    except FileNotFoundError:
        raise RecordingError(f"{path}: no such notebook") from None
    except Exception as error:  # JSON of another form fails anywhere within nbformat
        said = " ".join(str(error).split())[:100]
        raise RecordingError(f"{path} is not a notebook: {said}") from None
    with tempfile.TemporaryDirectory() as staging:
        failed = run(notebook, path.parent, Path(staging), timeout, keep_going, new)
        written = _keep(Path(staging), to)
    if to:
        return Recording(written, failed, [])
    tidy(notebook)
    set_reading_time(notebook)
    partial = path.with_suffix(".partial")
    nbformat.write(notebook, partial)
    partial.replace(path)
    shown = str([cell.get("outputs") for cell in notebook.cells])
    said = sorted(re.findall(rf"{NOTICE}: (\w+)((?:, on a machine that has [\w:. ]+)?)", shown))
    return Recording(written, failed, [f"{name}{needs}" for name, needs in dict(said).items()])


def _keep(staging: Path, to: Path | None) -> list[str]:
    """Move records and traces to where they belong, all or none; return the records' names."""
    records = sorted(staging.glob("*.json"))
    goals = {path: (to or RECORDS) / path.name for path in records}
    if not to:
        goals |= {path: TRACES / path.name for path in staging.glob("*.json.gz")}
        goals |= {path: RECORDS / path.name for path in staging.glob("*.pt")}  # a model's weights
    for path, goal in goals.items():
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, f"{goal}.partial")
    for goal in goals.values():
        Path(f"{goal}.partial").replace(goal)
    return [path.name for path in records]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m utils.record",
        description="Run notebooks on this machine; write their records and stored outputs.",
        epilog="A failing cell leaves its notebook and all records as they were, except in a draft "
        "(an experiment was never recorded) or with --keep-going.",
    )
    add = parser.add_argument
    add("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="default: all of book/*.ipynb")
    add("--allow-cpu", action="store_true", help="without a GPU, measure what needs none")
    add("--timeout", type=int, default=600, metavar="S", help="seconds a cell may take (600)")
    add("--keep-going", action="store_true", help="go on after a failing cell, keep all there is")
    add("--new", action="store_true", help="measure only what has no record, or a stale one")
    add("--to", type=Path, metavar="FOLDER", help="leave the book as it is, keep records in FOLDER")
    options = vars(parser.parse_args(arguments))
    notebooks, to = options.pop("notebooks") or sorted(BOOK.glob("*.ipynb")), options["to"]
    problem = _problem(to, options.pop("allow_cpu"))
    if problem:
        _say(problem)
        return 2
    failed, slow = 0, held_back()
    for path in notebooks:
        try:
            done = record(path.resolve(), **options)
        except RecordingError as error:
            _say(f"{path.name}: {error}\nNothing of it was changed.")
            failed += 1
            continue
        print(f"{path.name}: {len(done.records)} records")
        for line in [*done.failed, *(f"{NOTICE}: {draft}" for draft in done.drafts)]:
            _say(f"{path.name}: {line}")
        if done.drafts:
            _say(f"{path.name} is a draft: `make test` refuses it")
        failed += bool(done.failed and not done.drafts)
    if to:
        print(compare(to) or "Nothing that the book predicts was measured here.")
    slow = slow or held_back()
    if slow:
        _say(f"WARNING: {slow}. Do not keep these measurements.")
    return 1 if failed else 0


def _say(text: str) -> None:
    print(f"record: {text}", file=sys.stderr)


def _problem(to: Path | None, allow_cpu: bool) -> str | None:
    """Why nothing can be measured here, or nothing of it be kept or shown."""
    if gpu_count() == 0 and not allow_cpu:
        return (
            "this machine has no CUDA GPU. Run on a GPU machine, or give --allow-cpu to record "
            "only what needs none."
        )
    try:
        if to:
            to.mkdir(parents=True, exist_ok=True)
            all_predictions(to)
    except OSError as error:
        return f"--to {to}: {error.strerror}; name a folder"
    except ExperimentError as error:
        return str(error)
    return None
