"""A page of the book as plain Markdown, from its notebook or its source.

It has what a reader of the page sees without unfolding anything, and the exercises' solutions:
prose, visible code, what cells printed, tables, and of every figure its description. The figure
that opens a chapter comes after its box and its code to keep. Nothing of MyST's syntax is left.
"""

import ast
import html
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nbformat import NotebookNode, v4

BOX = "**In short**"
CODE = re.compile(r"^(```+(?!\{).*?^```+) *$", re.MULTILINE | re.DOTALL)
GLOSSARY = re.compile(r"^```\{glossary\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HELPERS = re.compile(
    r"^```\{eval-rst\}\n\.\. automodule:: (\S+)\n.*?```$", re.MULTILINE | re.DOTALL
)
# Where a result comes from: utils.record prints it first.
SHELL = re.compile(r"(apt|pip|conda|python|torchrun|nvidia-smi|nsys|[A-Z_]+=\S*) ")
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


def cells(path: Path) -> list[NotebookNode]:
    """Return the cells of a notebook; a page in Markdown is one, without its head."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return v4.reads(text).cells
    head = re.compile(r"\A---\n.*?^---\n\s*", re.MULTILINE | re.DOTALL)
    return [v4.new_markdown_cell(head.sub("", text))]


@dataclass
class Page:
    """What a page shows, block by block."""

    start: list[str] = field(default_factory=list)  # title, box, code to keep
    opening: list[str] = field(default_factory=list)  # the figure, and what is said of it
    sections: list[str] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)  # code to keep that stands in a section


def page(shown: list[NotebookNode], lead: Callable[[str], str]) -> Page:
    """Return what the cells of a page show; ``lead`` says where its links lead on the site."""
    found, section, shown = Page(), "", list(_with_box_apart(shown))
    box = next((i for i, cell in enumerate(shown) if cell.source.startswith(BOX)), 0)
    for i, cell in enumerate(shown):
        if cell.cell_type == "markdown":
            section = [section, *re.findall(r"^## (.+?) *$", cell.source, re.MULTILINE)][-1]
        blocks = list(_shown(cell, lead, solves=section == "Exercises"))
        if section:
            found.sections += blocks
            found.keep += [f"### {section}", *blocks] if "keep" in _tags(cell) else []
            found.keep += _snippets(cell) if section != "Exercises" else []
        elif "hide-input" in _tags(cell) or 0 < i < box:
            found.opening += blocks
        else:
            found.start += blocks
    return found


def prose(text: str, lead: Callable[[str], str]) -> str:
    """Return MyST Markdown as plain Markdown, its links led to where ``lead`` says."""
    text = GLOSSARY.sub(lambda g: re.sub(r"(?m)^(\S.*)\n  (?=\S)", r"- **\1**: ", g[1]), text)
    text = HELPERS.sub(lambda found: signatures(found[1]), text)
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
    rows = [
        [_plain(cell).replace("|", r"\|") for cell in re.findall(r"(?s)<t[hd]\b.*?</t[hd]>", row)]
        for row in re.findall(r"(?s)<tr\b.*?</tr>", grid)
    ]
    rows.insert(1, [":--", *["--:"] * (len(rows[0]) - 1)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n\n".join(["\n".join(lines), *printed("\n".join(map(_plain, below.split("<br>"))))])


def rows_with_code(markup: str, lead: Callable[[str], str]) -> Iterator[str]:
    """Yield, of an HTML table whose cells hold code, each row as a small section of its own."""
    link = lambda m: f"[{m[2]}]({lead(m[1].replace('.html', '.ipynb'))})"  # noqa: E731
    yield from (_plain(text) for text in re.findall(r"(?s)<p>(.*?)</p>", markup)[:1])
    for row in re.findall(r"(?s)<tr\b.*?(?=<tr|</tbody>)", markup):
        blocks = []
        for number, cell in enumerate(re.findall(r"(?s)<td\b.*?</td>", row)):
            cell = re.sub(r"<div>.*?</div>|<small></small>", "", cell)
            cell = re.sub(r"<small>(.*?)</small>", r"(\1)", re.sub(r"</?code>", "`", cell))
            cell = re.sub(r'<a href="([^"]+)">(.*?)</a>', link, cell)
            for text, code in re.findall(r"(?s)(.*?)(?:<pre\b[^>]*>(.*?)</pre>|\Z)", cell):
                text = _plain(text)
                blocks.append(f"**{text}**" if text and not number and code else text)
                if code:
                    language = "bash" if SHELL.match(code) else "python"
                    blocks += ["Today:"] * (number > 0) + [fenced(html.unescape(code), language)]
        yield "\n\n".join(filter(None, blocks))


def printed(text: str) -> Iterator[str]:
    """Yield what a cell printed: a quiet line that says where it comes from, and the rest."""
    while origin := ORIGIN.match(text):
        yield f"*{origin[1]}*"
        text = text[origin.end() :]
    if text.strip():
        yield fenced(text)


# --- cells ---------------------------------------------------------------------------------------


def _with_box_apart(cells: list[NotebookNode]) -> Iterator[NotebookNode]:
    """Yield all cells; one with a text above the box becomes two."""
    for cell in cells:
        above, found, below = cell.source.partition(f"\n\n{BOX}")
        for source in (above, BOX + below) if found else (cell.source,):
            yield NotebookNode({**cell, "source": source})


def _shown(cell: NotebookNode, lead: Callable[[str], str], *, solves: bool) -> Iterator[str]:
    """Yield the blocks of a cell; none of one that is folded away, unless it solves an exercise."""
    tags = _tags(cell)
    if cell.cell_type == "markdown":
        yield prose(cell.source, lead)
    elif cell.cell_type == "code" and (solves or "hide-cell" not in tags):
        if "hide-cell" in tags:
            label = cell.metadata.get("mystnb", {}).get("code_prompt_show", "Show the solution")
            yield f"*{label.removeprefix('Show ').capitalize()}:*"
        if "hide-input" not in tags:
            yield fenced(cell.source, "python")
        if "hide-output" not in tags:
            yield from dict.fromkeys(_outputs(cell, lead))  # two figures have one description


def _snippets(cell: NotebookNode) -> Iterator[str]:
    """Yield the Python that the prose of a section shows, below its heading."""
    parts = re.findall(r"(?ms)^#{2,3} (.+?)\n(.*?)(?=^#{2,3} |\Z)", cell.source)
    for heading, text in parts if cell.cell_type == "markdown" else []:
        blocks = re.findall(r"(?ms)^```python\n.*?^```$", text)
        yield from [f"### {heading}", *blocks] if blocks else []


def _outputs(cell: NotebookNode, lead: Callable[[str], str]) -> Iterator[str]:
    for output in cell.outputs:
        data = output.get("data", {})
        if "</pre>" in data.get("text/html", ""):
            yield from filter(None, rows_with_code(data["text/html"], lead))
        elif "</table>" in data.get("text/html", ""):
            yield table(data["text/html"])
        elif "image/png" in data:
            image = cell.metadata.get("mystnb", {}).get("image", {})
            yield f"> Figure: {image.get('alt', 'not described yet')}"
        elif "text/markdown" in data:
            yield prose(data["text/markdown"], lead)
        else:
            yield from printed(data.get("text/plain") or output.get("text", ""))


def _plain(markup: str) -> str:
    text = re.sub(r"<br>\s*(?=\S)", ", ", re.sub(r"</?t[hd]\b[^>]*>", "", markup).strip())
    text = re.sub(r"</?(?:pre|p|div|summary)\b[^>]*>", " ", text)  # words that stand apart
    return html.unescape(" ".join(re.sub(r"<[^>]+>", "", text).split()))


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


# --- helpers -------------------------------------------------------------------------------------


def signatures(name: str) -> str:
    """Return what the page of the helpers says of the module ``name``, as code."""
    module = importlib.import_module(name)
    own = [key for key, one in vars(module).items() if getattr(one, "__module__", "") == name]
    shown = [getattr(module, key) for key in getattr(module, "__all__", own)]
    defined = [one for one in shown if inspect.isclass(one) or inspect.isroutine(one)]
    outlines = [_outline(ast.parse(inspect.getsource(one)).body[0]) for one in defined]
    return fenced("\n\n\n".join(ast.unparse(found) for found in outlines if found), "python")


def _outline(node: ast.stmt) -> ast.stmt | None:
    """A function without its body; a class with its fields and methods; None if undocumented."""
    if isinstance(node, ast.AnnAssign):
        return node
    is_public = isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"
    if not is_public or not ast.get_docstring(node):
        return None
    inside = node.body[1:] if isinstance(node, ast.ClassDef) else []
    node.body = [node.body[0], *filter(None, map(_outline, inside))]
    return node
