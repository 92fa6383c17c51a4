"""The checks of form find nothing in a good chapter, and each finds what is planted for it."""

import configparser
import re
import shutil

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import form
import test_form
from notebooks import BOOK, ROOT, experiments, read
from utils.cards import Card
from utils.record import RECORDS, load_record, save_record
from utils.record.notebooks import set_reading_time

WHERE = "NVIDIA H100 80GB HBM3, torch 2.11.0+cu130, 2026-11-21"
ALT = "Lines of GB/s by size, for pageable and for pinned memory"
TITLE = """# 3 · Tensors

Feed the GPU at the speed of its link.

*reads in 30 min · runs in 10 s on a CPU · measured on one H100*"""
BOX = """**In short**

- From pinned memory a copy runs at **55 of the 63 GB/s** that PCIe 5 carries.
- `x[0]` waits: `non_blocking=True` is 15x
  faster ([chapter 4](04_models.ipynb)).
- Read too early, and you read old bytes (10 of 10 tries).
- Pin once and reuse.

**The code to keep**"""
KEEP = """import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
print(torch.ones(3, device=device).sum().item())"""
OPENING = """import torch

from utils.record import experiment, recorded
from utils.plotting import figure, show

fig, ax = figure("Pinned memory is faster")
show(fig, recorded("copy_speed").where)"""
EXPERIMENT = """@experiment(needs="cuda")
def copy_speed():
    return {"gb_per_s": torch.ones(SIZE).sum().item()}"""
PAIRED = """kept = recorded("copy_speed").result
in_short({
    "55 of the 63 GB/s": (kept["gb_per_s"], 63),
    "is 15x faster": kept["gain"],
    "10 of 10 tries": (10, 10),
})"""
ENTRIES = [
    {"quantity": name, "unit": "GB/s", "predicted": 60.0, "measured": value, "because": "the bus"}
    for name, value in (("Pinned", 55.0), ("Pageable", 8.0))
]
LATENCY = "| Latency | 1.00 ms | 2.00 ms | 2.00 |\n"  # a table of the first edition


def text(source: str, name: str) -> NotebookNode:
    return new_markdown_cell(source, id=name)


def code(source: str, name: str, *tags: str, said: str = "", figure: str = "") -> NotebookNode:
    """A code cell that prints ``said`` and shows a figure, if it has an alternative text."""
    cell = new_code_cell(source, id=name)
    if tags:
        cell.metadata.tags = list(tags)
        if set(tags) - {"keep"}:
            cell.metadata.jupyter = {"source_hidden": True}
        if "hide-cell" in tags:
            cell.metadata.jupyter["outputs_hidden"] = True
    if said:
        cell.outputs.append(new_output("stream", name="stdout", text=said))
    if figure:
        cell.outputs.append(new_output("display_data", {"image/png": ""}))
        cell.metadata.mystnb = {"image": {"alt": figure}}
    return cell


def exercise(number: int) -> list[NotebookNode]:
    said = f":::{{admonition}} Exercise {number}: A transfer\n:class: exercise\n\nDo it.\n:::"
    solution = code("assert 1 < 2", f"exercise-{number}-solution", "hide-cell")
    return [text(said, f"exercise-{number}"), solution]


