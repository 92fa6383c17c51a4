"""The glossary's terms are linked where they are first used, and nowhere else."""

import re

import pytest
from docutils import nodes
from docutils.core import publish_doctree

import book_glossary
from notebooks import BOOK

TERMS = {
    "CUDA": "#cuda",
    "CUDA graph": "#graph",
    "all-reduce": "#sum",
    "host": "#host",
    "SM": "#sm",
}


def links(text: str, terms: dict[str, str] = TERMS) -> list[tuple[str, str]]:
    tree = publish_doctree(text)
    before = tree.astext()
    book_glossary.link_terms(tree, terms)
    assert tree.astext() == before, "not a letter changes"
    return [(link.astext(), link["refuri"]) for link in tree.findall(nodes.reference)]


def test_first_uses_are_linked() -> None:
    assert links("A CUDA graph of CUDA, again a CUDA graph.\n\nAll-reduces, CUDA.") == [
        ("CUDA graph", "#graph"),
        ("CUDA", "#cuda"),
        ("All-reduce", "#sum"),
    ]
    assert links("CUDA", {}) == []


@pytest.mark.parametrize(
    "text",
    [
        "The host waits.",
        "``CUDA`` in code, `CUDA <https://a.example>`_ in a link.",
        "CUDA\n====\n\nHeadings.",
        "::\n\n    CUDA",
        "SMALL, SM-x, my-SM, torch.SM, SM.x",
        ".. container:: cell\n\n   CUDA that a cell prints",
    ],
)
def test_nothing_else_is(text) -> None:
    assert [link for link in links(text) if link[1].startswith("#")] == []


def test_the_glossary_explains_each_term_once_and_leads_on() -> None:
    text = (BOOK / "glossary.md").read_text(encoding="utf-8").split("```{glossary}")[1]
    terms = re.findall(r"^(\S.*)\n  (\S.*)$", text, re.MULTILINE)
    names = [name for name, _ in terms]
    assert names == sorted(set(names), key=str.lower) and len(names) > 50
    for name, said in terms:
        explained, _, link = said.partition(" → ")
        assert explained.endswith((".", ".)")), name
        assert len(re.findall(r"[.?!](?=\s|$)", explained)) <= 3, name
        assert re.fullmatch(r"\[.+\]\(\w+\.ipynb(#\S+)?\)", link), name
