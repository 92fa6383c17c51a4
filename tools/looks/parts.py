"""Parts of a page that are made as it is written: names of folds, the box of rules, no false links.

A fold without a name of its own is called by what is in it: "Show code cell source" says nothing.
"""

import ast
import re

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode


def fold_name(source: str, below: str) -> str:
    """Return what the code of a cell is: imports, a definition, or what makes the output below.

    Parameters
    ----------
    source : str
        The code; a comment in its first line is its name.
    below : str
        What it shows.
    """
    first = source.lstrip().partition("\n")[0]
    if found := re.match(r"#+ (\w.{3,70}?)[.:]?$", first):
        return f"Code: {found[1]}"
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a magic
        body = []
    if body and all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in body):
        return "The imports"
    defined = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    if defined:
        return f"Code: {', '.join(defined[:3])}{' …' if len(defined) > 3 else ''}"
    if body and all(isinstance(node, ast.Assert) for node in body):
        return "What is checked"
    if "in_short(" in source:
        return "Where the box's numbers come from"
    return f"The code of {below}"


def _below(fold: HideCodeCellNode) -> str:
    """What the cell of a fold shows."""
    # A fold around a whole cell holds its outputs, and has not been told its parent.
    around = fold.parent or fold
    outputs = [node for node in around if "cell_output" in node.get("classes", [])]
    for kind, name in ((nodes.image, "the figure"), (nodes.table, "the table")):
        if any(next(iter(node.findall(kind)), None) for node in outputs):
            return name
    html = " ".join(text.astext() for node in outputs for text in node.findall(nodes.raw))
    if "<table" in html:
        return "the predictions" if "prediction-card" in html else "the table"
    return "what is printed below" if outputs else "this section"


def finish_parts(_app, doctree: nodes.document, _docname: str) -> None:
    """Name the folds, box the rules, and unlink what only looks like an address."""
    for fold in list(doctree.findall(HideCodeCellNode)):
        if fold["prompt_show"].startswith("Show code cell "):
            source = next((block.astext() for block in fold.findall(nodes.literal_block)), "")
            is_code = "above-input" in fold["classes"]
            fold["prompt_show"] = name = (
                fold_name(source, _below(fold)) if is_code else "What it prints"
            )
            fold["prompt_hide"] = f"Hide {name[0].lower()}{name[1:]}"
    for cell in list(doctree.findall(nodes.container)):
        if cell.parent and (fold := _nothing_but_fold(cell)):
            _take_in_what_follows(cell, fold)
    for bold in list(doctree.findall(nodes.strong)):
        if bold.astext() == "In short" and bold.parent.astext().startswith("In short"):
            _box(bold.parent)
    for raw in list(doctree.findall(nodes.raw)):
        if "then-and-now" in raw.astext():  # code in narrow columns
            broken = re.sub(r"(?s)<(pre|code)>.+?</\1>", _with_breaks, raw.astext())
            raw.children = [nodes.Text(broken)]
    for link in list(doctree.findall(nodes.reference)):
        if link.get("refuri") == f"http://{link.astext()}":  # train.py is no host
            link.replace_self(link.children)


def _nothing_but_fold(cell: nodes.Node | None) -> HideCodeCellNode | None:
    """The fold of a cell that shows nothing else."""
    if isinstance(cell, nodes.container) and len(cell.children) == 1:
        return cell[0] if isinstance(cell[0], HideCodeCellNode) else None
    return None


def _take_in_what_follows(cell: nodes.container, fold: HideCodeCellNode) -> None:
    """Put the folded cells that follow a folded cell into its fold: one line instead of several."""
    names = [fold["prompt_show"]]
    while other := _nothing_but_fold(following := cell.next_node(descend=False, siblings=True)):
        following.parent.remove(following)
        following.children = []
        following.extend(other.children)
        fold += following
        names.append(other["prompt_show"])
    if len(names) > 1:
        said = (re.sub("^(Show|Code:) (more )?", "", name) for name in names)
        whole = "; ".join(dict.fromkeys(name.replace("The ", "the ", 1) for name in said))
        fold["prompt_show"], fold["prompt_hide"] = f"Show {whole}", f"Hide {whole}"


def _with_breaks(code: re.Match) -> str:
    """Code that may be broken after a bracket, a comma or an equals sign, and before a dot."""
    return re.sub(r"((?<=[(,=])|(?<=\w/))(?=[^\s(,=/])|(?<=[\w)])(?=\.[a-zA-Z])", "<wbr>", code[0])


def _box(start: nodes.paragraph) -> None:
    """Put a paragraph, and what follows it up to its list of rules, into a box."""
    around = start.parent
    place = around.index(start)
    rest = around[place:]
    lists = [i for i, node in enumerate(rest) if isinstance(node, nodes.bullet_list)]
    if lists:
        box = nodes.container("", *rest[: lists[0] + 1], classes=["in-short"])
        around[place : place + lists[0] + 1] = [box]
