"""What every notebook and record looks like, checked without running them.

The form of the notebooks is described in form.py; here it is applied, and held against the records.
"""

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from nbformat import NotebookNode
from PIL import Image

import captions
import form
from notebooks import BOOK, NOTEBOOKS, ROOT, code_cells, experiments, pictures, read, text_lines
from utils.cards import format_value
from utils.gpus import GPUS
from utils.record import PROVENANCE, ExperimentError, load_record, where
from utils.record.fingerprint import fingerprint

RECORDS = BOOK / "records"
record = functools.cache(load_record)


def fail_if(problems: Iterator[str] | list[str]) -> None:
    found = list(dict.fromkeys(problems))
    if found:
        pytest.fail("\n".join(found), pytrace=False)


# --- notebooks ---------------------------------------------------------------------------------


def problems_of(path: Path, records: Path = RECORDS) -> Iterator[str]:
    """All that is wrong with the notebook at ``path``, beside these records."""
    notebook = read(path)
    yield from form.problems(notebook, path.stem)
    yield from traces_of_a_machine(path)
    yield from records_that_are_not_fresh(path, records)
    paths = [records / f"{name}.json" for name in experiments(notebook)]
    found = {path.stem: record(path) for path in paths if path.exists()}
    yield from outputs_of_other_machines(notebook, found)
    yield from captions_without_a_machine(notebook, records)
    yield from pairs_that_are_not_shown(notebook, found)
    if path.name[0].isdigit():
        yield from cards_that_did_not_measure(notebook, records)


def traces_of_a_machine(path: Path) -> Iterator[str]:
    """Of that on which it was run: paths, the version of Python; and how large it is."""
    text, metadata = path.read_text(encoding="utf-8"), read(path).metadata
    if metadata.kernelspec.name != "python3" or "version" in metadata.language_info:
        yield "the metadata name the kernel, or the Python, of one machine: leave python3 alone"
    for found in re.findall(r"(?:/home/|/root/|/Users/|/tmp/|C:\\\\Users)[^\"\s]{0,60}", text):
        yield f"{found!r} is a path of one machine: do not print it"
    if len(text.encode()) > 700_000:
        yield f"{len(text.encode()):,} bytes, of 700,000 at most: draw fewer or simpler figures"


def records_that_are_not_fresh(path: Path, records: Path) -> Iterator[str]:
    again = f"run python -m utils.record book/{path.name} on a machine that has what it needs"
    for name, cells in experiments(read(path)).items():
        file = records / f"{name}.json"
        try:
            if not file.exists():
                yield f"{name}: never recorded: {again}"
            elif record(file)["code"] != fingerprint(name, cells):
                yield f"{name}: stale, not what was measured: undo the change, or {again}"
        except ExperimentError as error:
            yield f"{name}: {error}"


def outputs_of_other_machines(notebook: NotebookNode, records: dict[str, dict]) -> Iterator[str]:
    """nbval does not compare the lines that say where a result comes from."""
    printed = text_lines(notebook)
    machines = {f"measured on {where(record['provenance'])}" for record in records.values()}
    sources = ("live on ", "replayed from ", "measured on ", "reference:")
    said = {line for line in printed if line.startswith(sources)}
    for line in said - machines:
        yield f"{line!r}: no record of this notebook comes from that machine: record it again"
    for line in machines - said:
        yield f"{line}: so a record says, and no stored output does: call its experiment"
    for line in printed:
        if re.match(r"\d+ ranks? of ", line) and not re.search(
            r": (gloo on CPU|NCCL on (1 GPU|[2-8] GPUs))$", line
        ):
            yield f"{line!r}: on what else would ranks run?"
        if line.startswith("data:") and line != "data: MNIST":
            yield f"{line!r}: record it where MNIST is"


def captions_without_a_machine(notebook: NotebookNode, records: Path) -> Iterator[str]:
    """Taken from the record whose ``where`` the cell shows, so it cannot drift."""
    before: list[str] = []
    for cell in code_cells(notebook):
        origins = captions.origins(cell.source, before) if pictures(cell) else []
        named = [captions.machine(origin, records) for origin in origins]
        if len(named) != pictures(cell) or not all(named):
            said = f"no record gives the caption its machine, here {origins or 'nothing'}"
            yield f"{cell.id}: {said}: end with show(fig, experiment.where)"
        before.append(cell.source)


def pairs_that_are_not_shown(notebook: NotebookNode, records: dict[str, dict]) -> Iterator[str]:
    """Also those of cells timed live, which nbval does not compare."""
    for name, whole in records.items():
        for entry in whole["ledger"]:
            numbers = (entry["predicted"], entry["measured"])
            pair = [format_value(n, entry["unit"]) if n else "not measured" for n in numbers]
            if not form.shows_pair(notebook, entry["quantity"], *pair):
                said = f"{name}: its record keeps {entry['quantity']!r}, and no card shows the pair"
                yield f"{said}: show {name}.check(…), and record"


