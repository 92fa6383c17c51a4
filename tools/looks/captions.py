"""Number the figures of a chapter, and write below each what it answers, and the machine.

Both stand in the picture, where no search and no screen reader finds them. The words are a cell's
own, ``"mystnb": {"caption": "…"}`` in its metadata, or else the title that its code gives the
figure; where a title is computed, only the cell's own words can say it. The machine is that of the
record whose ``where`` the cell shows, so neither drifts from what was measured.
"""

import ast
import functools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from docutils import nodes

# The calls that are given a figure's title, and the place of it among their arguments.
TITLE = {"figure": 0, "drawing": 0, "suptitle": 0, "timeline": 1}
COUNTS = {1: "one", 2: "two", 3: "three", 4: "four", 8: "eight"}


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
    found, named = [], _named([source], _text)
    for name, call in _calls(source):
        place = TITLE.get(name, len(call.args))
        if place < len(call.args):
            given = call.args[place]
            title = _text(given) or named.get(getattr(given, "id", ""))
            if title is not None or name != "timeline":  # it also draws into a figure
                found.append(title)  # None: only running it would tell
    return found if len(found) == pictures else [None] * pictures


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
    records = _named([*before, source], _recorded)
    found = []
    for name, call in _calls(source):
        if name == "show" and len(call.args) == 2:
            inside = ast.walk(call.args[1])  # of several records the first names the machine
            said = next((n for n in inside if isinstance(n, ast.Attribute)), call.args[1])
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
    if kind != "record" and origin:
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


def _text(node: ast.expr) -> str | None:
    text = getattr(node, "value", None)
    return text if isinstance(text, str) else None


def _recorded(node: ast.expr) -> str | None:
    """Return the name in ``recorded("name")``; None for any other expression."""
    is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "recorded"
    return _text(node.args[0]) if is_call and node.args else None


def _named(cells: Iterable[str], read: Callable[[ast.expr], str | None]) -> dict[str, str]:
    """Return the variables that cells assign something to that ``read`` can read."""
    found = {}
    for node in (node for cell in cells for node in _tree(cell).body):
        if isinstance(node, ast.Assign):
            targets = getattr(node.targets[0], "elts", node.targets)
            values = getattr(node.value, "elts", [node.value])
            named = zip(targets, map(read, values), strict=False)
            found |= {getattr(target, "id", ""): text for target, text in named if text}
    return found


def add_captions(app, doctree: nodes.document, docname: str) -> None:
    """Make a figure with a number and a caption of each picture that a cell shows."""
    heading = next(doctree.findall(nodes.title), None)
    chapter = re.match(r"\d+(?:\.\d+)?(?= · )", heading.astext() if heading else "")
    prefix = f"{chapter[0]}." if chapter else ""
    records, number, before = Path(app.srcdir, "book", "records"), 0, []
    for cell in [node for node in doctree.findall(nodes.container) if "cell" in node["classes"]]:
        found = cell.findall(nodes.image)
        pictures = [image for image in found if "cell_output" in image.parent["classes"]]
        source = next((block.astext() for block in cell.findall(nodes.literal_block)), "")
        own = cell.get("cell_metadata", {}).get("mystnb", {}).get("caption", "")
        said = [machine(origin, records) for origin in origins(source, before)] if pictures else []
        before.append(source)
        if len(said) != len(pictures):
            said = [""] * len(pictures)
        answers = words(source, len(pictures), own)
        for picture, answer, where in zip(pictures, answers, said, strict=True):
            number += 1
            label = nodes.strong("", f"Figure {prefix}{number}")
            text = nodes.Text(f" {sentence(answer)} {where}".rstrip() if answer else f" {where}")
            figure = nodes.figure("", ids=[f"figure-{number}"], classes=["measured"])
            picture.replace_self(figure)
            figure += [picture, nodes.caption("", "", label, text)]


def sentence(text: str) -> str:
    """Return a title as a sentence, with its full stop."""
    return text if text.rstrip("”\")'")[-1:] in tuple(".?!…") else f"{text}."
