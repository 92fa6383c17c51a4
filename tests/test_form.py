"""What every notebook and record looks like, checked without running them."""

import ast
import builtins
import re
import symtable

import pytest
import yaml
from PIL import Image

from notebooks import (
    BOOK,
    CHAPTERS,
    NOTEBOOKS,
    ROOT,
    code_cells,
    experiments,
    has_figure,
    read,
    tags,
    texts,
)
from utils.experiment import PROVENANCE, load_record, where
from utils.fingerprint import fingerprint
from utils.ledger import format_value

RECORDS = sorted((BOOK / "records").glob("*.json"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
every_record = pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)


def fail_if(problems: list[str]) -> None:
    assert not problems, "\n" + "\n".join(problems)


def test_there_is_a_book() -> None:
    assert len(CHAPTERS) >= 3 and RECORDS


# --- notebooks ---------------------------------------------------------------------------------


@every_notebook
def test_kernel_and_metadata(path) -> None:
    metadata = read(path).metadata
    assert metadata.kernelspec.name == "python3"
    assert "version" not in metadata.language_info, "names the Python of one machine"


@every_notebook
def test_all_cells_were_run_in_order_without_errors(path) -> None:
    cells = [c for c in code_cells(read(path)) if c.source.strip()]
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    fail_if(
        [
            f"{cell.id}: stored {output.output_type} {output.get('name', '')}"
            for cell in cells
            for output in cell.outputs
            if (output.output_type == "error" and "nbval-raises-exception" not in tags(cell))
            or output.get("name") == "stderr"
        ]
    )


@every_notebook
def test_cells_are_short_and_named(path) -> None:
    notebook = read(path)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    fail_if(
        [
            f"{cell.id}: {cell.source.count(chr(10)) + 1} lines"
            for cell in code_cells(notebook)
            if cell.source.count("\n") >= 40
        ]
    )


@every_notebook
def test_figures_have_alternative_text(path) -> None:
    notebook = read(path)
    fail_if(
        [
            f"{cell.id}: a figure without alt text"
            for cell in code_cells(notebook)
            if has_figure(cell)
            and len(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")) < 30
        ]
        + [
            f"{cell.id}: {image}"
            for cell in notebook.cells
            if cell.cell_type == "markdown"
            for image in re.findall(r"!\[.{0,29}\]\([^)]*\)", cell.source)
        ]
    )


@every_notebook
def test_figures_say_where_they_were_measured(path) -> None:
    fail_if(
        [
            f"{cell.id}: end with show(fig, where)"
            for cell in code_cells(read(path))
            if has_figure(cell) and not re.search(r"^show\(", cell.source, re.MULTILINE)
        ]
    )


@every_notebook
def test_outputs_are_compared(path) -> None:
    cells = code_cells(read(path))
    ignored = [c.id for c in cells if "nbval-ignore-output" in tags(c)]
    assert len(ignored) <= len(cells) / 5, ignored
    fail_if([c.id for c in cells if "nbval-skip" in tags(c) or "NBVAL" in c.source])


@every_notebook
def test_no_trace_of_the_machine_it_was_run_on(path) -> None:
    text = path.read_text(encoding="utf-8")
    fail_if(re.findall(r"(?:/home/|/root/|/Users/|/tmp/|C:\\\\Users)[^\"\s]{0,60}", text))


@every_notebook
def test_size(path) -> None:
    assert path.stat().st_size < 1_000_000


ANATOMY = (
    "What you will be able to do",
    "Pitfalls",
    "Exercises",
    "Recap",
    "Where to go next",
    "Sources",
)


@every_chapter
def test_anatomy_of_a_chapter(path) -> None:
    notebook = read(path)
    text = "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    number = int(path.name[:2])
    assert notebook.cells[0].source.startswith(f"# {number} · ")
    for label in ("**Runs on**", "**Time**", "**You need**"):
        assert label in notebook.cells[0].source
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [h for h in headings if h in ANATOMY] == list(ANATOMY)
    goals = text.split("## What you will be able to do")[1].split("##")[0]
    assert len(re.findall(r"^\s*(?:[-*]|\d\.) ", goals, re.MULTILINE)) == 3
    exercises = re.findall(r"^:{3,}\{admonition\} Exercise", text, re.MULTILINE)
    solutions = [c for c in code_cells(notebook) if "hide-cell" in tags(c)]
    assert 3 <= len(exercises) <= 5 and len(solutions) >= len(exercises)
    assert any("assert " in c.source for c in solutions), "no solution checks itself"
    recap = text.split("## Recap")[1].split("##")[0]
    assert re.search(r"^\|.*\|$", recap, re.MULTILINE), "the recap is a table"
    assert text.split("## Sources")[1].count("http") >= 3


@every_chapter
def test_predictions_come_with_measurements(path) -> None:
    code = "\n".join(c.source for c in code_cells(read(path)))
    assert code.count(".predict(") >= 6
    assert ".check(" in code


# A number that only some machine gives. Limits of a named link or card may be quoted beside it.
MEASURED = re.compile(
    r"\d[\d.,]*\s?(?:ns|µs|us|ms|s|seconds?|GB/s|TB/s|MB/s|TFLOP/s|images/s|x faster|× faster|"
    r"times (?:faster|slower))(?![\w/])"
)
MACHINE = re.compile(
    r"\b(?:[HABVLT]\d{1,3}0?S?|RTX|PCIe|HBM\d?|NVLink|datasheet|Xeon|EPYC|GTX|GB\d{3})\b"
)


@every_notebook
def test_prose_quotes_no_number_without_its_machine(path) -> None:
    fail_if(
        [
            f"{cell.id}: {match[0]!r} in {paragraph[:90]!r}"
            for cell in read(path).cells
            if cell.cell_type == "markdown"
            for paragraph in cell.source.split("\n\n")
            for match in MEASURED.finditer(re.sub(r"`[^`]*`|\([^)]*http[^)]*\)", "", paragraph))
            if not MACHINE.search(paragraph) and "**Time**" not in paragraph
        ]
    )


# --- experiments and records -------------------------------------------------------------------


@every_notebook
def test_every_experiment_has_a_fresh_record(path) -> None:
    problems = []
    for name, cells in experiments(read(path)).items():
        record = load_record(BOOK / "records" / f"{name}.json")
        if record["code"] != fingerprint(name, cells):
            problems.append(f"{name}: stale, its code is not what was measured")
    fail_if(problems)


def test_every_record_is_used_by_exactly_one_experiment() -> None:
    names = [name for path in NOTEBOOKS for name in experiments(read(path))]
    assert sorted(names) == [path.stem for path in RECORDS]
    strays = [p.name for p in (BOOK / "records").iterdir() if p.suffix != ".json"]
    assert not strays


@every_record
def test_records_have_full_provenance(path) -> None:
    record = load_record(path)
    empty = [f for f in PROVENANCE if record["provenance"][f] in (None, "", 0)]
    assert not empty or record["needs"] == ["cpu"], empty
    assert re.fullmatch(r"20\d\d-[01]\d-[0-3]\d", record["provenance"]["date"])
    assert path.stat().st_size < 100_000


@every_notebook
def test_stored_outputs_agree_with_the_records(path) -> None:
    """nbval does not compare the lines that say where a result comes from; this test does."""
    notebook = read(path)
    machines = {
        where(load_record(BOOK / "records" / f"{n}.json")["provenance"])
        for n in (experiments(notebook))
    }
    lines = [line for c in code_cells(notebook) for t in texts(c) for line in t.splitlines()]
    said = [line for line in lines if line.startswith(("live on ", "replayed from "))]
    assert len(said) >= len(experiments(notebook))
    fail_if([line for line in said if not any(machine in line for machine in machines)])
    counts = {load_record(p)["provenance"]["gpu_count"] for p in RECORDS}
    ranks = [line for line in lines if re.match(r"\d+ ranks? of ", line)]
    possible = [rf"(gloo on CPU|NCCL on (1 GPU|{n} GPUs))" for n in range(2, max(counts) + 1)]
    fail_if([r for r in ranks if not re.search(f": ({'|'.join(possible)})$", r)])
    fail_if([line for line in lines if line.startswith("data:") and line != "data: MNIST"])


@every_notebook
def test_stored_outputs_show_the_pairs_that_the_records_keep(path) -> None:
    """Also those of cells timed live, which nbval does not compare."""
    notebook = read(path)
    shown = "\n".join(text for cell in code_cells(notebook) for text in texts(cell))
    for name in experiments(notebook):
        for entry in load_record(BOOK / "records" / f"{name}.json")["ledger"]:
            pair = [format_value(entry[key], entry["unit"]) for key in ("predicted", "measured")]
            assert " | ".join([entry["quantity"], *pair]) in shown, name


@every_notebook
def test_experiments_depend_only_on_what_their_hash_covers(path) -> None:
    """An experiment may use imports, builtins, and the notebook's functions, classes, CONSTANTS."""
    notebook = read(path)
    allowed, problems = set(dir(builtins)), []
    for cell in code_cells(notebook):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                allowed |= {(a.asname or a.name).split(".")[0] for a in node.names}
        for node in ast.parse(cell.source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                allowed.add(node.name)
    for name, cells in experiments(notebook).items():
        table = symtable.symtable(cells[-1], name, "exec")
        function = next(t for t in table.get_children() if t.get_name() == name)
        used = {
            symbol.get_name()
            for scope in _scopes(function)
            for symbol in scope.get_symbols()
            if symbol.is_global() and not symbol.get_name().isupper()
        }
        problems += [f"{name} uses {', '.join(used - allowed)}"] if used - allowed else []
    fail_if(problems)


def _scopes(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    return [table, *(scope for child in table.get_children() for scope in _scopes(child))]


# --- the book ----------------------------------------------------------------------------------


def test_every_script_is_used_by_a_page() -> None:
    pages = "\n".join(c.source for path in NOTEBOOKS for c in code_cells(read(path)))
    scripts = [p.name for p in (BOOK / "scripts").iterdir() if p.name != "__pycache__"]
    fail_if([name for name in scripts if f'"{name}"' not in pages])


def test_table_of_contents_and_files_agree() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = {toc["root"]} | {c["file"] for part in toc["parts"] for c in part["chapters"]}
    pages = [p for p in BOOK.iterdir() if p.suffix in (".md", ".ipynb")]
    there = {p.relative_to(ROOT).with_suffix("").as_posix() for p in pages}
    assert {name.removesuffix(".ipynb").removesuffix(".md") for name in listed} == there


def test_links_between_pages_lead_somewhere() -> None:
    prose = {
        path: "\n\n".join(c.source for c in read(path).cells if c.cell_type == "markdown")
        for path in NOTEBOOKS
    }
    for path in [*BOOK.glob("*.md"), ROOT / "README.md"]:
        prose[path] = path.read_text(encoding="utf-8")
    problems = []
    for path, text in prose.items():
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" not in target and not (path.parent / target).exists():
                problems.append(f"{path.name}: {target}")
    fail_if(problems)


def test_readme_is_short_and_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) < 120
    assert "make book" in readme and "make test" in readme


def test_first_figure_is_drawn_from_the_records_at_hand() -> None:
    shown = Image.open(BOOK / "images" / "first_figure.png").text["Source"]
    names = ("epoch_as_written", "epoch_resident")
    records = [load_record(BOOK / "records" / f"{name}.json") for name in names]
    assert shown == " ".join(r["checksum"] for r in records), "run book/images/first_figure.py"
