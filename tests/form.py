"""The form of the notebooks: each check takes a notebook and returns what is wrong with it.

``NOTEBOOK`` holds for every page, ``CHAPTER`` for chapters. A message says what is wrong, why that
matters, and what to do. The records are looked at in test_form.py.
"""

import ast
import builtins
import re
import symtable
from collections import Counter

from nbformat import NotebookNode

from notebooks import (
    box,
    calls,
    calls_of,
    cards,
    code_cells,
    exercises,
    experiments,
    has_figure,
    headings,
    keep_cells,
    tags,
    texts,
    under,
)
from utils.brief import numbers_in
from utils.reading import HIDDEN, is_visible, lines, minutes, printed, stated_minutes
from utils.stored import CLOSED

Problems = list[str]
TAGS = {*HIDDEN, "hide-output", "keep", "nbval-ignore-output", "nbval-raises-exception"}


def is_quickstart(notebook: NotebookNode) -> bool:
    """Chapter 0 is one script and what it is worth, for readers with ten minutes.

    So it is shorter than a chapter and has no pitfalls and no exercises, which are in the chapters
    that it links; and its code to keep, a whole training script, is longer.
    """
    return notebook.cells[0].source.startswith("# 0 · ")


# --- every notebook ----------------------------------------------------------------------------


def cells_were_run_in_order(notebook: NotebookNode) -> Problems:
    cells = [cell for cell in code_cells(notebook) if cell.source.strip()]
    problems = [
        f"{cell.id}: stored {output.output_type} {output.get('name', '')}. A page shows only what "
        "it means to show: repair the cell, or tag an error that is meant nbval-raises-exception"
        for cell in cells
        for output in cell.outputs
        if (output.output_type == "error" and "nbval-raises-exception" not in tags(cell))
        or output.get("name") == "stderr"
    ]
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        problems.append(
            "the cells were not run once each from the first to the last, so the outputs may not "
            "belong to this code: run them with python -m utils.record"
        )
    return problems


def cells_have_names(notebook: NotebookNode) -> Problems:
    return [
        f"{name}: {times} cells have this id. Problems are reported by it: give each its own"
        for name, times in Counter(cell.id for cell in notebook.cells).items()
        if times > 1
    ]


def no_cell_is_endless(notebook: NotebookNode) -> Problems:
    return [
        f"{cell.id}: {cell.source.count(chr(10)) + 1} lines, of 40 at most. Nobody reads further: "
        "split the cell"
        for cell in code_cells(notebook)
        if cell.source.count("\n") >= 40 and "keep" not in tags(cell)  # see code_to_keep
    ]


def tags_are_known(notebook: NotebookNode) -> Problems:
    return [
        f"{cell.id}: nothing knows the tag {tag!r}, so it does nothing. Use one of "
        f"{', '.join(sorted(TAGS))}"
        for cell in notebook.cells
        for tag in tags(cell)
        if tag not in TAGS | {"nbval-skip"}  # which has a check of its own
    ]


def page_and_jupyterlab_hide_the_same(notebook: NotebookNode) -> Problems:
    problems = []
    for cell in notebook.cells:
        hiding = [tag for tag in tags(cell) if tag in HIDDEN]
        want = {"source_hidden": True} if hiding else {}
        if set(CLOSED) & set(hiding):
            want["outputs_hidden"] = True
        said = cell.metadata.get("jupyter", {})
        have = {key: said[key] for key in ("source_hidden", "outputs_hidden") if key in said}
        if have != want:
            problems.append(
                f"{cell.id}: with {f'the tag {hiding[0]}' if hiding else 'no tag that hides it'} "
                f'the cell\'s metadata say "jupyter": {have or "nothing"}. JupyterLab knows no '
                f"hide-tags, so a solution stands open or a lesson is folded there: write "
                f"{want or 'nothing'}, as python -m utils.record does"
            )
    return problems


