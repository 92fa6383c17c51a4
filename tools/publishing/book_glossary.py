"""A Sphinx extension: the first use of a glossary's term on a page leads to the glossary.

Only terms that mean nothing else are linked: those with a capital letter, a digit, a hyphen or a
space in them. "Record" and "host" are words of everyday language, too.
"""

import re
from collections.abc import Iterable

from docutils import nodes
from sphinx.application import Sphinx


def pattern(terms: Iterable[str]) -> re.Pattern[str]:
    """Return what finds the terms that are linked, in singular and plural."""
    clear = [re.escape(term) for term in terms if re.search(r"[A-Z\d\s-]", term)]
    clear.sort(key=len, reverse=True)  # "CUDA graph" before "CUDA"
    words = "|".join(clear) or "(?!)"  # which finds nothing
    return re.compile(rf"(?<![\w.-])({words})(?=s?(?![\w-]|\.\w))", re.IGNORECASE)


def is_open(node: nodes.Text) -> bool:
    """Return whether ``node`` is prose: in a paragraph, but in no link, code or cell's output."""
    parents = []
    while node := node.parent:
        parents.append(node)
    kinds = (nodes.reference, nodes.literal)
    closed = any(isinstance(p, kinds) or "cell" in p["classes"] for p in parents)
    return not closed and any(isinstance(p, nodes.paragraph) for p in parents)


def link_terms(tree: nodes.document, targets: dict[str, str]) -> None:
    """Link the first use of each term in ``tree``; ``targets`` has an address for each term."""
    found = pattern(targets)
    by_name = {term.lower(): address for term, address in targets.items()}
    for text in [node for node in tree.findall(nodes.Text) if is_open(node)]:
        whole, pieces, done = text.astext(), [], 0
        for match in found.finditer(whole):
            if address := by_name.pop(match[1].lower(), None):  # else it is linked above
                link = nodes.reference("", match[1], refuri=address, internal=True)
                link["classes"] = ["term"]
                pieces += [nodes.Text(whole[done : match.start()]), link]
                done = match.end()
        text.parent.replace(text, [*pieces, nodes.Text(whole[done:])])


def resolved(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Link the terms of a page, but not of the front, which leads on, nor of the glossary."""
    objects = app.env.get_domain("std").objects
    terms = {name: place for (kind, name), place in objects.items() if kind == "term"}
    left_out = {app.config.root_doc, *(home for home, _ in terms.values())}
    if app.builder.format == "html" and page not in left_out:
        uri = app.builder.get_relative_uri
        link_terms(tree, {name: f"{uri(page, home)}#{at}" for name, (home, at) in terms.items()})


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-resolved", resolved)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
