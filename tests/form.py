"""The form of the notebooks: each check takes a notebook and yields what is wrong with it.

``PAGE`` holds for every page, ``CHAPTER`` for chapters. A message says what is wrong and what to
do; why it matters stands above the check. The records are looked at in test_form.py.
"""

import ast
import builtins
import copy
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
from utils.record.notebooks import HIDDEN, is_visible, lines, minutes, stated_minutes, tidy

TAGS = {*HIDDEN, "hide-output", "keep", "sortable"}
TAGS |= {"nbval-ignore-output", "nbval-raises-exception", "skip-execution"}
LAST = ["Pitfalls", "Exercises", "What to read next", "Sources"]
# Measured before their code was cut into readable pieces; recorded again, they leave the list.
LONG = (
    "gpu-experiment",
    "three-experiment",
    "harm-def",
    "stalls-def",
    "large-experiment",
    "never-experiment",
    "lean-front",
    "lean-race",
)
Problems = Iterator[str]


# --- every page ----------------------------------------------------------------------------------


def cells_were_run_in_order(notebook: NotebookNode) -> Problems:
    """Or outputs may not belong to the code above them. No page shows a warning by accident."""
    cells = [cell for cell in code_cells(notebook) if cell.source.strip()]
    for cell in cells:
        for output in cell.outputs:
            is_meant = "nbval-raises-exception" in tags(cell) or output.output_type != "error"
            if not is_meant or output.get("name") == "stderr":
                said = f"{cell.id}: stored {output.output_type} {output.get('name', '')}"
                yield f"{said}: repair the cell, or tag an error nbval-raises-exception"
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        yield "the cells were not run once each in their order: run python -m utils.record"


def tags_are_known(notebook: NotebookNode) -> Problems:
    """A tag that nothing knows does nothing, or hides a cell from the tests."""
    for cell in notebook.cells:
        for tag in set(tags(cell)) - TAGS:
            yield f"{cell.id}: nothing knows the tag {tag!r}: use one of {sorted(TAGS)}"


def page_and_jupyterlab_hide_the_same(notebook: NotebookNode) -> Problems:
    """JupyterLab knows no hide-tags: without metadata a solution stands open there."""
    for cell in notebook.cells:
        tidied = NotebookNode(metadata=copy.deepcopy(cell.metadata))
        tidy(NotebookNode(cells=[tidied]))
        if cell.metadata != tidied.metadata:
            have, want = cell.metadata.get("jupyter"), tidied.metadata.get("jupyter")
            yield f"{cell.id}: its metadata hide {have}, its tags {want}: run utils.record"


def figures_have_alternative_text(notebook: NotebookNode) -> Problems:
    """Who cannot see a figure hears it: 30 characters or more say what it shows."""
    what = "has no alternative text of 30 characters or more: write it"
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for image in re.findall(r"!\[.{0,29}\]\([^)]*\)", cell.source):
                yield f"{cell.id}: {image} {what} as ![text](file)"
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if pictures(cell) and len(alt) < 30:
            yield f'{cell.id}: the figure {what} as metadata, "mystnb": {{"image": {{"alt": "…"}}}}'


def figures_have_captions(notebook: NotebookNode) -> Problems:
    """One or two whole sentences say what a figure answers; the page adds the machine."""
    for cell in code_cells(notebook):
        own = cell.metadata.get("mystnb", {}).get("caption", "")
        if not all(captions.words(cell.source, pictures(cell), own)):
            said = f"{cell.id}: the figure has no caption, and its title is computed or missing"
            yield f'{said}: write the caption as metadata, "mystnb": {{"caption": "…"}}'
        elif own and (len(own) < 30 or captions.sentence(own) != own or "easured on" in own):
            yield f"{cell.id}: {own!r} is no caption: write whole sentences, without the machine"


def outputs_are_compared(notebook: NotebookNode) -> Problems:
    cells = code_cells(notebook)
    ignored = [cell.id for cell in cells if "nbval-ignore-output" in tags(cell)]
    for cell in cells:
        if "NBVAL" in cell.source:
            yield f"{cell.id}: a comment that nbval takes for a tag: take it out"
    if len(ignored) > len(cells) / 5:
        said = f"{', '.join(ignored)}: nbval-ignore-output in more than a fifth of the cells"
        yield f"{said}: take times from records, or print what does not vary"


