"""Number the figures of a chapter, and write each one's title below it as text.

The title and the machine stand in the picture, where no search and no screen reader finds them.
"""

import ast
import re

from docutils import nodes
from sphinx.application import Sphinx

# The calls that are given a figure's title, and the place of it among their arguments.
TITLE = {"figure": 0, "suptitle": 0, "timeline": 1}


def titles(source: str) -> list[str | None]:
    """Return the title of each figure that a cell draws; None where only running it would tell."""
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except SyntaxError:  # a magic
        return []
    found = []
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        place = TITLE.get(name, len(call.args))
        if place < len(call.args):
            title = getattr(call.args[place], "value", None)
            if isinstance(title, str) or name != "timeline":  # it also draws into a figure
                found.append(title if isinstance(title, str) else None)
    return found


def summary(alt: str) -> str:
    """Return what an image's description says first, as a title."""
    return re.split(r"[.:,;] ", alt.strip(), maxsplit=1)[0].rstrip(".")


def add_captions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make a figure with a number and a title of each picture that a cell shows."""
    heading = next(doctree.findall(nodes.title), None)
    chapter = re.match(r"\d+(?:\.\d+)?(?= · )", heading.astext() if heading else "")
    number = 0
    for cell in list(doctree.findall(_is_cell)):
        pictures = [image for image in cell.findall(nodes.image) if _is_output(image)]
        source = next((block.astext() for block in cell.findall(nodes.literal_block)), "")
        named = titles(source)
        if len(named) != len(pictures):
            named = [None] * len(pictures)
        for picture, title in zip(pictures, named, strict=True):
            number += 1
            label = f"Figure {chapter[0]}.{number}" if chapter else f"Figure {number}"
            text = title or summary(picture.get("alt", ""))
            caption = nodes.caption("", "", nodes.strong("", label), nodes.Text(f" {text}"))
            figure = nodes.figure("", ids=[f"figure-{number}"], classes=["measured"])
            picture.replace_self(figure)
            figure += [picture, caption]


def _is_cell(node: nodes.Node) -> bool:
    return isinstance(node, nodes.container) and "cell" in node["classes"]


def _is_output(image: nodes.image) -> bool:
    parent = image.parent
    return isinstance(parent, nodes.container) and "cell_output" in parent["classes"]