def cards_that_did_not_measure(notebook: NotebookNode, records: Path) -> Iterator[str]:
    """But cards of which no record is: what is known of them was read, not measured."""
    by_record = {p.stem: form.cards_in(record(p)["provenance"]["gpu"] or "") for p in _all(records)}
    names = {*experiments(notebook), *form.recorded_by_name(notebook)}
    measured = set().union(*(by_record.get(name, set()) for name in names))
    others = set().union(*(form.cards_in(gpu.name) for gpu in GPUS)) - set().union(
        *by_record.values()
    )
    for card in sorted(form.cards_in(form.first_words(notebook)) - measured - others):
        said = f"{card}: the first screen names it, and no record of this chapter is of such a card"
        yield f"{said}: name the machine that measured"


def _all(records: Path) -> list[Path]:
    return sorted(records.glob("*.json"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path) -> None:
    fail_if(problems_of(path))


# --- records -------------------------------------------------------------------------------------


def problems_of_records(records: Path = RECORDS) -> Iterator[str]:
    names = Counter(name for path in NOTEBOOKS for name in experiments(read(path)))
    for path in _all(records):
        whole = record(path)
        machine = whole["provenance"]
        empty = [f for f in PROVENANCE if machine[f] in (None, "", 0)]
        if empty and not set(whole["needs"]) <= {"cpu", "mnist", "linux", "c++", "onnxruntime"}:
            yield f"{path.name}: its provenance lacks {', '.join(empty)}: record it again"
        if not re.fullmatch(r"20\d\d-[01]\d-[0-3]\d", machine["date"]):
            yield f"{path.name}: {machine['date']} is no date: record it again"
        if path.stat().st_size > 100_000:
            yield f"{path.name}: more than 100,000 bytes: return less"
        if path.stem not in names:
            yield f"{path.name}: no experiment has this name: remove it, or rename one"
    for name, times in names.items():
        if times > 1:
            yield f"{name}: {times} experiments share this name and thus a record: rename one"
    said = "".join(path.read_text() for path in _all(records))
    for path in records.iterdir():
        kept = path.suffix == ".pt" and hashlib.sha256(path.read_bytes()).hexdigest() in said
        if path.suffix != ".json" and not kept:  # weights, of a record
            yield f"{path.name} is no record, and none names its hash: move it out of book/records"


def test_records() -> None:
    assert len(_all(RECORDS)) > 200
    fail_if(problems_of_records())


# --- the book ----------------------------------------------------------------------------------


def test_every_script_is_used_by_a_page() -> None:
    pages = "\n".join(c.source for path in NOTEBOOKS for c in code_cells(read(path)))
    scripts = {p.stem: p.read_text("utf-8") for p in (BOOK / "scripts").glob("*.py")}
    used = [name for name in scripts if f'"{name}.py"' in pages]
    imported = "\n".join([pages, *(scripts[name] for name in used)])
    fail_if(
        f"{name}.py: no page starts, shows or imports it, and no script of a page does: remove it"
        for name in sorted(scripts.keys() - used)
        if not re.search(rf"^\s*(import|from) .*\b{name}\b", imported, re.M)
    )


def test_table_of_contents_and_files_agree() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = {toc["root"]} | {c["file"] for part in toc["parts"] for c in part["chapters"]}
    listed = {name.removesuffix(".ipynb").removesuffix(".md") for name in listed}
    pages = [p for p in BOOK.iterdir() if p.suffix in (".md", ".ipynb")]
    there = {p.relative_to(ROOT).with_suffix("").as_posix() for p in pages}
    assert there - listed == set(), "not in _toc.yml, so not built: add a line - file: …"
    assert listed - there == set(), "in _toc.yml, and no such page: write it, or remove the line"


def test_links_between_pages_lead_somewhere() -> None:
    prose = {
        path: "\n\n".join(c.source for c in read(path).cells if c.cell_type == "markdown")
        for path in NOTEBOOKS
    }
    for path in [*BOOK.glob("*.md"), ROOT / "README.md"]:
        prose[path] = path.read_text(encoding="utf-8")
    fail_if(
        f"{path.name}: {target} is not there"
        for path, text in prose.items()
        for target in re.findall(r"\]\(([^)#\s]+)", re.sub(r"`[^`\n]*`", "", text))
        if "://" not in target and not (path.parent / target).exists()
    )


def test_first_figure_is_drawn_from_the_records_at_hand() -> None:
    shown = Image.open(BOOK / "images" / "first_figure.png").text["Source"]
    assert shown == record(RECORDS / "quickstart_ladder.json")["checksum"], (
        "run book/images/first_figure.py"
    )
