"""Checks of what follows the first screen: sections, exercises, sources, and what cells show."""

import re

from nbformat import NotebookNode

from notebooks import (
    cards,
    code_cells,
    exercises,
    headings,
    is_quickstart,
    tags,
    texts,
    under,
)
from utils.record.notebooks import is_visible, lines, printed

LAST = ["Pitfalls", "Exercises", "What to read next", "Sources"]


def sections(notebook: NotebookNode) -> list[str]:
    found = [heading for cell in notebook.cells for heading in headings(cell)]
    before = [heading for heading in found if heading not in LAST]
    least, most, last = (2, 3, LAST[2:]) if is_quickstart(notebook) else (3, 6, LAST)
    problems = []
    if not least <= len(before) <= most:
        problems.append(
            f"{len(before)} sections ({', '.join(before)}) before ## {last[0]}, where {least} to "
            f"{most} fit into the time, each earning a rule of the box: join, split or move them"
        )
    if found[len(before) :] != last:
        problems.append(
            f"the headings ## are {', '.join(found)}. Every chapter ends alike, so that readers "
            f"find their way: {', '.join(last)}, in this order, once each"
        )
    return problems


def exercises_have_solutions(notebook: NotebookNode) -> list[str]:
    found, problems = exercises(notebook), []
    if is_quickstart(notebook):
        return []
    if not 3 <= len(found) <= 5:
        problems.append(
            f"{len(found)} exercises (:::{{admonition}} Exercise 1: …) under ## Exercises. Three "
            "to five are an evening's work: add or drop some"
        )
    problems += [
        f"{text.splitlines()[0]!r} has no solution, and who is stuck needs one: put a code cell "
        "tagged hide-cell behind it"
        for text, solutions in found
        if not solutions
    ]
    if found and not any("assert " in s.source for _, solutions in found for s in solutions):
        problems.append(
            "no solution checks itself, so nothing shows that one is right: add an assert"
        )
    if found and not any("your own" in text.lower() for text, _ in found):
        problems.append(
            'no exercise is done on the reader\'s code, where it is of use: let one say "your own"'
        )
    return problems


def sources(notebook: NotebookNode) -> list[str]:
    text = "".join(c.source for c in under(notebook, "Sources") if c.cell_type == "markdown")
    links = len(re.findall(r"https?://", text))
    return [
        f"{links} links under ## Sources. A reader must be able to check what the book did not "
        "measure: name at least three, of papers or of PyTorch's and NVIDIA's documentation"
    ] * (links < 3)


def values_not_verdicts(notebook: NotebookNode) -> list[str]:
    shown = {c.id: "\n".join(map(printed, c.outputs)) for c in code_cells(notebook)}
    verdict = re.compile(r"(?<![=\w])(?:True|False)\b")  # not an argument's name=True
    verdicts = {name: len(verdict.findall(said)) for name, said in shown.items()}
    problems = [
        f"{name}: prints {line[:60]!r}. A prediction is read in the text before, and in the card "
        "after the measurement: remove the line"
        for name, text in shown.items()
        for line in text.splitlines()
        if line.startswith("predicted ")
    ]
    if sum(verdicts.values()) > 3:
        problems.append(
            f"True or False is printed {sum(verdicts.values())} times, of 3 at most, in "
            f"{', '.join(name for name, n in verdicts.items() if n)}. A verdict hides the value: "
            "print the value, and assert the verdict"
        )
    return problems


def cards_have_rows(notebook: NotebookNode) -> list[str]:
    return [
        f"{cell.id}: a card of one prediction. A table of one row is a sentence: add the cards of "
        "two experiments up, or say it in the text"
        for cell in code_cells(notebook)
        for rows in cards(cell)
        if len(rows) == 1
    ]


def visible_cells_are_short(notebook: NotebookNode) -> list[str]:
    return [
        f"{cell.id}: {len(lines(cell.source))} visible lines, of 25 at most. A cell is read at a "
        "glance: split it, or move what is not the lesson to a collapsed cell"
        for cell in code_cells(notebook)
        if is_visible(cell) and len(lines(cell.source)) > 25
        if "keep" not in tags(cell)  # see code_to_keep
    ]


def shows_pair(notebook: NotebookNode, quantity: str, predicted: str, measured: str) -> bool:
    """Whether a card, or a table of the first edition, sets ``measured`` beside ``predicted``."""
    values = (rf".*?(?<![\d.,]){re.escape(value)}\s" for value in (predicted, measured))
    row = rf"(later: )?{re.escape(quantity)}\s{''.join(values)}"
    rows = [line for c in code_cells(notebook) for card in cards(c) for line in card]
    table = " | ".join([quantity, predicted, measured])
    shown = (text for cell in code_cells(notebook) for text in texts(cell))
    return any(re.match(row, line) for line in rows) or any(table in text for text in shown)