# A number that only some machine gives. Limits of a named link or card may be quoted beside it.
MEASURED = re.compile(
    r"\d[\d.,]*\s?(?:ns|µs|us|ms|s|seconds?|GB/s|TB/s|MB/s|TFLOP/s|images/s|x faster|× faster|"
    r"times (?:faster|slower))(?![\w/])"
)
MACHINE = re.compile(
    r"\b(?:[HABVLT]\d{1,3}0?S?|RTX|PCIe|HBM\d?|NVLink|datasheet|Xeon|EPYC|GTX|GB\d{3})\b"
)


def prose_quotes_no_number_without_its_machine(notebook: NotebookNode) -> Problems:
    """But the box, whose numbers are paired with results, and the line "reads in …".

    Another machine gives another number.
    """
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for paragraph in cell.source.split("**In short**")[0].split("\n\n"):
                if MACHINE.search(paragraph) or re.search(r"\*\*Time\*\*|^\*reads in", paragraph):
                    continue
                prose = re.sub(r"`[^`]*`|\([^)]*http[^)]*\)", "", paragraph)
                for match in MEASURED.finditer(prose):
                    said = f"{cell.id}: {match[0]!r} in {paragraph[:90]!r}"
                    yield f"{said}: name the machine in this paragraph, or let a cell print it"


def experiments_use_only_what_their_hash_covers(notebook: NotebookNode) -> Problems:
    """Imports, builtins, and the notebook's functions, classes and ALL_CAPS constants.

    The record's hash does not cover another variable's value: a change would go unnoticed.
    """
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
                said = f"{name} uses {variable}, a variable that its hash leaves out"
                yield f"{said}: compute it inside, or make it an ALL_CAPS constant"


