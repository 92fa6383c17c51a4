"""Number the figures of a chapter, and write below each what it answers, and the machine.

Both stand in the picture, where no search and no screen reader finds them. The words are a cell's
own, ``"mystnb": {"caption": "…"}`` in its metadata, or else the title that its code gives the
figure; where a title is computed, only the cell's own words can say it. The machine is that of the
record whose ``where`` the cell shows, so neither drifts from what was measured.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# The calls that are given a figure's title, and the place of it among their arguments.
TITLE = {"figure": 0, "drawing": 0, "suptitle": 0, "timeline": 1}
COUNTS = {1: "one", 2: "two", 3: "three", 4: "four", 8: "eight"}


def titles(source: str) -> list[str | None]:
    """Return the title of each figure that a cell draws; None where only running it would tell."""
    found, named = [], _named(source, _text)
    for name, call in _calls(source):
        place = TITLE.get(name, len(call.args))
        if place < len(call.args):
            title = _text(call.args[place]) or named.get(getattr(call.args[place], "id", ""))
            if title is not None or name != "timeline":  # it also draws into a figure
                found.append(title)
    return found


def _text(value: ast.expr) -> str | None:
    text = getattr(value, "value", None)
    return text if isinstance(text, str) else None


def words(source: str, pictures: int, own: str = "") -> list[str | None]:
    """Return what each of a cell's pictures answers; None for one of which nothing says it.

    Parameters
    ----------
    source : str
        The code of the cell.
    pictures : int
        How many the cell shows.
    own : str
        The caption in the cell's metadata, which is that of a single picture.
    """
    if own and pictures == 1:
        return [own]
    named = titles(source)
    return named if len(named) == pictures else [None] * pictures


def origins(source: str, before: Iterable[str] = ()) -> list[str]:
    """Return where each ``show`` of a cell says that its figure comes from.

    Parameters
    ----------
    source : str
        The code of the cell.
    before : iterable of str
        That of the cells above, where a record may have been given a name.

    Returns
    -------
    list of str
        A text as it stands there, "drawing"; or ``record:name`` for an experiment's ``where``.
    """
    records = {}
    for text in (*before, source):
        records |= _named(text, _recorded)
    found = []
    for name, call in _calls(source):
        if name == "show" and len(call.args) == 2:
            said = call.args[1]
            if isinstance(said, ast.Attribute):
                variable = getattr(said.value, "id", "")
                record = _recorded(said.value) or records.get(variable, variable)
                found.append(f"record:{record}")
            else:
                found.append(str(getattr(said, "value", "")))
    return found


def machine(origin: str, records: Path) -> str:
    """Return a sentence on where a figure comes from; nothing if its record is still to come."""
    kind, _, name = origin.partition(":")
    if kind != "record":
        computed = origin.startswith(("drawing", "computed"))
        return f"{origin[0].upper()}{origin[1:]}." if computed else f"Measured on {origin}."
    file = records / f"{name}.json"
    if not file.exists():
        return ""
    provenance = json.loads(file.read_text(encoding="utf-8"))["provenance"]
    count, gpu = provenance["gpu_count"], provenance["gpu"]
    if not gpu:
        return f"Measured on {provenance['cpu']}."
    card = re.sub(r"^NVIDIA (GeForce )?|[ -]\d+GB.*$", "", gpu)
    return f"Measured on {COUNTS.get(count, count)} {card}{'s' * (count > 1)}."


@functools.cache  # every figure asks for all the cells above it
def _tree(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:  # a magic
        return ast.Module([], [])


def _calls(source: str) -> list[tuple[str, ast.Call]]:
    """Return the calls of a cell in their order, each with its name."""
    calls = [node for node in ast.walk(_tree(source)) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    return [(getattr(c.func, "id", getattr(c.func, "attr", "")), c) for c in calls]


def _recorded(node: ast.expr) -> str:
    """Return the name in ``recorded("name")``; an empty text for any other expression."""
    is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "recorded"
    return str(getattr(node.args[0], "value", "")) if is_call and node.args else ""


def _named(source: str, read: Callable[[ast.expr], str | None]) -> dict[str, str]:
    """Return the variables that a cell assigns something to that can be read from its code."""
    found = {}
    for node in _tree(source).body:
        if isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(node.targets[0].elts, node.value.elts, strict=False)
            found |= {t.id: read(value) for t, value in pairs if isinstance(t, ast.Name)}
    return {variable: text for variable, text in found.items() if text}


def add_captions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make a figure with a number and a caption of each picture that a cell shows."""
    heading = next(doctree.findall(nodes.title), None)
    chapter = re.match(r"\d+(?:\.\d+)?(?= · )", heading.astext() if heading else "")
    records = Path(app.srcdir, "book", "records")
    number, before = 0, []
    for cell in list(doctree.findall(_is_cell)):
        pictures = [image for image in cell.findall(nodes.image) if _is_output(image)]
        source = next((block.astext() for block in cell.findall(nodes.literal_block)), "")
        own = cell.get("cell_metadata", {}).get("mystnb", {}).get("caption", "")
        found = origins(source, before) if pictures else []
        said = [machine(origin, records) for origin in found]
        before.append(source)
        if len(said) != len(pictures):
            said = [""] * len(pictures)
        answers = words(source, len(pictures), own)
        for picture, answer, where in zip(pictures, answers, said, strict=True):
            number += 1
            label = f"Figure {chapter[0]}.{number}" if chapter else f"Figure {number}"
            text = f" {sentence(answer)} {where}".rstrip() if answer else f" {where}"
            caption = nodes.caption("", "", nodes.strong("", label), nodes.Text(text))
            figure = nodes.figure("", ids=[f"figure-{number}"], classes=["measured"])
            picture.replace_self(figure)
            figure += [picture, caption]


def sentence(text: str) -> str:
    """Return a title as a sentence, with its full stop."""
    return text if text.rstrip("”\")'")[-1:] in tuple(".?!…") else f"{text}."


def _is_cell(node: nodes.Node) -> bool:
    return isinstance(node, nodes.container) and "cell" in node["classes"]


def _is_output(image: nodes.image) -> bool:
    parent = image.parent
    return isinstance(parent, nodes.container) and "cell_output" in parent["classes"]