class Editor:
    """A chapter in which nothing is wrong, and changes to it."""

    def __init__(self) -> None:
        card = Card(ENTRIES, [f"measured on {WHERE}"])
        shown = new_output("execute_result", {"text/plain": repr(card)})
        cells = [
            text(TITLE, "title"),
            code(OPENING, "opening", "hide-input", figure=ALT),
            text(BOX, "box"),
            code(KEEP, "keep", "keep", said="3.0\n"),
            text("## Pinned memory: what does it cost?\n\nTime.", "cost"),
            code("SIZE = 3", "size", said=LATENCY),
            code(EXPERIMENT, "experiment"),
            code('result = copy_speed()\ncopy_speed.check({"Pinned": result["gb_per_s"]})', "run"),
            text("## Overlap\n\n```text\n## no heading\n```", "overlap"),
            text("## Hazards\n\nOld bytes.", "hazards"),
            text("## Pitfalls", "pitfalls"),
            text("## Exercises", "exercises"),
            *(cell for number in (1, 2, 3) for cell in exercise(number)),
            text("## What to read next\n\n[Models](04_models.ipynb)", "next"),
            text("## Sources\n\n- [a page](https://docs.pytorch.org/a)", "sources"),
            code(PAIRED, "in-short", "hide-cell", said="paired\n"),
        ]
        self.notebook = new_notebook(cells=cells)
        self["run"].outputs.append(shown)
        self.count()

    def count(self) -> None:
        """Number the cells, and write down how long they take to read."""
        code = [cell for cell in self.notebook.cells if cell.cell_type == "code"]
        for number, cell in enumerate(code, 1):
            cell.execution_count = number
        set_reading_time(self.notebook)

    def __getitem__(self, name: str) -> NotebookNode:
        return next(cell for cell in self.notebook.cells if cell.id == name)

    def __setitem__(self, name: str, source: str) -> None:
        self[name].source = source

    def put(self, cell: NotebookNode, after: str) -> None:
        self.notebook.cells.insert(self.notebook.cells.index(self[after]) + 1, cell)

    def drop(self, *names: str) -> None:
        self.notebook.cells = [c for c in self.notebook.cells if c.id not in names]

    def replace(self, name: str, old: str, new: str) -> None:
        assert old in self[name].source
        self[name] = self[name].source.replace(old, new)

    def tag(self, name: str, *tags: str) -> None:
        self[name].metadata.tags = list(tags)

    def problems(self, name: str = "03_tensors") -> str:
        return "\n".join(form.problems(self.notebook, name))


def test_a_good_chapter_has_no_problems_under_each_of_its_numbers() -> None:
    for number, name in (("3", "03_tensors"), ("15", "15_transfers"), ("1.5", "15_transfers")):
        edit = Editor()
        edit.replace("title", "# 3 ·", f"# {number} ·")
        assert edit.problems(name) == ""
        assert "title: the chapter does not begin with its number" in edit.problems("27_other")


def hidden(e: Editor, name: str, **metadata: bool) -> None:
    e[name].metadata.jupyter = metadata