def _scopes(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    return [table, *(scope for child in table.get_children() for scope in _scopes(child))]


# --- a chapter's first screen --------------------------------------------------------------------


def title(notebook: NotebookNode, name: str) -> Problems:
    """``name`` is the file's, such as 15_transfers: chapter 15, or 1.5."""
    cell, numbers = notebook.cells[0], {str(int(name[:2])), f"{name[0]}.{name[1]}"}
    found = re.match(r"# ([\d.]+) · \S", cell.source)
    if not found or found[1] not in numbers:
        said = f"{cell.id}: the chapter does not begin with its number, its place in the book"
        yield f"{said}: # {min(numbers, key=len)} · Title"
    line = r"^\*reads in \d+ min · runs in \S.* · measured on \S.*\*$"
    if not re.search(line, cell.source, re.MULTILINE):
        line = "*reads in 30 min · runs in 10 s on a CPU · measured on one H100*"
        yield f"{cell.id}: a reader wants to know what the chapter takes: write the line {line}"


def reading_time(notebook: NotebookNode) -> Problems:
    computed, stated = round(minutes(notebook)), stated_minutes(notebook)
    most = 12 if is_quickstart(notebook) else 40
    if computed > most:
        said = f"the chapter takes {computed} minutes, of {most} at most"
        yield f"{said}: cut what repeats, link or collapse what only proves, or split it"
    if stated is not None and stated != computed:
        yield f"the first cell says {stated} minutes, utils.record {computed}: write the latter"


def first_screen(notebook: NotebookNode) -> Problems:
    """Who reads no further has the chapter's use: a figure, the rules, the code to keep."""
    first, *_ = code_cells(notebook)
    imports = any(isinstance(n, ast.Import | ast.ImportFrom) for n in parsed(first.source).body)
    for there, what in (
        ("hide-input" in tags(first), "the tag hide-input"),
        (imports, "the imports"),
        (pictures(first), "the output of a figure"),
    ):
        if not there:
            yield f"{first.id}: the first code cell lacks {what}: draw the chapter's figure there"
    if box(notebook) is None:
        yield "no markdown cell says **In short**: write four to seven rules, each with its number"
        return
    (at, rules), cells = box(notebook), notebook.cells
    items = re.findall(r"^(?:[-*+]|\d+[.)]) ", rules, re.MULTILINE)
    if not 4 <= len(items) <= 7:
        yield f"{cells[at].id}: {len(items)} rules under **In short**, of four to seven"
    end = min([8, *(i for i, cell in enumerate(cells) if headings(cell))])
    before = cells[at:end]
    if not any("**The code to keep**" in cell.source for cell in before[:3]) or not any(
        "keep" in tags(cell) for cell in before
    ):
        said = "**The code to keep**, and a cell tagged keep, do not follow the rules before"
        yield f"{cells[at].id}: {said} the first heading ## within the first 8 cells: move it up"


def code_to_keep(notebook: NotebookNode) -> Problems:
    """Readers paste what they can read at a glance, without this book, and see that it works."""
    most = 62 if is_quickstart(notebook) else 25
    for cell in keep_cells(notebook):
        if (length := code_lines(cell.source)) > most:
            yield f"{cell.id}: {length} lines of code to keep, of {most} at most: shorten it"
        if re.search(r"^\s*(?:from|import) utils\b", cell.source, re.MULTILINE):
            yield f"{cell.id}: the code to keep imports utils: write out what it needs"
        if not any(text.strip() for text in texts(cell)):
            yield f"{cell.id}: the code to keep stores no output: let it print its result"
        if set(tags(cell)) & set(HIDDEN):
            yield f"{cell.id}: the code to keep is collapsed: remove the tag that hides it"


def numbers_of_the_box_are_paired(notebook: NotebookNode) -> Problems:
    """Or the box would drift from the results, in a dict in braces that the last cell holds.

    Whether the values are right is checked by ``in_short`` itself, when the cell is run.
    """
    if box(notebook) is None:
        return
    last = code_cells(notebook)[-1]
    steps = [s for s in parsed(last.source).body if isinstance(s, ast.Assign)]
    named = {ast.unparse(target): step.value for step in steps for target in step.targets}
    given = [c.args[0] for n, c in calls(parsed(last.source)) if n == "in_short" and c.args]
    given = [named.get(ast.unparse(pairs), pairs) for pairs in given]
    if "hide-cell" not in tags(last) or not given or not isinstance(given[0], ast.Dict):
        said = f"{last.id}: the last code cell pairs the numbers of the box with results"
        yield f'{said}: write in_short({{"55 GB/s": …}}), a dict in braces, and tag it hide-cell'
        return
    text, left = _plain(box(notebook)[1]), Counter(numbers_in(box(notebook)[1]))
    for key in (getattr(key, "value", None) for key in given[0].keys):
        key = _plain(key) if isinstance(key, str) else ""
        times = len(re.findall(rf"(?<!\d)(?<!\d[.,]){re.escape(key)}(?!\d|[.,]\d)", text))
        if not re.search(r"\d", key) or not times:
            yield f"{last.id}: {key!r} is no text of the box with a number in it: copy words of it"
        left -= Counter({number: n * times for number, n in Counter(numbers_in(key)).items()})
    for number in left:
        yield f"{last.id}: the number {number} of the box is paired with nothing: add it"


def box_speaks_of_records(notebook: NotebookNode) -> Problems:
    """The last cell must not use what an experiment returned in an earlier one, nor what follows.

    The box tells of the reference machine: on another GPU the page would fail.
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
        said = f"{last.id}: {name} is what this machine measured ({live[name]})"
        yield f"{said}, not the reference machine: take it from recorded(…).result"


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
        said = f"{len(before)} sections ({', '.join(before)}) before ## {last[0]}"
        yield f"{said}, where {least} to {most} fit into the time: join, split or move them"
    if found[len(before) :] != last:
        said = f"the headings ## are {', '.join(found)}. Every chapter ends alike"
        yield f"{said}: {', '.join(last)}, in this order, once each"


def exercises_have_solutions(notebook: NotebookNode) -> Problems:
    found = exercises(notebook)
    if is_quickstart(notebook):
        return
    if not 3 <= len(found) <= 5:
        yield f"{len(found)} exercises (:::{{admonition}} Exercise 1: …), of three to five"
    for text, solutions in found:
        if not solutions:
            said = f"{text.splitlines()[0]!r} has no solution"
            yield f"{said}: put a code cell tagged hide-cell behind it"
    if not any("assert " in s.source for _, solutions in found for s in solutions):
        yield "no solution checks itself, so nothing shows that one is right: add an assert"


def visible_cells_are_short(notebook: NotebookNode) -> Problems:
    """A cell is read at a glance."""
    for cell in code_cells(notebook):
        if "keep" in tags(cell) or cell.id in LONG:  # see code_to_keep
            continue
        if is_visible(cell) and (length := len(lines(cell.source))) > 25:
            yield f"{cell.id}: {length} visible lines, of 25 at most: split it, or collapse a part"


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
