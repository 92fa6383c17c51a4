"""The checks of form find nothing in a good chapter, and each finds what is planted for it.

The good chapter is that with which an author starts.
"""

import configparser
import re
import shutil

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output

import form
import test_form
from notebooks import BOOK, ROOT, experiments, read
from utils.cards import Card
from utils.record import RECORDS, load_record, save_record
from utils.record.notebooks import set_reading_time

WHERE = "NVIDIA H100 80GB HBM3, torch 2.11.0+cu130, 2026-11-21"
SKELETON = (ROOT / "tools" / "skeleton.ipynb").read_text(encoding="utf-8")
SKELETON = SKELETON.replace("NAME_first", "copy_speed").replace("NUMBER", "3")
ENTRIES = [
    {"quantity": name, "unit": "GB/s", "predicted": 60.0, "measured": value, "because": "the bus"}
    for name, value in (("Pinned", 55.0), ("Pageable", 8.0))
]
LATENCY = "| Latency | 1.00 ms | 2.00 ms | 2.00 |\n"  # a table of the first edition


def text(source: str, name: str) -> NotebookNode:
    return new_markdown_cell(source, id=name)


class Editor:
    """A chapter in which nothing is wrong, with the outputs that checks ask for; and changes."""

    def __init__(self) -> None:
        self.notebook = nbformat.reads(SKELETON, as_version=4)
        card = {"text/plain": repr(Card(ENTRIES, [f"measured on {WHERE}"]))}
        self["opening"].outputs = [new_output("display_data", {"image/png": ""})]
        self["keep"].outputs = [new_output("stream", text="a copy moves 2 bytes\n")]
        self["time-result"].outputs = [new_output("execute_result", card)]
        self["bytes-table"].outputs = [new_output("stream", text=LATENCY)]
        self.count()

    def count(self) -> None:
        """Number the cells, and write down how long they take to read."""
        code = [cell for cell in self.notebook.cells if cell.cell_type == "code"]
        for number, cell in enumerate(code, 1):
            cell.execution_count = number
        set_reading_time(self.notebook)

    def __getitem__(self, name: str) -> NotebookNode:
        return next(cell for cell in self.notebook.cells if cell.id == name)

    def put(self, cell: NotebookNode, after: str) -> None:
        self.notebook.cells.insert(self.notebook.cells.index(self[after]) + 1, cell)

    def drop(self, *names: str) -> None:
        self.notebook.cells = [c for c in self.notebook.cells if c.id not in names]

    def replace(self, name: str, old: str, new: str) -> None:
        assert old in self[name].source
        self[name].source = self[name].source.replace(old, new)

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