LOOP = "SIZE = 3\nfor gain in [copy_speed()]:\n    pass"
IMPORT = "from utils.timing import measure"
PLANTED = {
    "not run once each": lambda e: e["run"].update(execution_count=9),
    "run: stored stream stderr": lambda e: e["run"].outputs.append(
        new_output("stream", name="stderr", text="warning")
    ),
    "run: stored error": lambda e: e["run"].outputs.append(new_output("error")),
    "run: nothing knows the tag 'nbval-skip'": lambda e: e.tag("run", "nbval-skip"),
    # hidden in the page and in JupyterLab
    "opening: its metadata hide {}": lambda e: hidden(e, "opening"),
    "in-short: its metadata hide": lambda e: hidden(e, "in-short", source_hidden=True),
    "run: its metadata hide": lambda e: hidden(e, "run", source_hidden=True),
    # figures
    "opening: the figure has no alt": lambda e: e["opening"].metadata.mystnb.image.update(alt="a"),
    "cost: ![a plot](a.svg) has no alt": lambda e: e.replace("cost", "Time.", "![a plot](a.svg)"),
    "opening: the figure has no caption": lambda e: e.replace("opening", '"Pinned', 'f"{n} pinned'),
    "'Pinned' is no caption": lambda e: e["opening"].metadata.mystnb.update(caption="Pinned"),
    # what is compared, and what prose may quote
    "run: a comment that nbval takes": lambda e: e.replace("run", "result =", "# NBVAL_SKIP\nx ="),
    "keep, size, run: nbval-ignore-output": lambda e: [
        e.tag(c, "nbval-ignore-output") for c in ("keep", "size", "run")
    ],
    "cost: '5 ms' in 'It takes 5 ms.'": lambda e: e.replace("cost", "Time.", "It takes 5 ms."),
    "copy_speed uses device, a variable": lambda e: e.replace("experiment", "(SIZE", "(device"),
    # the first screen
    "title: the chapter does not begin": lambda e: e.replace("title", "# 3 ·", "#"),
    "title: a reader wants to know": lambda e: e.replace("title", "measured on one", "one"),
    "the first cell says 39 minutes": lambda e: e.__setitem__("title", TITLE.replace("30", "39")),
    "minutes, of 40 at most": lambda e: e.replace("cost", "Time.", "word " * 8200),
    "opening: the first code cell lacks the tag": lambda e: e.tag("opening"),
    "lacks the output of a figure": lambda e: e["opening"].update(outputs=[]),
    "lacks the imports": lambda e: e.replace("opening", OPENING, "show(fig, where)"),
    "no markdown cell says": lambda e: e.replace("box", "**In short**", "Short:"),
    "box: 3 rules": lambda e: e.replace("box", "- Pin once", "Pin once"),
    "box: 8 rules": lambda e: e.replace("box", "- Pin", "- a\n" * 4 + "- Pin"),
    "box: **The code to keep**, and": lambda e: e.replace("box", "**The code to keep**", ""),
    "and a cell tagged keep, do not follow": lambda e: e.tag("keep"),
    "do not follow the rules before": lambda e: e.put(text("## Early", "early"), after="box"),
    "within the first 8 cells": lambda e: [
        e.put(text("More.", f"more-{n}"), after="title") for n in range(5)
    ],
    # the code to keep
    "keep: 26 lines of code to keep, of 25": lambda e: e["keep"].update(source="x = 1\n" * 26),
    "keep: the code to keep imports utils": lambda e: e.replace("keep", "import torch", IMPORT),
    "keep: the code to keep stores no output": lambda e: e["keep"].update(outputs=[]),
    "keep: the code to keep is collapsed": lambda e: e.tag("keep", "keep", "hide-input"),
    # the numbers of the box
    "the number 2 of the box": lambda e: e.replace("box", "Pin once", "Pin 2 buffers once"),
    "the number 15 of the box": lambda e: e.replace("box", "Pin once", "Use 15 workers"),
    "'is 16x faster' is no text of the box": lambda e: e.replace("in-short", "15x", "16x"),
    "'5x faster' is no text of the box": lambda e: e.replace("in-short", "is 15x", "5x"),
    "'tries' is no text of the box with a number": lambda e: e.replace("in-short", "10 of 10 ", ""),
    "in-short: the last code cell pairs": lambda e: e.tag("in-short"),
    "exercise-3-solution: the last code cell pairs": lambda e: e.drop("in-short"),
    "a dict in braces, and tag it": lambda e: e.replace("in-short", PAIRED, "in_short(pairs)"),
    "in-short: result is what this machine": lambda e: e.replace(
        "in-short", 'recorded("copy_speed").result', "result"
    ),
    "in-short: gain is what this machine": lambda e: [
        e.replace("size", "SIZE = 3", LOOP),
        e.replace("in-short", 'kept["gain"]', "gain"),
    ],
    # sections and exercises
    "2 sections": lambda e: e.drop("hazards"),
    "7 sections": lambda e: [e.put(text(f"## {n}", f"{n}"), after="cost") for n in range(4)],
    "Every chapter ends alike": lambda e: e.replace("next", "What to", "Where to"),
    "2 exercises": lambda e: e.drop("exercise-2", "exercise-2-solution"),
    "Exercise 2: A transfer' has no sol": lambda e: e.tag("exercise-2-solution"),
    "no solution checks itself": lambda e: [
        e.__setitem__(f"exercise-{n}-solution", "1 < 2") for n in (1, 2, 3)
    ],
    "experiment: 26 visible lines": lambda e: e["experiment"].update(source="x = 1\n" * 26),
}


@pytest.mark.parametrize("said", PLANTED)
def test_what_is_planted_is_found(said) -> None:
    edit = Editor()
    PLANTED[said](edit)
    assert said in edit.problems(), edit.problems() or "no problem found"


def test_the_quickstart_has_longer_code_but_no_exercises() -> None:
    edit = Editor()
    edit.replace("title", "# 3 ·", "# 0 ·")
    gone = [cell.id for cell in edit.notebook.cells if cell.id.startswith(("exercise", "pitfalls"))]
    edit.drop(*gone, "hazards")
    edit["keep"].source += "\nx = 1" * 57
    edit.count()
    assert edit.problems("00_quickstart") == ""
    edit["keep"].source += "\nx = 1"
    edit.put(text("## One\n\n## Two\n\n" + "word " * 2400, "more"), after="cost")
    for said in ("61 lines of code to keep, of 60", "of 12 at most", "4 sections"):
        assert said in edit.problems("00_quickstart")


# --- beside the records --------------------------------------------------------------------------


def test_a_pair_is_shown_in_one_row() -> None:
    shows = [
        ("Pinned", "60.0 GB/s", "55.0 GB/s"),
        ("Pageable", "60.0 GB/s", "8.00 GB/s"),
        ("Latency", "1.00 ms", "2.00 ms"),
    ]
    others = [
        ("Pinned", "60.0 GB/s", "5.00 GB/s"),
        ("Pinned", "0.0 GB/s", "55.0 GB/s"),
        ("Pinned", "55.0 GB/s", "60.0 GB/s"),
        ("Pinned", "60.0 GB/s", "8.00 GB/s"),  # which is measured in another row
        ("Latency", "1.00 ms", "3.00 ms"),
    ]
    notebook = Editor().notebook
    assert [pair for pair in shows + others if form.shows_pair(notebook, *pair)] == shows


