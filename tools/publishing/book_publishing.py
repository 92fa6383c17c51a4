"""A Sphinx extension: what a page says of itself to browsers, search engines and strangers.

Every page gets a description and the tags by which a link to it is shown elsewhere (see head.html).
Buttons that lead to the repository, or run a notebook in a cloud, are there only if the book has a
public address (see address.py); a map of the site, and absolute links, only if it is told where it
is published.
"""

import functools
import re
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError

import address

LONGEST = 200  # characters of a description; search engines show no more
MAP = """<?xml version="1.0" encoding="utf-8"?>
<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
{urls}
</urlset>
"""


def buttons(repository: str) -> dict[str, object]:
    """Return the theme's options for a book in ``repository``, an address; none if it is empty."""
    if not repository:
        return {}
    launch = {"binderhub_url": "https://mybinder.org", "notebook_interface": "jupyterlab"}
    if repository.startswith("https://github.com/"):  # Colab opens nothing from elsewhere
        launch["colab_url"] = "https://colab.research.google.com"
    shown = ("use_repository_button", "use_edit_page_button", "use_issues_button")
    named = {"repository_url": repository, "repository_branch": "main", "launch_buttons": launch}
    return named | dict.fromkeys(shown, True)


def first_sentence(text: str) -> str:
    """Return the first sentence of ``text``, on one line, cut after a word if it is long."""
    text = " ".join(text.split())
    sentence = re.split(r"(?<=[.?!])\s+(?=[A-Z“\"'0-9])|(?<=[。？！])", text, maxsplit=1)[0]
    if len(sentence) > LONGEST:
        sentence = sentence[: LONGEST - 1].rsplit(" ", 1)[0].rstrip(",;:") + "…"
    return sentence


@functools.cache
def edition() -> str:
    """Return the version of the book, which CITATION.cff says."""
    citation = Path(__file__).resolve().parents[2] / "CITATION.cff"
    return yaml.safe_load(citation.read_text(encoding="utf-8"))["version"]


def configure(app: Sphinx, config: Config) -> None:
    """Read the addresses, before the theme reads its options."""
    try:
        config.html_theme_options.update(buttons(address.repository(Path(app.srcdir))))
        config.html_baseurl = address.site()
    except ValueError as error:
        raise ConfigError(str(error)) from None


def describe(app: Sphinx, name: str, _template: str, context: dict, doctree) -> None:
    """Tell the template head.html the first sentence of a page, and where the site is."""
    paragraph = next(doctree.findall(nodes.paragraph), None) if doctree else None
    context["said"] = first_sentence(paragraph.astext()) if paragraph else ""
    context["site"] = app.config.html_baseurl
    context["edition"] = edition()


def lead_to_colab(_app: Sphinx, _name: str, _template: str, context: dict, _doctree) -> None:
    """Let the theme's button for Colab open the notebook that fetches the book (see colab.py)."""
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []):
            if button.get("text") == "Colab":
                button["url"] = button["url"].replace("/blob/main/", "/blob/colab/")


def write_map(app: Sphinx, error: Exception | None) -> None:
    """Write sitemap.xml, if it is known where the pages will be."""
    site = app.config.html_baseurl
    if error is None and site and app.builder.format == "html":
        pages = (site + app.builder.get_target_uri(name) for name in sorted(app.env.found_docs))
        urls = "\n".join(f"<url><loc>{escape(page)}</loc></url>" for page in pages)
        Path(app.outdir, "sitemap.xml").write_text(MAP.format(urls=urls), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("config-inited", configure)
    app.connect("html-page-context", describe)
    app.connect("html-page-context", lead_to_colab, priority=900)  # after the theme
    app.connect("build-finished", write_map)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