def figures_have_alternative_text(notebook: NotebookNode) -> Problems:
    why = (
        "Who cannot see the figure hears this text, so it says in at least 30 characters what the "
        "figure shows"
    )
    return [
        f"{cell.id}: the figure has no alternative text, or a short one. {why}: write it in the "
        'cell\'s metadata, "mystnb": {"image": {"alt": "…"}}'
        for cell in code_cells(notebook)
        if has_figure(cell)
        and len(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")) < 30
    ] + [
        f"{cell.id}: {image} has no alternative text, or a short one. {why}: ![text](file)"
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for image in re.findall(r"!\[.{0,29}\]\([^)]*\)", cell.source)
    ]


def figures_say_where_they_were_measured(notebook: NotebookNode) -> Problems:
    return [
        f"{cell.id}: a figure that does not say where it was measured. Its numbers are of one "
        'machine: end the cell with show(fig, experiment.where), or show(fig, "drawing")'
        for cell in code_cells(notebook)
        if has_figure(cell) and not re.search(r"^show\(", cell.source, re.MULTILINE)
    ]


def figures_have_titles(notebook: NotebookNode) -> Problems:
    titled = ("figure", "timeline", "signature", "set_title", "suptitle")

    def is_title(call: ast.Call) -> bool:
        given = [*call.args, *(k.value for k in call.keywords if k.arg in ("title", "label"))]
        said = [a.value for a in given if isinstance(a, ast.Constant)]
        return bool(given) and all(str(value).strip() for value in said[:1])

    return [
        f'{cell.id}: a figure without a title. The title is its answer: figure("…")'
        for cell in code_cells(notebook)
        if has_figure(cell)
        and not any(name in titled and is_title(c) for name, c in calls_of(cell, notebook))
    ]


def outputs_are_compared(notebook: NotebookNode) -> Problems:
    cells = code_cells(notebook)
    ignored = [cell.id for cell in cells if "nbval-ignore-output" in tags(cell)]
    problems = [
        f"{cell.id}: nbval-skip, or a comment that means it. A cell that no test runs is not known "
        "to work: take it out"
        for cell in cells
        if "nbval-skip" in tags(cell) or "NBVAL" in cell.source
    ]
    if len(ignored) > len(cells) / 5:
        problems.append(
            f"{', '.join(ignored)}: nbval-ignore-output in more than a fifth of the cells, so that "
            "much is not tested. Take times from records, or print what does not vary"
        )
    return problems


# A number that only some machine gives. Limits of a named link or card may be quoted beside it.
MEASURED = re.compile(
    r"\d[\d.,]*\s?(?:ns|µs|us|ms|s|seconds?|GB/s|TB/s|MB/s|TFLOP/s|images/s|x faster|× faster|"
    r"times (?:faster|slower))(?![\w/])"
)
MACHINE = re.compile(
    r"\b(?:[HABVLT]\d{1,3}0?S?|RTX|PCIe|HBM\d?|NVLink|datasheet|Xeon|EPYC|GTX|GB\d{3})\b"
)


def prose_quotes_no_number_without_its_machine(notebook: NotebookNode) -> Problems:
    """But the box, whose numbers are paired with results, and the line "reads in …"."""
    return [
        f"{cell.id}: {match[0]!r} in {paragraph[:90]!r}. Another machine gives another number: "
        "name the machine in this paragraph, or let a cell print the number"
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for paragraph in cell.source.split("**In short**")[0].split("\n\n")
        if not MACHINE.search(paragraph) and not re.search(r"\*\*Time\*\*|^\*reads in", paragraph)
        for match in MEASURED.finditer(re.sub(r"`[^`]*`|\([^)]*http[^)]*\)", "", paragraph))
    ]


def predictions_are_checked(notebook: NotebookNode) -> Problems:
    used: dict[str, set[str]] = {"predict": set(), "check": set()}
    for cell in code_cells(notebook):
        for name, call in calls(ast.parse(cell.source)):
            if name in used and isinstance(getattr(call.func, "value", None), ast.Name):
                used[name].add(call.func.value.id)
    return [
        f"{name}.predict(…) without {name}.check(…): a prediction without its measurement teaches "
        f"nothing. Call {name}.check(…) after the experiment"
        for name in sorted(used["predict"] - used["check"])
    ]


def outputs_are_of_the_machines_that_measured(notebook: NotebookNode) -> Problems:
    shown = {
        line: cell.id
        for cell in code_cells(notebook)
        for text in texts(cell)
        for line in text.splitlines()
    }
    if not any(line.startswith(("live on ", "measured on ")) for line in shown):
        return []
    return [
        f"{cell}: {line[:70]!r} was stored on a machine that lacks the hardware, among outputs of "
        "one that has it. A reader cannot tell what that means: record the notebook again, which "
        "stores 'measured on …' for both"
        for line, cell in shown.items()
        if line.startswith("replayed from ")
    ]


def experiments_use_only_what_their_hash_covers(notebook: NotebookNode) -> Problems:
    allowed, problems = set(dir(builtins)), []
    for cell in code_cells(notebook):
        tree = ast.parse(cell.source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                allowed |= {(a.asname or a.name).split(".")[0] for a in node.names}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                allowed.add(node.name)
    for name, sources in experiments(notebook).items():
        table = symtable.symtable(sources[-1], name, "exec")
        function = next(t for t in table.get_children() if t.get_name() == name)
        used = {
            symbol.get_name()
            for scope in _scopes(function)
            for symbol in scope.get_symbols()
            if symbol.is_global() and not symbol.get_name().isupper()
        }
        problems += [
            f"{name} uses {variable}, a variable of the notebook. The record's hash does not cover "
            "its value, so a change of it would go unnoticed. An experiment may use imports, "
            "builtins, and the notebook's functions, classes and ALL_CAPS constants: compute "
            f"{variable} inside, or make it a constant"
            + (' (device = pick() is a variable: call pick() inside, or write "cuda")')
            * (variable == "device")
            for variable in sorted(used - allowed)
        ]
    return problems


def _scopes(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    return [table, *(scope for child in table.get_children() for scope in _scopes(child))]


# --- chapters: the first screen ----------------------------------------------------------------


def title(notebook: NotebookNode, name: str) -> Problems:
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


def reading_time(notebook: NotebookNode) -> Problems:
    computed, stated, problems = round(minutes(notebook)), stated_minutes(notebook), []
    most = 12 if is_quickstart(notebook) else 40
    if computed > most:
        problems.append(
            f"the chapter takes {computed} minutes, of {most} at most, and few read on. Cut what "
            "repeats, link what another chapter shows, collapse what only proves, or split it"
        )
    if stated is not None and stated != computed:
        problems.append(
            f"the first cell says {stated} minutes, the formula of utils/reading.py {computed}. "
            "The line is a promise: write the computed number, as python -m utils.record does"
        )
    return problems


def opening(notebook: NotebookNode) -> Problems:
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


def imports_are_out_of_sight(notebook: NotebookNode) -> Problems:
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
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def first_screen(notebook: NotebookNode) -> Problems:
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


def code_to_keep(notebook: NotebookNode) -> Problems:
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
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return any(name.split(".")[0] == "utils" for name in names)


def numbers_of_the_box_are_paired(notebook: NotebookNode) -> Problems:
    """Whether the values are right is checked by ``in_short`` itself, when the cell is run."""
    if box(notebook) is None:
        return []
    last = code_cells(notebook)[-1]
    given = [c.args[0] for n, c in calls(ast.parse(last.source)) if n == "in_short" and c.args]
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


def box_speaks_of_records(notebook: NotebookNode) -> Problems:
    """The last cell must not use what an experiment returned in an earlier one, nor what follows.

    Names are followed through assignments and loops at the top of cells, in their order.
    """
    *cells, last = code_cells(notebook)
    live = dict.fromkeys(experiments(notebook), "an experiment itself")
    for cell in cells:
        for step in ast.parse(cell.source).body:
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
        for name in sorted(_free(ast.parse(last.source)) & live.keys())
    ]


def _stored(node: ast.AST) -> set[str]:
    names = {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return names | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def _free(node: ast.AST) -> set[str]:
    """The names that ``node`` takes from outside, but for those that it also sets."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - _stored(node)


def _plain(markdown: str) -> str:
    """As it is read: without emphasis, backticks and addresses of links, and on one line."""
    text = re.sub(r"\]\([^)]*\)|[\[\]*`]|(?<!\w)_|_(?!\w)", "", markdown)
    return " ".join(text.split())


# --- chapters: sections, exercises, what is shown ----------------------------------------------

LAST = ["Pitfalls", "Exercises", "What to read next", "Sources"]


def sections(notebook: NotebookNode) -> Problems:
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


def exercises_have_solutions(notebook: NotebookNode) -> Problems:
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


def sources(notebook: NotebookNode) -> Problems:
    text = "".join(c.source for c in under(notebook, "Sources") if c.cell_type == "markdown")
    links = len(re.findall(r"https?://", text))
    return [
        f"{links} links under ## Sources. A reader must be able to check what the book did not "
        "measure: name at least three, of papers or of PyTorch's and NVIDIA's documentation"
    ] * (links < 3)


def values_not_verdicts(notebook: NotebookNode) -> Problems:
    shown = {c.id: "\n".join(map(printed, c.outputs)) for c in code_cells(notebook)}
    verdicts = {name: len(re.findall(r"\b(?:True|False)\b", t)) for name, t in shown.items()}
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


def cards_have_rows(notebook: NotebookNode) -> Problems:
    return [
        f"{cell.id}: a card of one prediction. A table of one row is a sentence: add the cards of "
        "two experiments up, or say it in the text"
        for cell in code_cells(notebook)
        for rows in cards(cell)
        if len(rows) == 1
    ]


def visible_cells_are_short(notebook: NotebookNode) -> Problems:
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


NOTEBOOK = (
    cells_were_run_in_order,
    cells_have_names,
    no_cell_is_endless,
    tags_are_known,
    page_and_jupyterlab_hide_the_same,
    figures_have_alternative_text,
    figures_say_where_they_were_measured,
    figures_have_titles,
    outputs_are_compared,
    prose_quotes_no_number_without_its_machine,
    predictions_are_checked,
    outputs_are_of_the_machines_that_measured,
)
CHAPTER = (
    reading_time,
    opening,
    imports_are_out_of_sight,
    first_screen,
    code_to_keep,
    numbers_of_the_box_are_paired,
    box_speaks_of_records,
    sections,
    exercises_have_solutions,
    sources,
    values_not_verdicts,
    cards_have_rows,
    visible_cells_are_short,
)
