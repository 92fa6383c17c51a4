"""A Sphinx extension: the book's own search instead of Sphinx's.

While the pages are built, it writes what can be found (sections, with their headings, prose, code
and names of the API), its index (book_index.py) and the synonyms to ``_static/search/data.js``. It
is a script because a page that was opened from a disk may load scripts, but not read files. In the
browser, ``book/_static/search`` does the rest.
"""

import itertools
import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

from book_index import Index

HERE = Path(__file__).resolve().parent
SYNONYMS = HERE / "synonyms.yml"
WEIGHTS = HERE / "weights.yml"
DATA = "_static/search/data.js"
STEMMER = "_static/search/stemmer.js"
# Of Sphinx's own search, which no page loads.
UNUSED = ["_static/searchtools.js", "_static/language_data.js", "searchindex.js"]
BEGINS = (nodes.section, addnodes.desc)  # what begins a section of its own


# --- what can be found ---------------------------------------------------------------------------


def sections(page: nodes.Node) -> list[dict[str, str]]:
    """Sections of a page, in its order.

    Parameters
    ----------
    page
        The document tree, as it was read.

    Returns
    -------
    list of dict
        Each with ``id`` (the anchor), ``heading``, ``prose``, ``code`` and ``api``, all of them
        strings. A section does not repeat what its subsections hold. What a page says of a function
        or class of `utils` is a section of its own, whose ``api`` is the object's full name.
    """
    found = []
    for node in page.findall(lambda node: isinstance(node, BEGINS)):
        prose, code = [], []
        for part in node[1:]:
            _gather(part, prose, code)
        texts = {"prose": "\n".join(prose), "code": "\n".join(code)}
        if isinstance(node, nodes.section):
            found.append({"id": node["ids"][0], "heading": _plain(node[0]), **texts, "api": ""})
        elif node[0]["ids"]:
            name = node[0]["ids"][0]
            found.append({"id": name, "heading": name.split(".")[-1], **texts, "api": name})
    return found


def _gather(node: nodes.Node, prose: list[str], code: list[str]) -> None:
    """Append the text of a node, one string a block; of a code cell its visible source only."""
    classes = set(node.get("classes", [])) if isinstance(node, nodes.Element) else set()
    # Machinery that a page folds away, and what cells printed, would only be in a reader's way.
    is_hidden = classes & {"cell_output", "tag_hide-input", "tag_remove-cell"}
    if is_hidden or isinstance(node, (*BEGINS, nodes.Invisible, nodes.raw, nodes.image)):
        return
    if isinstance(node, nodes.literal_block):
        code.append(node.astext())
    elif isinstance(node, (nodes.row, nodes.TextElement)):
        prose.append(_plain(node))
    else:
        for child in node.children:
            _gather(child, prose, code)


def _plain(node: nodes.Node) -> str:
    """Text in one line, without the formulas' TeX; a table's cells are parted by dots."""
    if isinstance(node, nodes.row):
        return " · ".join(filter(None, map(_plain, node.children)))
    pieces = []
    for text in node.findall(nodes.Text):
        formula = isinstance(text.parent, (nodes.math, nodes.math_block)) and "\\" in text
        pieces.append("…" if formula else str(text))
    separator = " " if isinstance(node, nodes.entry) else ""
    return " ".join(separator.join(pieces).split())


def leads(app: Sphinx) -> list[list[str]]:
    """What the front says that a reader sees, and where it leads first.

    Returns
    -------
    list of list of str
        For each row of its tables of symptoms: the words, the address, and the anchor or nothing.
    """
    found = []
    for row in app.env.get_doctree(app.config.root_doc).findall(nodes.row):
        links = [list(entry.findall(addnodes.pending_xref)) for entry in row]
        if not links[0] and any(links):
            to = next(itertools.chain(*links))
            slugs = app.env.metadata[to["reftarget"]].get("myst_slugs", {})
            anchor = slugs[to["reftargetid"]][1] if to["reftargetid"] in slugs else ""
            found.append([_plain(row[0]), app.builder.get_target_uri(to["reftarget"]), anchor])
    return found


def weight(docname: str, weights: dict[str, float]) -> float:
    """How much a page counts: the first pattern of weights.yml that fits, else 1."""
    return next((w for pattern, w in weights.items() if fnmatchcase(docname, pattern)), 1.0)


def data(app: Sphinx) -> str:
    """The script that holds all pages and the synonyms; the same input gives the same text.

    Pages stand in the order of the table of contents: at equal rank, the earlier one comes first.
    """
    weights = yaml.safe_load(WEIGHTS.read_text(encoding="utf-8"))
    order = list(dict.fromkeys(_walk(app, app.config.root_doc)))
    pages = []
    for docname in [*order, *sorted(set(app.env.found_docs) - set(order))]:
        found = sections(app.env.get_doctree(docname))
        if found:
            page = {"url": app.builder.get_target_uri(docname), "title": found[0]["heading"]}
            page["weight"] = weight(docname, weights["pages"])
            named = docname in weights["messages"]
            page["messages"] = _messages(app.env.get_doctree(docname)) if named else []
            page["sections"] = [{key: s[key] for key in s if s[key]} for s in found]
            pages.append(page)
    synonyms = yaml.safe_load(SYNONYMS.read_text(encoding="utf-8"))
    content = with_index(pages, synonyms, weights["sections"], leads(app))
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"window.bookSearchData = {text};\n"


def with_index(
    pages: list[dict], synonyms: list[dict], asides: dict[str, float], leads: list[list[str]]
) -> dict:
    """What the engine works with: pages, what else to look for, the index, what the front says."""
    index = Index(synonyms).of(pages, asides)
    known = {"pages": pages, "synonyms": synonyms, "asides": asides}
    return {**known, "leads": leads, "index": index}


def _messages(page: nodes.Node) -> list[str]:
    """The anchors of the sections whose headings are messages: nothing but code."""
    titles = [(node, node[0].children) for node in page.findall(nodes.section)]
    return [n["ids"][0] for n, t in titles if len(t) == 1 and isinstance(t[0], nodes.literal)]


def _walk(app: Sphinx, docname: str) -> Iterator[str]:
    """Yield a page and all below it in the table of contents."""
    yield docname
    for child in app.env.toctree_includes.get(docname, []):
        yield from _walk(app, child)


# --- Sphinx --------------------------------------------------------------------------------------


def _replace(app: Sphinx) -> None:
    """Keep Sphinx from writing an index that nobody reads."""
    app.builder.search = False


def _write(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    Path(app.outdir, DATA).write_text(data(app), encoding="utf-8")
    Path(app.outdir, STEMMER).write_text(SearchEnglish.js_stemmer_code, encoding="utf-8")
    for name in UNUSED:
        Path(app.outdir, name).unlink(missing_ok=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", _replace)
    app.connect("build-finished", _write)
    app.add_css_file("search/search.css")
    app.add_js_file("search/search.js", defer="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
