"""A Sphinx extension: the book for readers who ask an assistant.

After the pages it writes each of them as Markdown beside its HTML (see as_markdown.py), a list of
them as https://llmstxt.org describes it, ``llms.txt``, and rules, code to keep, messages and advice
in one file, ``llms-full.txt``. It reads what the pages were made from: none of this can be stale.
"""

import itertools
import posixpath
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent.parent))
import front
from as_markdown import BOX, cells, page
from book_publishing import first_sentence

LIST, CONDENSED = "llms.txt", "llms-full.txt"
LOOKED_UP = ("book/troubleshooting", "book/then_and_now")  # whole in llms-full.txt
APPENDIX = "Appendix"  # in llms.txt "Optional": what to leave out where there is little room
ABOUT = """\
Every page is Markdown here, made from what its HTML was made from: prose, code, results, tables, \
and descriptions of the figures. A chapter opens with its rules, each with its number, and with \
code to keep; behind its link stands the first rule. A number holds for the machine that is named \
with it. [The front]({front}) leads from a symptom to the page that solves it; [{condensed}]\
({address}) has all rules, all code to keep, messages with their repairs, and popular advice as it \
should be today."""


def files(root: Path, downloads: dict[str, str], site: str) -> dict[str, str]:
    """Return the text of each file to write, by its path below the site's root.

    Parameters
    ----------
    root : Path
        The book's.
    downloads : dict
        Where the site has the files that pages offer, by their paths below ``root``.
    site : str
        The site's address, with a slash at the end; nothing if it is not known.
    """
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    parts = {part["caption"]: [c["file"] for c in part["chapters"]] for part in toc["parts"]}
    sources = {
        name: _source(root, name) for name in [toc["root"], *itertools.chain(*parts.values())]
    }
    places = downloads | {source: f"{name}.md" for name, source in sources.items()}
    found, boxes, looked_up, lines = {}, [], [], {}
    for name, source in sources.items():
        read = cells(root / source)
        whole = page(read, partial(led, source, places, partial(_beside, name)))
        html = f"{name}.html" if site else posixpath.basename(f"{name}.html")
        last = f"---\n\n*With its figures, this page is [{html}]({site}{html}).*"
        found[f"{name}.md"] = _joined([*whole.start, *whole.opening, *whole.sections, last])
        short = page(read, partial(led, source, places, site.__add__))
        text = "\n\n".join([*short.start, *short.sections])
        rule = rule_of("\n".join(short.start))
        said = rule or first_sentence(text.split("\n\n")[1])
        title = re.search(r"^# (.+)", text, re.MULTILINE)[1]
        lines[name] = f"- [{title}]({site}{name}.md): {said}"
        if rule:
            boxes += [f"#{short.start[0]}", *short.start[1:], *short.keep]
            boxes.append(f"[The whole page]({site}{name}.md)")
        if name in LOOKED_UP:
            looked_up += [f"#{short.start[0]}", *short.start[1:], *short.opening, *short.sections]
    front_page = f"{toc['root']}.md"
    title, summary = found[front_page].split("\n\n")[:2]
    about = ABOUT.format(condensed=CONDENSED, front=site + front_page, address=site + CONDENSED)
    listed = [title, f"> {summary}", about]
    for caption, members in parts.items():
        listed.append(f"## {'Optional' if caption == APPENDIX else caption}")
        listed.append("\n".join(lines[name] for name in members))
    condensed = [f"{title}: all rules, all code to keep, all messages, all advice", f"> {summary}"]
    condensed += [*boxes, *looked_up]
    return {**found, LIST: _joined(listed), CONDENSED: _joined(condensed)}


def led(source: str, places: dict[str, str], to: Callable[[str], str], target: str) -> str:
    """Return where a link of the page ``source`` leads.

    ``places`` says where the site has a file of the book, ``to`` how to get to such a place. Other
    links stay as they are.
    """
    path, mark, anchor = target.partition("#")
    file = posixpath.join(posixpath.dirname(source), path) if path else source
    place = places.get(posixpath.normpath(file))
    return to(place) + mark + anchor if place else target


def rule_of(text: str) -> str:
    """Return the first rule of a box, with what it was measured on; nothing if there is no box."""
    if BOX not in text:
        return ""
    where, rule = front.first_rule(text.split(BOX)[1])
    return f"{rule} *{where}*" if where else rule


def _source(root: Path, name: str) -> str:
    return next(f"{name}{end}" for end in (".ipynb", ".md") if (root / f"{name}{end}").exists())


def _beside(name: str, place: str) -> str:
    """The address of ``place`` on the page ``name``."""
    own = place == f"{name}.md"
    return "" if own else posixpath.relpath(place, posixpath.dirname(name))


def _joined(blocks: list[str]) -> str:
    return "\n\n".join(filter(None, blocks)) + "\n"


# --- what Sphinx calls ---------------------------------------------------------------------------


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the files."""
    if error is None and app.builder.format == "html":
        downloads = {file: f"_downloads/{place}" for file, (_, place) in app.env.dlfiles.items()}
        made = files(Path(app.srcdir), downloads, app.config.html_baseurl)
        for path, text in made.items():
            Path(app.outdir, path).write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
