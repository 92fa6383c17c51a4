"""Checks of a chapter's first screen: title, opening figure, the box In short, the code to keep."""

import ast
import re
from collections import Counter

from nbformat import NotebookNode

from form.page import GUARD
from notebooks import (
    box,
    calls,
    code_cells,
    experiments,
    has_figure,
    headings,
    is_quickstart,
    keep_cells,
    parsed,
    tags,
    texts,
)
from utils.cards import numbers_in
from utils.record.notebooks import HIDDEN, is_visible, lines, minutes, stated_minutes


def title(notebook: NotebookNode, name: str) -> list[str]:
    """``name`` is the file's, such as 15_transfers: chapter 15, or 1.5."""
    cell, problems = notebook.cells[0], []
    numbers = {str(int(name[:2])), f"{name[0]}.{name[1]}"}
    paragraphs = [p.strip() for p in re.split(r"\n\s*\n|\n(?=\*reads)", cell.source) if p.strip()]
    head, *promise = [p for p in paragraphs if not p.startswith("*reads in")] or [""]
    found = re.fullmatch(r"# ([\d.]+) · \S.*", head)
    if cell.cell_type != "markdown" or not found or found[1] not in numbers:
        problems.append(
            f"{cell.id}: the chapter does not begin with its number, which is its place in the "
            f"book and in the file's name: # {min(numbers, key=len)} · Title"
        )
    if len(promise) != 1 or len(re.findall(r"[.?!](?=\s+[A-Z]|$)", promise[0])) != 1:
        problems.append(
            f"{cell.id}: between title and reading time stands one sentence, the promise by which "
            "a reader decides to stay: write one, and move the rest into the sections"
        )
    if not re.search(
        r"^\*reads in \d+ min · runs in \S.* · measured on \S.*\*$", cell.source, re.M
    ):
        problems.append(
            f"{cell.id}: a reader wants to know what the chapter takes: write the line "
            "*reads in 30 min · runs in 10 s on a CPU · measured on one H100*"
        )
    return problems


def reading_time(notebook: NotebookNode) -> list[str]:
    computed, stated, problems = round(minutes(notebook)), stated_minutes(notebook), []
    most = 12 if is_quickstart(notebook) else 40
    if computed > most:
        problems.append(
            f"the chapter takes {computed} minutes, of {most} at most, and few read on. Cut what "
            "repeats, link what another chapter shows, collapse what only proves, or split it"
        )
    if stated is not None and stated != computed:
        problems.append(
            f"the first cell says {stated} minutes, the formula of utils.record {computed}. "
            "The line is a promise: write the computed number, as python -m utils.record does"
        )
    return problems


def opening(notebook: NotebookNode) -> list[str]:
    first, *_ = code_cells(notebook)
    holds = (
        ("the tag hide-input", "hide-input" in tags(first)),
        ("the imports", _import_lines(first) > 0),
        ("the output of a figure", has_figure(first)),
    )
    return [
        f"{first.id}: the first code cell lacks {what}. It draws the figure that says what the "
        "chapter is about, and keeps the imports out of sight: put both there, and collapse it"
        for what, there in holds
        if not there
    ]


def imports_are_out_of_sight(notebook: NotebookNode) -> list[str]:
    return [
        f"{cell.id}: {_import_lines(cell)} visible lines of imports. They teach nothing and stand "
        "in the way: move them to the first code cell, which is collapsed"
        for cell in code_cells(notebook)
        if is_visible(cell)
        and _import_lines(cell) > 4
        and "keep" not in tags(cell)
        and "@experiment" not in cell.source
    ]


