"""Checks of every page: how it was run, its tags, figures, outputs, numbers and experiments."""

import ast
import builtins
import hashlib
import re
import symtable
from collections import Counter

from nbformat import NotebookNode

import captions
from notebooks import calls, calls_of, code_cells, experiments, has_figure, parsed, tags, texts
from utils.record.fingerprint import covered
from utils.record.notebooks import CLOSED, HIDDEN

# What every notebook begins with, written by tools/front.py; it may name the book's address.
GUARD = re.compile(r"try:\n    import utils\.brief .*?\) from None\n\n", re.DOTALL)
TAGS = {*HIDDEN, "hide-output", "keep", "sortable"}
TAGS |= {"nbval-ignore-output", "nbval-raises-exception"}
# Methods of lists, sets and dicts that change them.
CHANGING = {"append", "extend", "insert", "remove", "sort", "reverse", "add", "discard"}
CHANGING |= {"update", "setdefault", "pop", "popitem", "clear"}


def cells_were_run_in_order(notebook: NotebookNode) -> list[str]:
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


def cells_have_names(notebook: NotebookNode) -> list[str]:
    return [
        f"{name}: {times} cells have this id. Problems are reported by it: give each its own"
        for name, times in Counter(cell.id for cell in notebook.cells).items()
        if times > 1
    ]


def first_cell_names_the_book(notebook: NotebookNode) -> list[str]:
    first, *_ = code_cells(notebook)
    return [
        f"{first.id}: the first code cell does not begin with the lines that say where the book "
        "is. Who downloads this notebook alone reads \"No module named 'utils'\" and no more: "
        "run python tools/front.py, which writes them"
        for _ in range(not GUARD.match(first.source))
    ]


def no_cell_is_endless(notebook: NotebookNode) -> list[str]:
    return [
        f"{cell.id}: {source.count(chr(10)) + 1} lines, of 40 at most. Nobody reads further: "
        "split the cell"
        for cell in code_cells(notebook)
        for source in [GUARD.sub("", cell.source)]
        if source.count("\n") >= 40 and "keep" not in tags(cell)  # see code_to_keep
    ]


def tags_are_known(notebook: NotebookNode) -> list[str]:
    return [
        f"{cell.id}: nothing knows the tag {tag!r}, so it does nothing. Use one of "
        f"{', '.join(sorted(TAGS))}"
        for cell in notebook.cells
        for tag in tags(cell)
        if tag not in TAGS | {"nbval-skip"}  # which has a check of its own
    ]


def page_and_jupyterlab_hide_the_same(notebook: NotebookNode) -> list[str]:
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


def figures_have_alternative_text(notebook: NotebookNode) -> list[str]:
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


def figures_say_where_they_were_measured(notebook: NotebookNode) -> list[str]:
    return [
        f"{cell.id}: a figure that does not say where it was measured. Its numbers are of one "
        'machine: end the cell with show(fig, experiment.where), or show(fig, "drawing")'
        for cell in code_cells(notebook)
        if has_figure(cell) and not re.search(r"^show\(", cell.source, re.MULTILINE)
    ]


def figures_have_titles(notebook: NotebookNode) -> list[str]:
    titled = ("figure", "drawing", "timeline", "signature", "set_title", "suptitle")

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


def figures_have_captions(notebook: NotebookNode) -> list[str]:
    problems = []
    for cell in code_cells(notebook):
        pictures = sum("image/png" in output.get("data", {}) for output in cell.outputs)
        own = cell.metadata.get("mystnb", {}).get("caption", "")
        if None in captions.words(cell.source, pictures, own):
            problems.append(
                f"{cell.id}: the figure has no caption of its own, and its title is computed, so "
                "below it nothing says what it answers: write one or two sentences in the cell's "
                'metadata, "mystnb": {"caption": "…"}; the page adds the machine'
            )
        elif own and (len(own) < 30 or captions.sentence(own) != own or "easured on" in own):
            problems.append(
                f"{cell.id}: {own!r} is no caption. It says in one or two whole sentences what the "
                "figure answers, and the page adds the machine of the record"
            )
    return problems


