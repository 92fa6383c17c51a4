"""The checks of form find nothing in a good chapter, and each finds what is planted for it."""

import re
from collections.abc import Callable

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import form
from utils.cards import Card
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
GUARD = """try:
    import utils.cards  # noqa: F401
except ImportError:
    raise SystemExit("Get the whole folder.") from None

"""
OPENING = f"""{GUARD}import torch

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


def text(source: str, name: str) -> NotebookNode:
    return new_markdown_cell(source, id=name)


def code(source: str, name: str, *tags: str, said: str = "", shown: object = None) -> NotebookNode:
    """A code cell that prints ``said``, or shows a figure or a card."""
    cell = new_code_cell(source, id=name)
    if tags:
        cell.metadata.tags = list(tags)
        if set(tags) - {"keep"}:
            cell.metadata.jupyter = {"source_hidden": True}
        if "hide-cell" in tags:
            cell.metadata.jupyter["outputs_hidden"] = True
    if said:
        cell.outputs.append(new_output("stream", name="stdout", text=said))
    if isinstance(shown, Card):
        data = {"text/plain": repr(shown), "text/html": shown._repr_html_()}
        cell.outputs.append(new_output("execute_result", data))
    elif shown:
        data = {"image/png": "", "text/plain": "<Figure size 960x624 with 1 Axes>"}
        cell.outputs.append(new_output("display_data", data))
        cell.metadata.mystnb = {"image": {"alt": shown}}
    return cell


def exercise(number: int, task: str = "Do it.") -> list[NotebookNode]:
    said = f":::{{admonition}} Exercise {number}: A transfer\n:class: exercise\n\n{task}\n:::"
    solution = code("assert 1 < 2", f"exercise-{number}-solution", "hide-cell")
    return [text(said, f"exercise-{number}"), solution]


def chapter() -> NotebookNode:
    """A chapter in which nothing is wrong."""
    links = "".join(f"\n- [a page](https://docs.pytorch.org/{n})" for n in "abc")
    notebook = new_notebook(
        cells=[
            text(TITLE, "title"),
            code(OPENING, "opening", "hide-input", shown=ALT),
            text(BOX, "box"),
            code(KEEP, "keep", "keep", said="3.0\n"),
            text("## Pinned memory: what does it cost?\n\nTime.", "cost"),
            code("SIZE = 3", "size"),
            code(EXPERIMENT, "experiment"),
            code(
                'copy_speed.predict("Pinned", 60, "GB/s", because="the bus")\n'
                "result = copy_speed()\n"
                'copy_speed.check({"Pinned": result["gb_per_s"]})',
                "run",
                shown=Card(ENTRIES, [f"measured on {WHERE}"]),
            ),
            text("## Overlap\n\n```text\n## no heading\n```", "overlap"),
            text("## Hazards\n\nOld bytes.", "hazards"),
            text("## Pitfalls", "pitfalls"),
            text("## Exercises", "exercises"),
            *exercise(1),
            *exercise(2),
            *exercise(3, "Measure the copies of your own training loop."),
            text("## What to read next\n\n[Models](04_models.ipynb)", "next"),
            text(f"## Sources\n{links}", "sources"),
            code(PAIRED, "in-short", "hide-cell", said="paired\n"),
        ]
    )
    for count, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        cell.execution_count = count
    set_reading_time(notebook)
    return notebook


class Editor:
    """Changes to a notebook, in a form short enough for a list of them."""

    def __init__(self, notebook: NotebookNode):
        self.notebook = notebook

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

    def prints(self, name: str, said: str) -> None:
        self[name].outputs = [new_output("stream", name="stdout", text=said)]


def title(notebook: NotebookNode) -> list[str]:
    return form.title(notebook, "03_tensors")


experiments_use_only_what_their_hash_covers = form.experiments_use_only_what_their_hash_covers
CHECKS = (*form.NOTEBOOK, *form.CHAPTER, title, experiments_use_only_what_their_hash_covers)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_a_good_chapter_has_no_problems(check) -> None:
    assert check(chapter()) == []


@pytest.mark.parametrize(
    "number, name",
    [("3", "03_tensors"), ("15", "15_transfers"), ("1.5", "15_transfers"), ("0", "00_quickstart")],
)
def test_the_number_of_a_chapter_is_that_of_its_file(number, name) -> None:
    notebook = chapter()
    Editor(notebook).replace("title", "# 3 ·", f"# {number} ·")
    assert form.title(notebook, name) == []
    assert "its number" in form.title(notebook, "27_other")[0]


PLANTED: list[tuple[Callable, Callable[[Editor], object], str]] = [
    (form.cells_were_run_in_order, lambda e: e["run"].update(execution_count=9), "run once each"),
    (
        form.cells_were_run_in_order,
        lambda e: e["run"].outputs.append(new_output("stream", name="stderr", text="warning")),
        "run: stored stream stderr",
    ),
    (form.cells_have_names, lambda e: e["run"].update(id="keep"), "keep: 2 cells"),
    (
        form.first_cell_names_the_book,
        lambda e: e.replace("opening", "from None", ""),
        "opening: the first code cell does not begin",
    ),
    (
        form.no_cell_is_endless,
        lambda e: e["opening"].update(source="x = 1\n" * 41),
        "opening: 42 lines",
    ),
    (form.tags_are_known, lambda e: e.tag("opening", "hide_input"), "the tag 'hide_input'"),
    # hidden in the page and in JupyterLab
    (
        form.page_and_jupyterlab_hide_the_same,
        lambda e: e["opening"].metadata.pop("jupyter"),
        "opening: with the tag hide-input",
    ),
    (
        form.page_and_jupyterlab_hide_the_same,
        lambda e: e["in-short"].metadata.jupyter.pop("outputs_hidden"),
        "in-short: with the tag hide-cell",
    ),
    (
        form.page_and_jupyterlab_hide_the_same,
        lambda e: e["opening"].metadata.jupyter.update(outputs_hidden=True),
        "opening: with the tag hide-input",
    ),
    (
        form.page_and_jupyterlab_hide_the_same,
        lambda e: e["run"].metadata.update(jupyter={"source_hidden": True}),
        "run: with no tag that hides it",
    ),
    # figures
    (
        form.figures_have_alternative_text,
        lambda e: e["opening"].metadata.mystnb.image.update(alt="a plot"),
        "opening: the figure",
    ),
    (
        form.figures_have_alternative_text,
        lambda e: e.replace("cost", "Time.", "![a plot](images/a.svg)"),
        "cost: ![a plot](images/a.svg)",
    ),
    (
        form.figures_say_where_they_were_measured,
        lambda e: e.replace("opening", "\nshow(fig, ", "\nprint("),
        "opening: a figure that does not say where",
    ),
    (
        form.figures_have_titles,
        lambda e: e.replace("opening", '"Pinned memory is faster"', '""'),
        "opening: a figure without a title",
    ),
    (
        form.figures_have_titles,
        lambda e: e.replace("opening", 'figure("Pinned memory is faster")', "plt.subplots()"),
        "opening: a figure without a title",
    ),
    (
        form.figures_have_captions,
        lambda e: e.replace("opening", '"Pinned memory is faster"', 'f"{n} is faster"'),
        "opening: the figure has no caption of its own",
    ),
    (
        form.figures_have_captions,
        lambda e: e["opening"].metadata.mystnb.update(caption="Pinned memory, which is faster"),
        "opening: 'Pinned memory, which is faster' is no caption",
    ),
    # what is compared, and what prose may quote
    (form.outputs_are_compared, lambda e: e.tag("run", "nbval-skip"), "run: nbval-skip"),
    (
        form.outputs_are_compared,
        lambda e: [e.tag(c, "nbval-ignore-output") for c in ("keep", "size", "run")],
        "keep, size, run: nbval-ignore-output",
    ),
    (
        form.prose_quotes_no_number_without_its_machine,
        lambda e: e.replace("cost", "Time.", "It takes 5 ms."),
        "cost: '5 ms' in 'It takes 5 ms.'",
    ),
    (
        form.predictions_are_checked,
        lambda e: e.replace("run", "copy_speed.check(", "print("),
        "copy_speed.predict(…) without copy_speed.check(…)",
    ),
    (
        form.outputs_are_of_the_machines_that_measured,
        lambda e: e.prints("size", f"replayed from book/records/a.json: {WHERE} (no GPU here)\n"),
        "size: 'replayed from book/records/a.json",
    ),
    (
        experiments_use_only_what_their_hash_covers,
        lambda e: e.replace("experiment", "SIZE", "SIZE, device=device"),
        "copy_speed uses device, a variable of the notebook.*call pick\\(\\) inside",
    ),
    # the first screen
    (title, lambda e: e.replace("title", "# 3 ·", "# 4 ·"), "its number.*# 3 · Title"),
    (title, lambda e: e.replace("title", "# 3 · Tensors", "# Tensors"), "its number"),
    (title, lambda e: e.replace("title", "link.", "link. It can. Read."), "one sentence"),
    (title, lambda e: e.replace("title", "Feed the GPU at the speed of its link.", ""), "one sent"),
    (title, lambda e: e.replace("title", "*reads", "reads"), "write the line"),
    (title, lambda e: e.replace("title", "measured on one H100", "one H100"), "write the line"),
    (title, lambda e: e.replace("title", TITLE[:3], "") or e["title"].update(source=""), "number"),
    (
        form.reading_time,
        lambda e: e["title"].update(source=TITLE.replace("30", "39")),
        "the first cell says 39 minutes, the formula of utils.record 2",
    ),
    (
        form.reading_time,
        lambda e: e.replace("cost", "Time.", "word " * 8200),
        "takes 43 minutes, of 40 at most",
    ),
    (form.opening, lambda e: e.tag("opening"), "opening: the first code cell lacks the tag"),
    (form.opening, lambda e: e["opening"].update(outputs=[]), "lacks the output of a figure"),
    (form.opening, lambda e: e["opening"].update(source="show(fig, where)"), "lacks the imports"),
    (form.opening, lambda e: e.put(code("x = 1", "early"), after="title"), "early: the first code"),
    (
        form.imports_are_out_of_sight,
        lambda e: e["size"].update(source="from a import (\n    b,\n    c,\n    d,\n)"),
        "size: 5 visible lines of imports",
    ),
    (form.first_screen, lambda e: e.replace("box", "**In short**", "Short:"), "no markdown cell"),
    (form.first_screen, lambda e: e.replace("box", "- Pin once", "Pin once"), "box: 3 rules"),
    (form.first_screen, lambda e: e.replace("box", "- Pin", "- a\n" * 4 + "- Pin"), "box: 8 rules"),
    (
        form.first_screen,
        lambda e: e.replace("box", "**The code to keep**", ""),
        "box: **The code to keep** does not follow",
    ),
    (form.first_screen, lambda e: e.tag("keep"), "no code cell tagged keep"),
    (
        form.first_screen,
        lambda e: e.put(text("## Early", "early"), after="box"),
        "no code cell tagged keep",
    ),
    (
        form.first_screen,
        lambda e: [e.put(text("More.", f"more-{n}"), after="title") for n in range(5)],
        "no code cell tagged keep",
    ),
    # the code to keep
    (form.code_to_keep, lambda e: e["keep"].update(source="x = 1\n" * 26), "keep: 26 lines"),
    (
        form.code_to_keep,
        lambda e: e.replace("keep", "import torch", "from utils.timing import measure"),
        "keep: the code to keep imports utils",
    ),
    (form.code_to_keep, lambda e: e["keep"].update(outputs=[]), "keep: .* stores no output"),
    (form.code_to_keep, lambda e: e.tag("keep", "keep", "hide-input"), "keep: .* is collapsed"),
    # the numbers of the box
    (
        form.numbers_of_the_box_are_paired,
        lambda e: e.replace("box", "Pin once", "Pin 2 buffers once"),
        "the number 2 of the box",
    ),
    (
        form.numbers_of_the_box_are_paired,
        lambda e: e.replace("box", "Pin once", "Use 15 workers; pin once"),
        "the number 15 of the box",  # which is paired elsewhere, as "is 15x faster"
    ),
    (
        form.numbers_of_the_box_are_paired,
        lambda e: e.replace("in-short", '"is 15x faster"', '"is 16x faster"'),
        "'is 16x faster' is no text of the box.*\n.*the number 15 of the box",
    ),
    (
        form.numbers_of_the_box_are_paired,
        lambda e: e.replace("in-short", '"is 15x faster"', '"5x faster"'),
        "'5x faster' is no text of the box",
    ),
    (
        form.numbers_of_the_box_are_paired,
        lambda e: e.replace("in-short", '"10 of 10 tries"', '"Pin once"'),
        "'Pin once' is no text of the box with a number",
    ),
    (form.numbers_of_the_box_are_paired, lambda e: e.tag("in-short"), "in-short: the last code"),
    (form.numbers_of_the_box_are_paired, lambda e: e.drop("in-short"), "the last code cell pairs"),
    (
        form.numbers_of_the_box_are_paired,
        lambda e: e["in-short"].update(source="in_short(pairs)"),
        "a dict in braces",
    ),
    (
        form.box_speaks_of_records,
        lambda e: e.replace("in-short", 'recorded("copy_speed").result', "result"),
        "in-short: result is what this machine measured",
    ),
    (
        form.box_speaks_of_records,
        lambda e: (
            e.replace("size", "SIZE = 3", "SIZE = 3\nfor gain in [copy_speed()]:\n    pass"),
            e.replace("in-short", 'kept["gain"]', "gain"),
        ),
        "in-short: gain is",
    ),
    # sections, exercises, sources
    (form.sections, lambda e: e.drop("hazards"), "2 sections"),
    (
        form.sections,
        lambda e: [e.put(text(f"## {n}", f"more-{n}"), after="cost") for n in range(4)],
        "7 sections",
    ),
    (form.sections, lambda e: e.replace("next", "What to", "Where to"), "Every chapter ends alike"),
    (form.sections, lambda e: e.put(text("## Pitfalls", "again"), after="sources"), "once each"),
    (
        form.sections,
        lambda e: e.put(text("## Afterthought", "more"), after="pitfalls"),
        "Every chapter ends alike",
    ),
    (
        form.exercises_have_solutions,
        lambda e: e.drop("exercise-2", "exercise-2-solution"),
        "2 exercises",
    ),
    (form.exercises_have_solutions, lambda e: e.tag("exercise-2-solution"), "Exercise 2: .*no sol"),
    (
        form.exercises_have_solutions,
        lambda e: e.drop("exercise-3-solution"),
        "Exercise 3: .*no sol",
    ),
    (
        form.exercises_have_solutions,
        lambda e: [e[f"exercise-{n}-solution"].update(source="1 < 2") for n in (1, 2, 3)],
        "no solution checks itself",
    ),
    (
        form.exercises_have_solutions,
        lambda e: e.replace("exercise-3", "your own", "this"),
        'let one say "your own"',
    ),
    (form.sources, lambda e: e.replace("sources", "https://docs.pytorch.org/c", "c"), "2 links"),
    # what is shown
    (
        form.values_not_verdicts,
        lambda e: e.prints("run", "right: True\n" * 3 + "False\n"),
        "printed 4 times, of 3 at most, in run",
    ),
    (
        form.values_not_verdicts,
        lambda e: e.prints("run", "predicted Copy: 2.00 GB/s\n"),
        "run: prints 'predicted Copy",
    ),
    (
        form.cards_have_rows,
        lambda e: e["run"].update(outputs=code("", "x", shown=Card(ENTRIES[:1], [])).outputs),
        "run: a card of one prediction",
    ),
    (
        form.visible_cells_are_short,
        lambda e: e["experiment"].update(source=EXPERIMENT + "\n    x = 1" * 23),
        "experiment: 26 visible lines",
    ),
]


@pytest.mark.parametrize(
    "check, plant, said",
    PLANTED,
    ids=[f"{check.__name__}-{said[:30]}" for check, _, said in PLANTED],
)
def test_what_is_planted_is_found(check, plant, said) -> None:
    notebook = chapter()
    plant(Editor(notebook))
    found = "\n".join(check(notebook))
    wanted = said if ".*" in said else re.escape(said)
    assert re.search(wanted, found), found or "no problem found"


def test_every_check_has_something_planted_for_it() -> None:
    assert set(CHECKS) == {check for check, _, _ in PLANTED}


@pytest.mark.parametrize(
    "quantity, predicted, measured, shown",
    [
        ("Pinned", "60.0 GB/s", "55.0 GB/s", True),
        ("Pinned", "60.0 GB/s", "5.00 GB/s", False),
        ("Pinned", "0.0 GB/s", "55.0 GB/s", False),
        ("Pinned", "55.0 GB/s", "60.0 GB/s", False),
        ("Pinned", "60.0 GB/s", "8.00 GB/s", False),  # which is measured in another row
        ("Pageable", "60.0 GB/s", "8.00 GB/s", True),
        ("Latency", "1.00 ms", "2.00 ms", True),  # in a table of the first edition
        ("Latency", "1.00 ms", "3.00 ms", False),
    ],
)
def test_a_pair_is_shown_in_one_row(quantity, predicted, measured, shown) -> None:
    notebook = chapter()
    Editor(notebook).prints("size", "| Latency | 1.00 ms | 2.00 ms | 2.00 |\n")
    assert form.shows_pair(notebook, quantity, predicted, measured) is shown


def quickstart() -> Editor:
    """The good chapter as chapter 0: without pitfalls and exercises."""
    edit = Editor(chapter())
    edit.replace("title", "# 3 ·", "# 0 ·")
    gone = [cell.id for cell in edit.notebook.cells if cell.id.startswith(("exercise", "pitfalls"))]
    edit.drop(*gone, "hazards")
    set_reading_time(edit.notebook)
    return edit


def test_the_quickstart_has_longer_code_but_no_exercises() -> None:
    edit = quickstart()
    edit["keep"].source += "\nx = 1" * 57
    set_reading_time(edit.notebook)
    for count, cell in enumerate((c for c in edit.notebook.cells if c.cell_type == "code"), 1):
        cell.execution_count = count
    found = [p for check in (*form.NOTEBOOK, *form.CHAPTER) for p in check(edit.notebook)]
    assert found + form.title(edit.notebook, "00_quickstart") == []
    edit["keep"].source += "\nx = 1"
    assert "61 lines of code to keep, of 60 at most" in form.code_to_keep(edit.notebook)[0]
    edit.put(text("## One\n\n## Two\n\n" + "word " * 2400, "more"), after="cost")
    assert "of 12 at most" in form.reading_time(edit.notebook)[0]
    assert "4 sections" in form.sections(edit.notebook)[0]


@pytest.mark.parametrize(
    "statement",
    [
        "SIZES |= {2: 3}",
        "SIZES[0] = 3",
        'SIZES["a"]["b"] = 3',
        "SIZES.all = 3",
        "SIZES.update({2: 3})",
        "if SIZES:\n    SIZES = {2: 3}",
        "for SIZES in ():\n    pass",
        "del SIZES[0]",
    ],
)
def test_a_constant_that_is_changed_in_place_is_noticed(statement) -> None:
    """The record's hash does not cover that."""
    edit = Editor(chapter())
    edit["size"].source = f"SIZES = {{}}\nOTHER = []\nOTHER += [5]\n{statement}"
    edit.replace("experiment", "SIZE", "*SIZES")
    found = form.constants_changed_in_place(edit.notebook)
    assert found.keys() == {"SIZES"}
    edit.replace("size", statement, f"{statement}  # why")
    assert form.constants_changed_in_place(edit.notebook) == found
    edit.replace("size", statement, f"{statement}\n{statement}")
    assert form.constants_changed_in_place(edit.notebook) != found