def _import_lines(cell: NotebookNode) -> int:
    return sum(
        node.end_lineno - node.lineno + 1
        for node in ast.walk(parsed(GUARD.sub("", cell.source)))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def first_screen(notebook: NotebookNode) -> list[str]:
    if box(notebook) is None:
        return [
            "no markdown cell says **In short**. Who reads only the first screen gets the use of "
            "the chapter there: write four to seven rules, each with its number"
        ]
    (at, rules), cells, problems = box(notebook), notebook.cells, []
    items = re.findall(r"^(?:[-*+]|\d+[.)]) ", rules, re.MULTILINE)
    if not 4 <= len(items) <= 7:
        problems.append(
            f"{cells[at].id}: {len(items)} rules under **In short**. Four to seven can be kept in "
            "mind: one list item a rule, one rule a section"
        )
    nearby = [cell for cell in cells[at : at + 2] if cell.cell_type == "markdown"]
    if not any("**The code to keep**" in cell.source for cell in nearby):
        problems.append(
            f"{cells[at].id}: **The code to keep** does not follow the rules. Who has a problem "
            "copies it from the first screen: write these words below the list, and the cell"
        )
    sections = [i for i, cell in enumerate(cells) if headings(cell)]
    before = min([*sections, 8])
    if not any("keep" in tags(cell) for cell in cells[at:before] if cell.cell_type == "code"):
        problems.append(
            "no code cell tagged keep stands between **In short** and the first heading ## within "
            "the first 8 cells, so the first screen has no code to copy: move it up, or tag it"
        )
    return problems


def code_to_keep(notebook: NotebookNode) -> list[str]:
    problems, most = [], 60 if is_quickstart(notebook) else 25
    for cell in keep_cells(notebook):
        if len(lines(cell.source)) > most:
            problems.append(
                f"{cell.id}: {len(lines(cell.source))} lines of code to keep, of {most} at most. "
                "Nobody pastes what they cannot read at a glance: shorten it"
            )
        if _imports_utils(cell.source):
            problems.append(
                f"{cell.id}: the code to keep imports utils, which a reader who pastes it does not "
                "have: write out what it needs"
            )
        if not any(text.strip() for text in texts(cell)):
            problems.append(
                f"{cell.id}: the code to keep stores no output, so neither reader nor test sees "
                "that it works: let it print its result, and record the notebook"
            )
        if set(tags(cell)) & set(HIDDEN):
            problems.append(
                f"{cell.id}: the code to keep is collapsed, and it is what many come for: remove "
                "the tag that hides it"
            )
    return problems


def _imports_utils(source: str) -> bool:
    names = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return any(name.split(".")[0] == "utils" for name in names)


def numbers_of_the_box_are_paired(notebook: NotebookNode) -> list[str]:
    """Whether the values are right is checked by ``in_short`` itself, when the cell is run."""
    if box(notebook) is None:
        return []
    last = code_cells(notebook)[-1]
    given = [c.args[0] for n, c in calls(parsed(last.source)) if n == "in_short" and c.args]
    if "hide-cell" not in tags(last) or not given or not isinstance(given[0], ast.Dict):
        return [
            f"{last.id}: the last code cell pairs the numbers of the box **In short** with "
            'results, or the box would drift from them: write in_short({"55 GB/s": …}) there, with '
            "a dict in braces, and tag the cell hide-cell"
        ]
    keys = [getattr(key, "value", None) for key in given[0].keys]
    text, left, problems = _plain(box(notebook)[1]), Counter(numbers_in(box(notebook)[1])), []
    for key in keys:
        key = _plain(key) if isinstance(key, str) else ""
        times = len(re.findall(rf"(?<!\d)(?<!\d[.,]){re.escape(key)}(?!\d|[.,]\d)", text))
        if not re.search(r"\d", key) or not times:
            problems.append(
                f"{last.id}: {key!r} is no text of the box with a number in it, so it guards "
                "nothing: copy the words from **In short**, as they stand there"
            )
        left -= Counter({number: n * times for number, n in Counter(numbers_in(key)).items()})
    return problems + [
        f"{last.id}: the number {number} of the box **In short** is paired with nothing, so "
        "nothing notices when it is no longer true: add it, with the words beside it, to in_short"
        for number in left
    ]


def box_speaks_of_records(notebook: NotebookNode) -> list[str]:
    """The last cell must not use what an experiment returned in an earlier one, nor what follows.

    Names are followed through assignments and loops at the top of cells, in their order.
    """
    *cells, last = code_cells(notebook)
    live = dict.fromkeys(experiments(notebook), "an experiment itself")
    for cell in cells:
        for step in parsed(cell.source).body:
            if not isinstance(step, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For):
                continue
            value = step.iter if isinstance(step, ast.For) else step.value
            targets = step.targets if isinstance(step, ast.Assign) else [step.target]
            from_live = value and not _free(value).isdisjoint(live)
            for name in set().union(*(_stored(target) for target in targets)):
                live.pop(name, None)
                live |= {name: f"set in {cell.id}"} if from_live else {}
    return [
        f"{last.id}: {name} is what this machine measured ({live[name]}), and the box tells of the "
        "reference machine: on another GPU the page would fail. Take it from recorded(…).result"
        for name in sorted(_free(parsed(last.source)) & live.keys())
    ]


def _stored(node: ast.AST) -> set[str]:
    names = {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return names | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def _free(node: ast.AST) -> set[str]:
    """The names that ``node`` takes from outside, but for those that it also sets."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - _stored(node)


def first_words(notebook: NotebookNode) -> str:
    """Title, what it was measured on, and the box; without code."""
    shown = f"{notebook.cells[0].source}\n{(box(notebook) or (0, ''))[1]}"
    return re.sub(r"`[^`]*`", "", shown)


def cards_in(words: str) -> set[str]:
    """The names of cards, such as H100 and L40S, in some words."""
    return set(re.findall(r"\b([A-Z]{1,2}\d{2,3}S?)s?\b", words)) - {"TF32"}


def _plain(markdown: str) -> str:
    """As it is read: without emphasis, backticks and addresses of links, and on one line."""
    text = re.sub(r"\]\([^)]*\)|[\[\]*`]|(?<!\w)_|_(?!\w)", "", markdown)
    return " ".join(text.split())