def test_the_cards_that_the_first_screen_names() -> None:
    edit = Editor()
    edit.replace("box", "PCIe 5", "PCIe 5 of two H200s, an L40S and `A100`, with TF32,")
    assert form.cards_in(form.first_words(edit.notebook)) == {"H100", "H200", "L40S"}
    assert form.recorded_by_name(edit.notebook) == {"copy_speed"}


RECORD = {
    "provenance": {"gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 1, "cpu": "a CPU"}
    | {"torch": "2.11.0+cu130", "date": "2026-11-21"},
    "ledger": ENTRIES,
}


@pytest.mark.parametrize(
    "line, says",
    [
        (f"live on {WHERE}", "comes from that machine"),
        (f"measured on 8 x {WHERE}", "comes from that machine"),
        ("12 ranks of a.py: gloo on a toaster", "on what else"),
        ("data: digits", "where MNIST is"),
    ],
)
def test_what_stored_outputs_say_beside_a_record(line, says) -> None:
    edit, records = Editor(), {"copy_speed": RECORD}
    assert list(test_form.outputs_of_other_machines(edit.notebook, records)) == []
    assert list(test_form.pairs_that_are_not_shown(edit.notebook, records)) == []
    edit["size"].outputs[0].text += f"{line}\n"
    (problem,) = test_form.outputs_of_other_machines(edit.notebook, records)
    assert line in problem and says in problem
    edit["run"].outputs[0].data["text/plain"] = ""
    assert "no stored output does" in "".join(
        test_form.outputs_of_other_machines(edit.notebook, records)
    )
    assert len(list(test_form.pairs_that_are_not_shown(edit.notebook, records))) == 2


def test_records_that_are_stale_damaged_missing_or_of_no_experiment(tmp_path) -> None:
    page = BOOK / "how_we_measure.ipynb"
    stale, damaged, missing, *_ = sorted(experiments(read(page)))
    for name in experiments(read(page)):
        shutil.copy(RECORDS / f"{name}.json", tmp_path)
    save_record({**load_record(tmp_path / f"{stale}.json"), "code": ""}, tmp_path / f"{stale}.json")
    text = (tmp_path / f"{damaged}.json").read_text("utf-8")
    (tmp_path / f"{damaged}.json").write_text(text.replace('"seconds": ', '"seconds": 1'), "utf-8")
    (tmp_path / f"{missing}.json").unlink()
    found = "\n".join(test_form.records_that_are_not_fresh(page, tmp_path))
    for said in (f"{stale}: stale", f"{damaged}: .*edited by hand", f"{missing}: never recorded"):
        assert re.search(said, found), found
    assert found.count("\n") == 2
    (tmp_path / f"{damaged}.json").rename(tmp_path / "notes.txt")
    orphan = {**load_record(tmp_path / f"{stale}.json"), "experiment": "orphan"}
    orphan["provenance"] |= {"gpu": None, "date": "today"}
    save_record({**orphan, "needs": ["cuda"]}, tmp_path / "orphan.json")
    found = "\n".join(test_form.problems_of_records(tmp_path))
    for said in ("lacks gpu", "today is no date", "no experiment has this name", "notes.txt is no"):
        assert said in found
    assert found.count("\n") == 3


def test_nbval_compares_all_that_a_cell_prints_but_where_it_was_measured() -> None:
    config = configparser.RawConfigParser()
    config.read(ROOT / "tests" / "sanitize.cfg")

    def compared(text: str) -> str:
        for rule in config.sections():
            text = re.sub(config[rule]["regex"], config[rule]["replace"], text)
        return text

    card = f"Copy  2 ms  1.5 ms\n    because data: of ranks\n{{}} {WHERE}\n3 ranks are live on it\n"
    assert compared(card.format("live on")) == card.replace(f"{{}} {WHERE}", "MEASURED")
    two = f"measured on {WHERE}\n<br>\nreference: another\nend"
    assert compared(two) == "MEASURED\nend"
    assert compared("2 ranks of a.py: gloo on CPU\nloss 2.5\n") == "loss 2.5\n"
