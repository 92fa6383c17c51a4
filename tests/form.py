"""The form of the notebooks: each check takes a notebook and yields what is wrong with it.

``PAGE`` holds for every page, ``CHAPTER`` for chapters. A message says what is wrong, why that
matters, and what to do. The records are looked at in test_form.py.
"""

import ast
import builtins
import re
import symtable
from collections import Counter
from collections.abc import Iterator

from nbformat import NotebookNode

import captions
from notebooks import (
    box,
    calls,
    cards,
    code_cells,
    code_lines,
    exercises,
    experiments,
    headings,
    is_quickstart,
    keep_cells,
    parsed,
    pictures,
    tags,
    texts,
)
from utils.cards import numbers_in
from utils.record.notebooks import CLOSED, HIDDEN, is_visible, lines, minutes, stated_minutes

TAGS = {*HIDDEN, "hide-output", "keep", "sortable"}
TAGS |= {"nbval-ignore-output", "nbval-raises-exception"}
LAST = ["Pitfalls", "Exercises", "What to read next", "Sources"]
# Measured before their code was cut into readable pieces; recorded again, they leave the list.
LONG = ("gpu-experiment", "three-experiment")
Problems = Iterator[str]


# --- every page ----------------------------------------------------------------------------------


def cells_were_run_in_order(notebook: NotebookNode) -> Problems:
    cells = [cell for cell in code_cells(notebook) if cell.source.strip()]
    for cell in cells:
        for output in cell.outputs:
            is_meant = "nbval-raises-exception" in tags(cell) or output.output_type != "error"
            if not is_meant or output.get("name") == "stderr":
                yield (
                    f"{cell.id}: stored {output.output_type} {output.get('name', '')}. A page "
                    "shows only what it means to show: repair the cell, or tag an error that is "
                    "meant nbval-raises-exception"
                )
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        yield (
            "the cells were not run once each from the first to the last, so the outputs may not "
            "belong to this code: run them with python -m utils.record"
        )


def tags_are_known(notebook: NotebookNode) -> Problems:
    for cell in notebook.cells:
        for tag in set(tags(cell)) - TAGS:
            yield (
                f"{cell.id}: nothing knows the tag {tag!r}, so it does nothing, or hides a cell "
                f"from the tests. Use one of {', '.join(sorted(TAGS))}"
            )


def page_and_jupyterlab_hide_the_same(notebook: NotebookNode) -> Problems:
    for cell in notebook.cells:
        hiding = [tag for tag in tags(cell) if tag in HIDDEN]
        want = {"source_hidden": True} if hiding else {}
        if set(CLOSED) & set(hiding):
            want["outputs_hidden"] = True
        said = cell.metadata.get("jupyter", {})
        have = {key: said[key] for key in ("source_hidden", "outputs_hidden") if key in said}
        if have != want:
            yield (
                f"{cell.id}: with {f'the tag {hiding[0]}' if hiding else 'no tag that hides it'} "
                f'the cell\'s metadata say "jupyter": {have or "nothing"}. JupyterLab knows no '
                f"hide-tags, so a solution stands open or a lesson is folded there: write "
                f"{want or 'nothing'}, as python -m utils.record does"
            )


def figures_have_alternative_text(notebook: NotebookNode) -> Problems:
    why = (
        "has no alternative text, or a short one. Who cannot see the figure hears this text, so it "
        "says in at least 30 characters what the figure shows"
    )
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for image in re.findall(r"!\[.{0,29}\]\([^)]*\)", cell.source):
                yield f"{cell.id}: {image} {why}: ![text](file)"
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if pictures(cell) and len(alt) < 30:
            yield (
                f"{cell.id}: the figure {why}: write it in the cell's metadata, "
                '"mystnb": {"image": {"alt": "…"}}'
            )


def figures_have_captions(notebook: NotebookNode) -> Problems:
    for cell in code_cells(notebook):
        own = cell.metadata.get("mystnb", {}).get("caption", "")
        if not all(captions.words(cell.source, pictures(cell), own)):
            yield (
                f"{cell.id}: the figure has no caption of its own, and its title is computed, or "
                "there is none, so below it nothing says what it answers: write one or two "
                'sentences in the cell\'s metadata, "mystnb": {"caption": "…"}; the page adds the '
                "machine"
            )
        elif own and (len(own) < 30 or captions.sentence(own) != own or "easured on" in own):
            yield (
                f"{cell.id}: {own!r} is no caption. It says in one or two whole sentences what the "
                "figure answers, and the page adds the machine of the record"
            )