def outputs_are_compared(notebook: NotebookNode) -> list[str]:
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


def prose_quotes_no_number_without_its_machine(notebook: NotebookNode) -> list[str]:
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


def predictions_are_checked(notebook: NotebookNode) -> list[str]:
    used: dict[str, set[str]] = {"predict": set(), "check": set()}
    for cell in code_cells(notebook):
        for name, call in calls(parsed(cell.source)):
            if name in used and isinstance(getattr(call.func, "value", None), ast.Name):
                used[name].add(call.func.value.id)
    return [
        f"{name}.predict(…) without {name}.check(…): a prediction without its measurement teaches "
        f"nothing. Call {name}.check(…) after the experiment"
        for name in sorted(used["predict"] - used["check"])
    ]


def outputs_are_of_the_machines_that_measured(notebook: NotebookNode) -> list[str]:
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


def is_said_of(machine: str, line: str) -> bool:
    """Whether a line of an output says that a result comes from this machine, and no more."""
    replayed = rf"replayed from \S+: {re.escape(machine)} \(.*\)"
    same = line in (f"live on {machine}", f"measured on {machine}")
    return same or bool(re.fullmatch(replayed, line))


def recorded_by_name(notebook: NotebookNode) -> set[str]:
    """The experiments whose records the cells ask for by name."""
    found = [c for cell in code_cells(notebook) for c in calls(parsed(cell.source))]
    return {c.args[0].value for name, c in found if name == "recorded" and _names(c)}


def _names(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant)


def experiments_use_only_what_their_hash_covers(notebook: NotebookNode) -> list[str]:
    allowed, problems = set(dir(builtins)), []
    for cell in code_cells(notebook):
        tree = parsed(cell.source)
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


def constants_changed_in_place(notebook: NotebookNode) -> dict[str, str]:
    """Each constant that an experiment uses and that is changed otherwise than by assigning it.

    The record's hash does not cover such statements, so each constant has a hash of theirs here.
    """
    texts: dict[str, str] = {}
    for cell in code_cells(notebook):
        for node in parsed(cell.source).body:
            for name in sorted(_changed_by(node)):
                text = ast.unparse(node)
                texts[name] = f"{texts.get(name, '')}{text}\n"
    measured = experiments(notebook).items() if texts else ()
    used = "\n".join(text for name, cells in measured for text in covered(name, cells))
    return {
        name: hashlib.sha256(text.encode()).hexdigest()[:8]
        for name, text in texts.items()
        if re.search(rf"\b{name}\b", used)
    }


def _changed_by(node: ast.stmt) -> set[str]:
    """The constants that a statement of a cell changes, or may bind, but does not just assign."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
        return set()
    found = set()
    for part in ast.walk(node):
        called = getattr(part, "func", None)
        if isinstance(called, ast.Attribute) and called.attr in CHANGING:
            found.add(_root(called))
        elif isinstance(part, ast.Attribute | ast.Subscript) and not _is_read(part):
            found.add(_root(part))
        elif isinstance(part, ast.Name) and not _is_read(part):
            found.add("" if isinstance(node, ast.Assign | ast.AnnAssign) else part.id)
    return {name for name in found if name.isupper()}


def _is_read(part: ast.Name | ast.Attribute | ast.Subscript) -> bool:
    return isinstance(part.ctx, ast.Load)


def _root(part: ast.expr) -> str:
    """``"SIZES"`` of ``SIZES["all"][0].shape``."""
    while isinstance(part, ast.Attribute | ast.Subscript):
        part = part.value
    return part.id if isinstance(part, ast.Name) else ""


def _scopes(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    return [table, *(scope for child in table.get_children() for scope in _scopes(child))]
