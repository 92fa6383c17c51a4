"""A Sphinx extension: what a page says of itself to browsers, search engines and strangers.

Every page gets a description and the tags by which a link to it is shown elsewhere. Buttons that
lead to the repository, or run a notebook in a cloud, are there only if the book has a public
address (see address.py); a map of the site, and absolute links, only if it is told where it is
published.
"""

import re
import sys
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parent))
import address

CARD = "_static/card.png"
LONGEST = 200  # characters of a description; search engines show no more


def buttons(repository: address.Repository | None) -> dict[str, object]:
    """Return the theme's options for a book in ``repository``; none if there is none."""
    if repository is None:
        return {}
    launch = {"binderhub_url": "https://mybinder.org", "notebook_interface": "jupyterlab"}
    if repository.host == "github.com":  # Colab opens nothing from elsewhere
        launch["colab_url"] = "https://colab.research.google.com"
    return {
        "repository_url": repository.url,
        "repository_branch": "main",
        "use_repository_button": True,
        "use_edit_page_button": True,
        "use_issues_button": True,
        "launch_buttons": launch,
    }


def first_sentence(text: str) -> str:
    """Return the first sentence of ``text``, on one line, cut after a word if it is long."""
    text = " ".join(text.split())
    sentence = re.split(r"(?<=[.?!])\s+(?=[A-Z“\"'0-9])|(?<=[。？！])", text, maxsplit=1)[0]
    if len(sentence) > LONGEST:
        sentence = sentence[: LONGEST - 1].rsplit(" ", 1)[0].rstrip(",;:") + "…"
    return sentence


def description(doctree: nodes.document) -> str:
    """Return the first sentence of a page's first paragraph; nothing if it has none."""
    return next((first_sentence(p.astext()) for p in doctree.findall(nodes.paragraph)), "")


def tags(
    title: str, said: str, book: str, *, front: bool, page: str, site: str | None
) -> Iterator[str]:
    """Yield the tags of a page's head."""
    named = {"og:title": title, "og:site_name": book, "og:type": "website" if front else "article"}
    if said:
        yield f'<meta name="description" content="{escape(said)}">'
        named["og:description"] = said
    if site:  # a picture without its whole address is shown by nobody
        named |= {"og:url": site + page, "og:image": site + CARD}
        yield '<meta name="twitter:card" content="summary_large_image">'
    for name, content in named.items():
        yield f'<meta property="{name}" content="{escape(content)}">'


# --- what Sphinx calls ---------------------------------------------------------------------------


def configure(app: Sphinx, config: Config) -> None:
    """Read the addresses, before the theme reads its options."""
    try:
        config.html_theme_options.update(buttons(address.repository(Path(app.srcdir))))
        config.html_baseurl = address.site() or ""
    except ValueError as error:
        raise ConfigError(str(error)) from None


def complete_head(app: Sphinx, name: str, _template: str, context: dict, doctree) -> None:
    """Put the tags into the head of the page ``name``."""
    front = name == app.config.root_doc
    book, site = app.config.html_title, app.config.html_baseurl
    title = unescape(re.sub(r"<[^>]+>", "", context.get("title", "")))
    head = tags(
        title if title and not front else book,
        description(doctree) if doctree else "",
        book,
        front=front,
        page=app.builder.get_target_uri(name),
        site=site or None,
    )
    # The server shows this page for addresses in any folder.
    first = [f'<base href="{site}">'] if site and name == "404" else []
    context["metatags"] = "\n".join([*first, context.get("metatags", ""), *head])


def missing_page(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    """Yield the page that a server shows for an address that is not there."""
    front = app.builder.get_target_uri(app.config.root_doc)
    body = (
        "<h1>There is no such page</h1>\n<p>Chapters get renamed and move. Look for the "
        f'words in the <a href="search.html">search</a>, or start from <a href="{front}">the '
        "front</a>, which leads from your problem to the page.</p>"
    )
    yield "404", {"title": "There is no such page", "body": body}, "page.html"


def write_map(app: Sphinx, error: Exception | None) -> None:
    """Write sitemap.xml, if it is known where the pages will be."""
    site = app.config.html_baseurl
    if error is None and site and app.builder.format == "html":
        pages = (site + app.builder.get_target_uri(name) for name in sorted(app.env.found_docs))
        urls = "\n".join(f"<url><loc>{escape(page)}</loc></url>" for page in pages)
        space = "http://www.sitemaps.org/schemas/sitemap/0.9"
        text = (
            f'<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="{space}">\n{urls}\n</urlset>\n'
        )
        (Path(app.outdir) / "sitemap.xml").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("config-inited", configure)
    app.connect("html-page-context", complete_head)
    app.connect("html-collect-pages", missing_page)
    app.connect("build-finished", write_map)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