def outputs_are_compared(notebook: NotebookNode) -> Problems:
    cells = code_cells(notebook)
    ignored = [cell.id for cell in cells if "nbval-ignore-output" in tags(cell)]
    for cell in cells:
        if "NBVAL" in cell.source:
            yield (
                f"{cell.id}: a comment that nbval takes for a tag. A cell that no test runs is not "
                "known to work: take it out"
            )
    if len(ignored) > len(cells) / 5:
        yield (
            f"{', '.join(ignored)}: nbval-ignore-output in more than a fifth of the cells, so that "
            "much is not tested. Take times from records, or print what does not vary"
        )


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
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for paragraph in cell.source.split("**In short**")[0].split("\n\n"):
                if MACHINE.search(paragraph) or re.search(r"\*\*Time\*\*|^\*reads in", paragraph):
                    continue
                prose = re.sub(r"`[^`]*`|\([^)]*http[^)]*\)", "", paragraph)
                for match in MEASURED.finditer(prose):
                    yield (
                        f"{cell.id}: {match[0]!r} in {paragraph[:90]!r}. Another machine gives "
                        "another number: name the machine in this paragraph, or let a cell print "
                        "the number"
                    )


def experiments_use_only_what_their_hash_covers(notebook: NotebookNode) -> Problems:
    allowed = set(dir(builtins))
    for cell in code_cells(notebook):
        for node in ast.walk(parsed(cell.source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                allowed |= {(a.asname or a.name).split(".")[0] for a in node.names}
        for node in parsed(cell.source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                allowed.add(node.name)
    for name, sources in experiments(notebook).items():
        table = symtable.symtable(sources[-1], name, "exec")
        function = next(t for t in table.get_children() if t.get_name() == name)
        symbols = [symbol for scope in _scopes(function) for symbol in scope.get_symbols()]
        used = {symbol.get_name() for symbol in symbols if symbol.is_global()}
        for variable in sorted(used - allowed):
            if not variable.isupper():
                yield (
                    f"{name} uses {variable}, a variable of the notebook. The record's hash does "
                    "not cover its value, so a change of it would go unnoticed. An experiment may "
                    "use imports, builtins, and the notebook's functions, classes and ALL_CAPS "
                    f"constants: compute {variable} inside, or make it a constant"
                )


def _scopes(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    return [table, *(scope for child in table.get_children() for scope in _scopes(child))]


# --- a chapter's first screen --------------------------------------------------------------------


def title(notebook: NotebookNode, name: str) -> Problems:
    """``name`` is the file's, such as 15_transfers: chapter 15, or 1.5."""
    cell, numbers = notebook.cells[0], {str(int(name[:2])), f"{name[0]}.{name[1]}"}
    found = re.match(r"# ([\d.]+) · \S", cell.source)
    if not found or found[1] not in numbers:
        yield (
            f"{cell.id}: the chapter does not begin with its number, which is its place in the "
            f"book and in the file's name: # {min(numbers, key=len)} · Title"
        )
    line = r"^\*reads in \d+ min · runs in \S.* · measured on \S.*\*$"
    if not re.search(line, cell.source, re.MULTILINE):
        yield (
            f"{cell.id}: a reader wants to know what the chapter takes: write the line "
            "*reads in 30 min · runs in 10 s on a CPU · measured on one H100*"
        )


def reading_time(notebook: NotebookNode) -> Problems:
    computed, stated = round(minutes(notebook)), stated_minutes(notebook)
    most = 12 if is_quickstart(notebook) else 40
    if computed > most:
        yield (
            f"the chapter takes {computed} minutes, of {most} at most, and few read on. Cut what "
            "repeats, link what another chapter shows, collapse what only proves, or split it"
        )
    if stated is not None and stated != computed:
        yield (
            f"the first cell says {stated} minutes, the formula of utils.record {computed}. "
            "The line is a promise: write the computed number, as python -m utils.record does"
        )


def first_screen(notebook: NotebookNode) -> Problems:
    first, *_ = code_cells(notebook)
    imports = any(isinstance(n, ast.Import | ast.ImportFrom) for n in parsed(first.source).body)
    for there, what in (
        ("hide-input" in tags(first), "the tag hide-input"),
        (imports, "the imports"),
        (pictures(first), "the output of a figure"),
    ):
        if not there:
            yield (
                f"{first.id}: the first code cell lacks {what}. It draws the figure that says what "
                "the chapter is about, and keeps the imports out of sight: put both there, and "
                "collapse it"
            )
    if box(notebook) is None:
        yield (
            "no markdown cell says **In short**. Who reads only the first screen gets the use of "
            "the chapter there: write four to seven rules, each with its number"
        )
        return
    (at, rules), cells = box(notebook), notebook.cells
    items = re.findall(r"^(?:[-*+]|\d+[.)]) ", rules, re.MULTILINE)
    if not 4 <= len(items) <= 7:
        yield (
            f"{cells[at].id}: {len(items)} rules under **In short**. Four to seven can be kept in "
            "mind: one list item a rule, one rule a section"
        )
    end = min([8, *(i for i, cell in enumerate(cells) if headings(cell))])
    before = cells[at:end]
    if not any("**The code to keep**" in cell.source for cell in before[:3]) or not any(
        "keep" in tags(cell) for cell in before
    ):
        yield (
            f"{cells[at].id}: **The code to keep**, and a cell tagged keep, do not follow the "
            "rules before the first heading ## and within the first 8 cells. Who has a problem "
            "copies it from the first screen: move it up, or tag it"
        )


def code_to_keep(notebook: NotebookNode) -> Problems:
    most = 60 if is_quickstart(notebook) else 25
    for cell in keep_cells(notebook):
        if code_lines(cell.source) > most:
            yield (
                f"{cell.id}: {code_lines(cell.source)} lines of code to keep, of {most} at most. "
                "Nobody pastes what they cannot read at a glance: shorten it"
            )
        if re.search(r"^\s*(?:from|import) utils\b", cell.source, re.MULTILINE):
            yield (
                f"{cell.id}: the code to keep imports utils, which a reader who pastes it does not "
                "have: write out what it needs"
            )
        if not any(text.strip() for text in texts(cell)):
            yield (
                f"{cell.id}: the code to keep stores no output, so neither reader nor test sees "
                "that it works: let it print its result, and record the notebook"
            )
        if set(tags(cell)) & set(HIDDEN):
            yield (
                f"{cell.id}: the code to keep is collapsed, and it is what many come for: remove "
                "the tag that hides it"
            )


def numbers_of_the_box_are_paired(notebook: NotebookNode) -> Problems:
    """Whether the values are right is checked by ``in_short`` itself, when the cell is run."""
    if box(notebook) is None:
        return
    last = code_cells(notebook)[-1]
    steps = [s for s in parsed(last.source).body if isinstance(s, ast.Assign)]
    named = {ast.unparse(target): step.value for step in steps for target in step.targets}
    given = [c.args[0] for n, c in calls(parsed(last.source)) if n == "in_short" and c.args]
    given = [named.get(ast.unparse(pairs), pairs) for pairs in given]
    if "hide-cell" not in tags(last) or not given or not isinstance(given[0], ast.Dict):
        yield (
            f"{last.id}: the last code cell pairs the numbers of the box **In short** with "
            'results, or the box would drift from them: write in_short({"55 GB/s": …}) there, with '
            "a dict in braces, and tag the cell hide-cell"
        )
        return
    text, left = _plain(box(notebook)[1]), Counter(numbers_in(box(notebook)[1]))
    for key in (getattr(key, "value", None) for key in given[0].keys):
        key = _plain(key) if isinstance(key, str) else ""
        times = len(re.findall(rf"(?<!\d)(?<!\d[.,]){re.escape(key)}(?!\d|[.,]\d)", text))
        if not re.search(r"\d", key) or not times:
            yield (
                f"{last.id}: {key!r} is no text of the box with a number in it, so it guards "
                "nothing: copy the words from **In short**, as they stand there"
            )
        left -= Counter({number: n * times for number, n in Counter(numbers_in(key)).items()})
    for number in left:
        yield (
            f"{last.id}: the number {number} of the box **In short** is paired with nothing, so "
            "nothing notices when it is no longer true: add it, with the words beside it, to "
            "in_short"
        )


def box_speaks_of_records(notebook: NotebookNode) -> Problems:
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
    for name in sorted(_free(parsed(last.source)) & live.keys()):
        yield (
            f"{last.id}: {name} is what this machine measured ({live[name]}), and the box tells of "
            "the reference machine: on another GPU the page would fail. Take it from "
            "recorded(…).result"
        )


def _stored(node: ast.AST) -> set[str]:
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    arguments = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    return arguments | {n.id for n in names if isinstance(n.ctx, ast.Store)}


def _free(node: ast.AST) -> set[str]:
    """The names that ``node`` takes from outside, but for those that it also sets."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - _stored(node)


def _plain(markdown: str) -> str:
    """As it is read: without emphasis, backticks and addresses of links, and on one line."""
    text = re.sub(r"\]\([^)]*\)|[\[\]*`]|(?<!\w)_|_(?!\w)", "", markdown)
    return " ".join(text.split())


# --- what follows --------------------------------------------------------------------------------


def sections(notebook: NotebookNode) -> Problems:
    found = [heading for cell in notebook.cells for heading in headings(cell)]
    least, most, last = (2, 3, LAST[2:]) if is_quickstart(notebook) else (3, 6, LAST)
    before = [heading for heading in found if heading not in LAST]
    if not least <= len(before) <= most:
        yield (
            f"{len(before)} sections ({', '.join(before)}) before ## {last[0]}, where {least} to "
            f"{most} fit into the time, each earning a rule of the box: join, split or move them"
        )
    if found[len(before) :] != last:
        yield (
            f"the headings ## are {', '.join(found)}. Every chapter ends alike, so that readers "
            f"find their way: {', '.join(last)}, in this order, once each"
        )


def exercises_have_solutions(notebook: NotebookNode) -> Problems:
    found = exercises(notebook)
    if is_quickstart(notebook):
        return
    if not 3 <= len(found) <= 5:
        yield (
            f"{len(found)} exercises (:::{{admonition}} Exercise 1: …) under ## Exercises. Three "
            "to five are an evening's work: add or drop some"
        )
    for text, solutions in found:
        if not solutions:
            yield (
                f"{text.splitlines()[0]!r} has no solution, and who is stuck needs one: put a code "
                "cell tagged hide-cell behind it"
            )
    if not any("assert " in s.source for _, solutions in found for s in solutions):
        yield "no solution checks itself, so nothing shows that one is right: add an assert"


def visible_cells_are_short(notebook: NotebookNode) -> Problems:
    for cell in code_cells(notebook):
        if "keep" in tags(cell) or cell.id in LONG:  # see code_to_keep
            continue
        if is_visible(cell) and len(lines(cell.source)) > 25:
            yield (
                f"{cell.id}: {len(lines(cell.source))} visible lines, of 25 at most. A cell is "
                "read at a glance: split it, or move what is not the lesson to a collapsed cell"
            )


PAGE = (
    cells_were_run_in_order,
    tags_are_known,
    page_and_jupyterlab_hide_the_same,
    figures_have_alternative_text,
    figures_have_captions,
    outputs_are_compared,
    prose_quotes_no_number_without_its_machine,
    experiments_use_only_what_their_hash_covers,
)
CHAPTER = (
    reading_time,
    first_screen,
    code_to_keep,
    numbers_of_the_box_are_paired,
    box_speaks_of_records,
    sections,
    exercises_have_solutions,
    visible_cells_are_short,
)


def problems(notebook: NotebookNode, name: str) -> Problems:
    """All that is wrong with a page, the file of which has this name, such as 15_transfers."""
    for check in PAGE:
        yield from check(notebook)
    if name[0].isdigit():
        yield from title(notebook, name)
        for check in CHAPTER:
            yield from check(notebook)


# --- beside the records --------------------------------------------------------------------------


def shows_pair(notebook: NotebookNode, quantity: str, predicted: str, measured: str) -> bool:
    """Whether a card, or a table of the first edition, sets ``measured`` beside ``predicted``."""
    values = (rf".*?(?<![\d.,]){re.escape(value)}\s" for value in (predicted, measured))
    row = rf"(later: )?{re.escape(quantity)}\s{''.join(values)}"
    rows = [line for c in code_cells(notebook) for card in cards(c) for line in card]
    table = " | ".join([quantity, predicted, measured])
    shown = (text for cell in code_cells(notebook) for text in texts(cell))
    return any(re.match(row, line) for line in rows) or any(table in text for text in shown)


def recorded_by_name(notebook: NotebookNode) -> set[str]:
    """The experiments whose records the cells ask for by name."""
    found = [c for cell in code_cells(notebook) for c in calls(parsed(cell.source))]
    named = [call.args[0] for name, call in found if name == "recorded" and call.args]
    return {argument.value for argument in named if isinstance(argument, ast.Constant)}


def first_words(notebook: NotebookNode) -> str:
    """Title, what it was measured on, and the box; without code."""
    shown = f"{notebook.cells[0].source}\n{(box(notebook) or (0, ''))[1]}"
    return re.sub(r"`[^`]*`", "", shown)


def cards_in(words: str) -> set[str]:
    """The names of cards, such as H100 and L40S, in some words."""
    return set(re.findall(r"\b([A-Z]{1,2}\d{2,3}S?)s?\b", words)) - {"TF32"}