IMPORT = "from utils.timing import measure"
LOOP = "for gain in [copy_speed()]:\n    pass"
PLANTED = {
    "not run once each": lambda e: e["time-result"].update(execution_count=9),
    "time-result: stored stream stderr": lambda e: e["time-result"].outputs.append(
        new_output("stream", name="stderr", text="warning")
    ),
    "keep: stored error": lambda e: e["keep"].outputs.append(new_output("error")),
    "keep: nothing knows the tag 'nbval-skip'": lambda e: e.tag("keep", "nbval-skip"),
    # hidden in the page and in JupyterLab
    "opening: its metadata hide {}": lambda e: hidden(e, "opening"),
    "in-short-numbers: its metadata": lambda e: hidden(e, "in-short-numbers", source_hidden=True),
    "keep: its metadata hide": lambda e: hidden(e, "keep", source_hidden=True),
    # figures
    "opening: the figure has no alt": lambda e: e["opening"].metadata.mystnb.image.update(alt="a"),
    "time: ![a plot](a.svg) has no alt": lambda e: e.replace("time", "Show", "![a plot](a.svg)"),
    "opening: the figure has no caption": lambda e: e.replace("opening", '"A copy', 'f"{a} copy'),
    "'Pinned' is no caption": lambda e: e["opening"].metadata.mystnb.update(caption="Pinned"),
    # what is compared, and what prose may quote
    "keep: a comment that nbval takes": lambda e: e.replace(
        "keep", "import", "# NBVAL_SKIP\nimport"
    ),
    "keep, time-result, bytes-table: nbval-ignore-output": lambda e: [
        e.tag(name, "nbval-ignore-output") for name in ("keep", "bytes-table")
    ],
    "time: '5 ms' in 'It takes 5 ms.": lambda e: e.replace("time", "Show", "It takes 5 ms. Show"),
    "copy_speed uses small, a variable": lambda e: e.replace("time-experiment", '"cpu")', "small)"),
    # the first screen
    "title: the chapter does not begin": lambda e: e.replace("title", "# 3 ·", "#"),
    "title: a reader wants to know": lambda e: e.replace("title", "measured on one", "one"),
    "the first cell says 3": lambda e: e.replace("title", "reads in ", "reads in 3"),
    "minutes, of 40 at most": lambda e: e.replace("time", "Show", "word " * 8200),
    "opening: the first code cell lacks the tag": lambda e: e.tag("opening"),
    "lacks the output of a figure": lambda e: e["opening"].update(outputs=[]),
    "lacks the imports": lambda e: e["opening"].update(source="show(fig, where)"),
    "no markdown cell says": lambda e: e.replace("in-short", "**In short**", "Short:"),
    "in-short: 3 rules": lambda e: e.replace("in-short", "- Put", "Put"),
    "in-short: 8 rules": lambda e: e.replace("in-short", "- Put", "- a\n" * 4 + "- Put"),
    "in-short: **The code to keep**, and": lambda e: e.replace("in-short", "**The code", "**Code"),
    "and a cell tagged keep, do not follow": lambda e: e.tag("keep"),
    "do not follow the rules before": lambda e: e.put(text("## Early", "early"), after="in-short"),
    "within the first 8 cells": lambda e: [
        e.put(text("More.", f"more-{n}"), after="title") for n in range(5)
    ],
    # the code to keep
    "keep: 26 lines of code to keep, of 25": lambda e: e["keep"].update(source="x = 1\n" * 26),
    "keep: the code to keep imports utils": lambda e: e.replace("keep", "import torch", IMPORT),
    "keep: the code to keep stores no output": lambda e: e["keep"].update(outputs=[]),
    "keep: the code to keep is collapsed": lambda e: e.tag("keep", "keep", "hide-input"),
    # the numbers of the box
    "the number 2 of the box": lambda e: e.replace("in-short", "Put a price", "Put 2 prices"),
    "the number 64 of the box": lambda e: e.replace("in-short", "Put a price", "Put 64 prices"),
    "'13 bytes per float32 parameter' is no text of the box": lambda e: e.replace(
        "in-short-numbers", "12 bytes", "13 bytes"
    ),
    "'4 MiB' is no text of the box": lambda e: e.replace("in-short-numbers", "another 64", "4"),
    "'another' is no text of the box with a number": lambda e: e.replace(
        "in-short-numbers", "another 64 MiB", "another"
    ),
    "in-short-numbers: the last code cell pairs": lambda e: e.tag("in-short-numbers"),
    "exercise-3-solution: the last code cell pairs": lambda e: e.drop("in-short-numbers"),
    "a dict in braces, and tag it": lambda e: e["in-short-numbers"].update(source="in_short(x)"),
    "in-short-numbers: result is what this machine": lambda e: e.replace(
        "in-short-numbers", 'recorded("copy_speed").result', "result"
    ),
    "in-short-numbers: gain is what this machine": lambda e: [
        e["yours-sgd"].update(source=LOOP),
        e.replace("in-short-numbers", "2 * size", "gain * size"),
    ],
    # sections and exercises
    "2 sections": lambda e: e.drop("yours"),
    "7 sections": lambda e: [e.put(text(f"## {n}", f"{n}"), after="time") for n in range(4)],
    "Every chapter ends alike": lambda e: e.replace("next", "What to", "Where to"),
    "2 exercises": lambda e: e.drop("exercise-2", "exercise-2-solution"),
    "Exercise 2: The call or the bytes' has no sol": lambda e: e.tag("exercise-2-solution"),
    "no solution checks itself": lambda e: e.replace("exercise-1-solution", "assert", "_ ="),
    "time-experiment: 26 visible": lambda e: e["time-experiment"].update(source="x = 1\n" * 26),
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
    edit.drop(*gone, "yours")
    edit["keep"].source += "\nx = 1" * 55
    edit.count()
    assert edit.problems("00_quickstart") == ""
    edit["keep"].source += "\nx = 1"
    edit.put(text("## One\n\n## Two\n\n" + "word " * 2400, "more"), after="time")
    for said in ("63 lines of code to keep, of 62", "of 12 at most", "4 sections"):
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
    edit.replace("in-short", "- Put", "- Of two H200s, an L40S and `A100`, with TF32, put")
    edit.replace("title", "one CPU", "one H100")
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
    edit["bytes-table"].outputs[0].text += f"{line}\n"
    (problem,) = test_form.outputs_of_other_machines(edit.notebook, records)
    assert line in problem and says in problem
    edit["time-result"].outputs[0].data["text/plain"] = ""
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
