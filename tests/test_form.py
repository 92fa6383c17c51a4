"""What every notebook and record looks like, checked without running them.

The form of the notebooks is described in form; here it is applied, and held against the records.
"""

import re
from collections import Counter

import pytest
import yaml
from PIL import Image

import captions
import form
from notebooks import (
    BOOK,
    CHAPTERS,
    NOTEBOOKS,
    ROOT,
    code_cells,
    experiments,
    needs,
    read,
    text_lines,
)
from utils.cards import format_value
from utils.gpus import GPUS
from utils.record import PROVENANCE, ExperimentError, load_record, where
from utils.record.fingerprint import fingerprint

# Measured before their code was cut into readable pieces; recorded again, they leave the list.
LONG = ("gpu-experiment", "three-experiment")
# Constants of experiments that statements changed in place when they were measured, with a hash of
# the statements, which the record's hash does not cover; recorded again as one assignment each,
# they leave the list.
IN_PLACE = {
    "22_allocator": {"SERIES": "64be512e"},
    "31_formats": {"DTYPES": "77c784bc"},
    "53_scaling": {"LINKS": "657e9186"},
}
RECORDS = sorted((BOOK / "records").glob("*.json"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
every_record = pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)


def fail_if(problems: list[str]) -> None:
    if problems:
        pytest.fail("\n".join(dict.fromkeys(problems)), pytrace=False)


def records_of(notebook) -> dict[str, dict]:
    """The records of a notebook's experiments; that all are there is a test of its own."""
    paths = {name: BOOK / "records" / f"{name}.json" for name in experiments(notebook)}
    return {name: load_record(path) for name, path in paths.items() if path.exists()}


def test_there_is_a_book() -> None:
    assert len(CHAPTERS) >= 3 and RECORDS


# --- notebooks ---------------------------------------------------------------------------------


@every_notebook
def test_kernel_and_metadata(path) -> None:
    metadata = read(path).metadata
    assert metadata.kernelspec.name == "python3"
    assert "version" not in metadata.language_info, "names the Python of one machine"


@every_notebook
@pytest.mark.parametrize("check", form.NOTEBOOK, ids=lambda c: c.__name__)
def test_notebook(path, check) -> None:
    fail_if(check(read(path)))


@every_chapter
@pytest.mark.parametrize("check", form.CHAPTER, ids=lambda c: c.__name__)
def test_chapter(path, check) -> None:
    known = LONG if check is form.visible_cells_are_short else ()
    fail_if([p for p in check(read(path)) if p.split(":")[0] not in known])


@every_chapter
def test_title_of_a_chapter(path) -> None:
    fail_if(form.title(read(path), path.stem))


@every_notebook
def test_no_trace_of_the_machine_it_was_run_on(path) -> None:
    text = path.read_text(encoding="utf-8")
    fail_if(re.findall(r"(?:/home/|/root/|/Users/|/tmp/|C:\\\\Users)[^\"\s]{0,60}", text))


@every_notebook
def test_size(path) -> None:
    size = path.stat().st_size
    assert size < 700_000, (
        f"{size:,} bytes, of 700,000 at most: every reader downloads them, and git keeps each "
        "version. Draw fewer or simpler figures, or store them with fewer colors"
    )


# --- experiments and records -------------------------------------------------------------------


@every_notebook
def test_every_experiment_has_a_fresh_record(path) -> None:
    problems = []
    for name, cells in experiments(read(path)).items():
        record = BOOK / "records" / f"{name}.json"
        again = f"python -m utils.record book/{path.name} on a machine that has " + (
            needs(name, cells[-1])
        )
        try:
            if not record.exists():
                problems.append(
                    f"{name}: never recorded, so nobody without the hardware can read what it "
                    f"measures: run {again}"
                )
            elif load_record(record)["code"] != fingerprint(name, cells):
                problems.append(
                    f"{name}: stale, its code is not what was measured: undo the change, or run "
                    f"{again}"
                )
        except ExperimentError as error:
            problems.append(f"{name}: {error}")
    known = IN_PLACE.get(path.stem, {})
    found = form.constants_changed_in_place(read(path))
    fail_if(
        problems
        + [
            f"{name}: changed in place, and not as it was when it was measured, which no record's "
            "hash tells: undo the change, or write one assignment and record again"
            for name in sorted(known.keys() | found.keys())
            if known.get(name) != found.get(name)
        ]
    )


def test_every_record_is_used_by_exactly_one_experiment() -> None:
    names = Counter(name for path in NOTEBOOKS for name in experiments(read(path)))
    records = BOOK / "records"
    fail_if(
        [
            f"{path.name}: no experiment has this name, so nothing tells what it measured: remove "
            "the file, or name the experiment as it was"
            for path in RECORDS
            if path.stem not in names
        ]
        + [
            f"{name}: {times} experiments share this name and thus a record: rename one"
            for name, times in names.items()
            if times > 1
        ]
        + [
            f"{path.name} is no record: move it out of book/records"
            for path in records.iterdir()
            if path.suffix != ".json"
        ]
    )


@every_record
def test_records_have_full_provenance(path) -> None:
    record = load_record(path)
    empty = [f for f in PROVENANCE if record["provenance"][f] in (None, "", 0)]
    assert not empty or set(record["needs"]) <= {"cpu", "linux", "c++"}, empty
    assert re.fullmatch(r"20\d\d-[01]\d-[0-3]\d", record["provenance"]["date"])
    assert path.stat().st_size < 100_000


@every_notebook
def test_stored_outputs_agree_with_the_records(path) -> None:
    """nbval does not compare the lines that say where a result comes from; this test does."""
    notebook = read(path)
    lines = text_lines(notebook)
    machines = {where(record["provenance"]) for record in records_of(notebook).values()}
    sources = ("live on ", "replayed from ", "measured on ", "reference:")
    said = [line for line in lines if line.startswith(sources)]
    fail_if(
        [
            f"{line!r}: no record of this notebook comes from that machine: record it again"
            for line in said
            if not any(form.is_said_of(machine, line) for machine in machines)
        ]
        + [
            f"{machine}: a record comes from this machine, and no stored output says so: call its "
            "experiment in a cell, and record the notebook"
            for machine in machines
            if not any(form.is_said_of(machine, line) for line in said)
        ]
    )
    counts = {load_record(p)["provenance"]["gpu_count"] for p in RECORDS}
    ranks = [line for line in lines if re.match(r"\d+ ranks? of ", line)]
    possible = [rf"(gloo on CPU|NCCL on (1 GPU|{n} GPUs))" for n in range(2, max(counts) + 1)]
    fail_if([r for r in ranks if not re.search(f": ({'|'.join(possible)})$", r)])
    fail_if([line for line in lines if line.startswith("data:") and line != "data: MNIST"])


@every_chapter
def test_the_first_screen_names_the_cards_that_measured(path) -> None:
    """Or cards of which no record is: what is known of them was read, not measured."""
    notebook = read(path)
    names = {*experiments(notebook), *form.recorded_by_name(notebook)}
    if any("all_predictions()" in cell.source for cell in code_cells(notebook)):  # the ledger
        names = {p.stem for p in RECORDS}
    by_record = {p.stem: form.cards_in(load_record(p)["provenance"]["gpu"] or "") for p in RECORDS}
    measured = set().union(*(by_record.get(name, set()) for name in names))
    others = set().union(*(form.cards_in(gpu.name) for gpu in GPUS)) - set().union(
        *by_record.values()
    )
    fail_if(
        [
            f"{card}: the first screen names it, and no record of this chapter is of such a card: "
            "name the machine that measured"
            for card in sorted(form.cards_in(form.first_words(notebook)) - measured - others)
        ]
    )


@every_notebook
def test_every_figure_names_the_machine_in_its_caption(path) -> None:
    """Taken from the record whose ``where`` the cell shows, so it cannot drift."""
    problems, before = [], []
    for cell in code_cells(read(path)):
        pictures = sum("image/png" in output.get("data", {}) for output in cell.outputs)
        where = captions.origins(cell.source, before) if pictures else []
        named = [captions.machine(origin, BOOK / "records") for origin in where]
        if pictures and (len(named) != pictures or not all(named)):
            problems.append(
                f"{cell.id}: no record gives the caption its machine, here {where or 'nothing'}: "
                'end with show(fig, experiment.where), show(fig, recorded("…").where), or "drawing"'
            )
        before.append(cell.source)
    fail_if(problems)


@every_notebook
def test_stored_outputs_show_the_pairs_that_the_records_keep(path) -> None:
    """Also those of cells timed live, which nbval does not compare."""
    notebook = read(path)
    fail_if(
        [
            f"{name}: its record keeps {entry['quantity']!r}, and no card shows the pair. A "
            f"prediction that nobody sees is not checked: show {name}.check(…), and record"
            for name, record in records_of(notebook).items()
            for entry in record["ledger"]
            if not form.shows_pair(
                notebook,
                entry["quantity"],
                *(format_value(entry[key], entry["unit"]) for key in ("predicted", "measured")),
            )
        ]
    )


@every_notebook
def test_experiments_depend_only_on_what_their_hash_covers(path) -> None:
    fail_if(form.experiments_use_only_what_their_hash_covers(read(path)))


# --- the book ----------------------------------------------------------------------------------


def test_every_script_is_used_by_a_page() -> None:
    pages = "\n".join(c.source for path in NOTEBOOKS for c in code_cells(read(path)))
    scripts = {p.stem: p.read_text("utf-8") for p in (BOOK / "scripts").glob("*.py")}
    used = [name for name in scripts if f'"{name}.py"' in pages]
    imported = "\n".join(scripts[name] for name in used)
    fail_if(
        [
            f"{name}.py: no page starts or shows it, and no script of a page imports it: remove it"
            for name in sorted(scripts.keys() - used)
            if not re.search(rf"^\s*(import|from) .*\b{name}\b", imported, re.M)
        ]
    )


def test_table_of_contents_and_files_agree() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = {toc["root"]} | {c["file"] for part in toc["parts"] for c in part["chapters"]}
    listed = {name.removesuffix(".ipynb").removesuffix(".md") for name in listed}
    pages = [p for p in BOOK.iterdir() if p.suffix in (".md", ".ipynb")]
    there = {p.relative_to(ROOT).with_suffix("").as_posix() for p in pages}
    fail_if(
        [
            f"{page} is not in _toc.yml, so it is not built and nobody finds it: add the line "
            f"'- file: {page}' to the part it belongs to"
            for page in sorted(there - listed)
        ]
        + [
            f"_toc.yml names {page}, and there is no such page: write it, or remove the line"
            for page in sorted(listed - there)
        ]
    )


def test_links_between_pages_lead_somewhere() -> None:
    prose = {
        path: "\n\n".join(c.source for c in read(path).cells if c.cell_type == "markdown")
        for path in NOTEBOOKS
    }
    for path in [*BOOK.glob("*.md"), ROOT / "README.md"]:
        prose[path] = path.read_text(encoding="utf-8")
    problems = []
    for path, text in prose.items():
        for target in re.findall(r"\]\(([^)#\s]+)", re.sub(r"`[^`\n]*`", "", text)):
            if "://" not in target and not (path.parent / target).exists():
                problems.append(f"{path.name}: {target}")
    fail_if(problems)


def test_readme_is_short_and_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) < 120
    assert "make book" in readme and "make test" in readme


def test_first_figure_is_drawn_from_the_records_at_hand() -> None:
    shown = Image.open(BOOK / "images" / "first_figure.png").text["Source"]
    record = load_record(BOOK / "records" / "quickstart_ladder.json")
    assert shown == record["checksum"], "run book/images/first_figure.py"
