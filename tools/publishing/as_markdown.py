"""A page of the book as plain Markdown, from its notebook or its source.

It has what a reader of the page sees without unfolding anything, and the exercises' solutions:
prose, visible code, what cells printed, tables, and of every figure its description. The figure
that opens a chapter comes after its box and its code to keep. Nothing of MyST's syntax is left.
"""

import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

BOX = "**In short**"
CODE = re.compile(r"^(```+(?!\{).*?^```+) *$", re.MULTILINE | re.DOTALL)
GLOSSARY = re.compile(r"^```\{glossary\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Where a result comes from: utils.record prints it first.
ORIGIN = re.compile(r"\s*((?:measured on|replayed from|live on|reference:) .*)\s*")
# MyST's own syntax, and what stands for it. A directive that has a title keeps it.
PLAIN = [
    (r"^<!--.*?-->\n", ""),
    (r"^:{3,}\{[\w-]+\}[ \d]*(.*)\n(?::[\w-]+:.*\n)*", r"**\1**\n"),
    (r"^\*\*\*\*\n", ""),  # it had none
    (r"^:{3,}\n?", ""),
    (r"\{[\w:-]+\}(`[^`]+`)", r"\1"),
    (r"^!\[(.*)\]\([^)]*\)", r"> Figure: \1"),
    (r"\n{3,}", r"\n\n"),
]


def cells(path: Path) -> list[dict]:
    """Return the cells of a notebook; a page in Markdown is one, without its head."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return json.loads(text)["cells"]
    source = re.sub(r"\A---\n.*?^---\n\s*", "", text, flags=re.MULTILINE | re.DOTALL)
    return [{"cell_type": "markdown", "source": source, "metadata": {}}]


@dataclass
class Page:
    """What a page shows, block by block."""

    start: list[str] = field(default_factory=list)  # title, box, code to keep
    opening: list[str] = field(default_factory=list)  # the figure, and what is said of it
    sections: list[str] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)  # code to keep that stands in a section


def page(shown: list[dict], lead: Callable[[str], str]) -> Page:
    """Return what the cells of a page show; ``lead`` says where its links lead on the site."""
    found, section, shown = Page(), "", list(_with_box_apart(shown))
    boxes = (i for i, cell in enumerate(shown) if _text(cell["source"]).startswith(BOX))
    box = next(boxes, 0)
    for i, cell in enumerate(shown):
        if cell["cell_type"] == "markdown":
            headings = re.findall(r"^## (.+?) *$", _text(cell["source"]), re.MULTILINE)
            section = headings[-1] if headings else section
        blocks = list(_shown(cell, lead, solves=section == "Exercises"))
        if section:
            found.sections += blocks
            found.keep += [f"### {section}", *blocks] if "keep" in _tags(cell) else []
        elif "hide-input" in _tags(cell) or 0 < i < box:
            found.opening += blocks
        else:
            found.start += blocks
    return found


def prose(text: str, lead: Callable[[str], str]) -> str:
    """Return MyST Markdown as plain Markdown, its links led to where ``lead`` says."""
    text = GLOSSARY.sub(lambda g: re.sub(r"(?m)^(\S.*)\n  (?=\S)", r"- **\1**: ", g[1]), text)
    pieces = CODE.split(text)
    for i in range(0, len(pieces), 2):  # the others are code, and stay as they are
        for pattern, plain in PLAIN:
            pieces[i] = re.sub(pattern, plain, pieces[i], flags=re.MULTILINE)
        pieces[i] = re.sub(r"\]\(([^()\s]+)\)", lambda m: f"]({lead(m[1])})", pieces[i])
    return "".join(pieces).strip()


def fenced(text: str, language: str = "") -> str:
    """Return ``text`` in a block that no backtick in it can end."""
    ticks = "`" * max([2, *map(len, re.findall("`+", text))]) + "`"
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def table(markup: str) -> str:
    """Return an HTML table, such as a card of predictions, and the lines below it as Markdown."""
    grid, _, below = markup.rpartition("</table>")
    rows = re.findall(r"<tr\b.*?</tr>", grid, re.DOTALL)
    rows = [re.findall(r"<t[hd]\b.*?>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    lines = [[_plain(cell).replace("|", r"\|") for cell in row] for row in rows]
    lines.insert(1, [":--", *["--:"] * (len(lines[0]) - 1)])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    below = "\n".join(map(_plain, below.split("<br>")))
    return "\n\n".join([text, *printed(below)])


def printed(text: str) -> Iterator[str]:
    """Yield what a cell printed: a quiet line that says where it comes from, and the rest."""
    while origin := ORIGIN.match(text):
        yield f"*{origin[1]}*"
        text = text[origin.end() :]
    if text.strip():
        yield fenced(text)


# --- cells ---------------------------------------------------------------------------------------


def _with_box_apart(cells: list[dict]) -> Iterator[dict]:
    """Yield all cells; one with a text above the box becomes two."""
    for cell in cells:
        above, found, below = _text(cell["source"]).partition(f"\n\n{BOX}")
        yield from [{**cell, "source": part} for part in (above, BOX + below)] if found else [cell]


def _shown(cell: dict, lead: Callable[[str], str], *, solves: bool) -> Iterator[str]:
    """Yield the blocks of a cell; none of one that is folded away, unless it solves an exercise."""
    tags = _tags(cell)
    if cell["cell_type"] == "markdown":
        yield prose(_text(cell["source"]), lead)
    elif cell["cell_type"] == "code" and (solves or "hide-cell" not in tags):
        if "hide-cell" in tags:
            label = cell["metadata"].get("mystnb", {}).get("code_prompt_show", "Show the solution")
            yield f"*{label.removeprefix('Show ').capitalize()}:*"
        if "hide-input" not in tags:
            yield fenced(_text(cell["source"]), "python")
        if "hide-output" not in tags:
            yield from dict.fromkeys(_outputs(cell, lead))  # two figures have one description


def _outputs(cell: dict, lead: Callable[[str], str]) -> Iterator[str]:
    for output in cell["outputs"]:
        data = {kind: _text(said) for kind, said in output.get("data", {}).items()}
        if "</table>" in data.get("text/html", ""):
            yield table(data["text/html"])
        elif "image/png" in data:
            image = cell["metadata"].get("mystnb", {}).get("image", {})
            yield f"> Figure: {image.get('alt', 'not described yet')}"
        elif "text/markdown" in data:
            yield prose(data["text/markdown"], lead)
        else:
            yield from printed(data.get("text/plain") or _text(output.get("text", "")))


def _plain(markup: str) -> str:
    text = re.sub(r"<br>\s*(?=\S)", ", ", markup.strip())
    text = re.sub(r"</?(?:pre|p|div|summary)\b[^>]*>", " ", text)  # words that stand apart
    return html.unescape(" ".join(re.sub(r"<[^>]+>", "", text).split()))


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def _tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])