@pytest.mark.parametrize("statement", ["SIZES = 4", "SIZES: int = 4", "print(SIZES[0], SIZES.a)"])
def test_an_assignment_is_no_change_in_place(statement) -> None:
    edit = Editor(chapter())
    edit["size"].source = f"SIZES = [3]\n{statement}"
    edit.replace("experiment", "SIZE", "*SIZES")
    assert form.constants_changed_in_place(edit.notebook) == {}


@pytest.mark.parametrize(
    "line, same",
    [
        (f"measured on {WHERE}", True),
        (f"live on {WHERE}", True),
        (f"replayed from book/records/a.json: {WHERE} (no GPU here)", True),
        (f"measured on 8 x {WHERE}", False),
        (f"measured on {WHERE}, 3x faster than before", False),
        (f"reference: {WHERE}", False),  # stands beside live results only
    ],
)
def test_what_a_line_says_of_a_machine(line, same) -> None:
    assert form.is_said_of(WHERE, line) is same


def test_the_cards_that_the_first_screen_names() -> None:
    edit = Editor(chapter())
    edit.replace("box", "PCIe 5", "PCIe 5 of two H200s, an L40S and `A100`, with TF32,")
    words = form.first_words(edit.notebook)
    assert form.cards_in(words) == {"H100", "H200", "L40S"}
    assert form.recorded_by_name(edit.notebook) == {"copy_speed"}
