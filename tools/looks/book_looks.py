"""A Sphinx extension: what the look of the pages needs at build time.

Captions (captions.py), names of folds and the box of rules (parts.py), a second picture for dark
pages (dark.py), style sheets without what no page uses (unused_css.py), and a page's HTML without
its known faults (:func:`finish`).
"""

import gc
import os
import re
from collections.abc import Callable
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.jinja2glue import BuiltinTemplateLoader
from sphinx.util import logging

from captions import add_captions
from dark import darken_file
from parts import finish_parts
from unused_css import names, without_unused

# What is wrong with a page as the theme and the extensions write it, and what it should be.
REPAIRS = [
    # 1.5 MB of JavaScript for fifteen icons: icons.css has them.
    (r"\s*<script[^>]*/fontawesome\b[^>]*></script>", ""),
    (r"<link[^>]*/fontawesome\b[^>]*>", ""),
    # The name of a button is what it shows: "Show code cell source".
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    (r'(<button class="btn search-button-field[^>]*?) aria-label="[^"]*"', r"\1"),
    # Names, commas and spaces of code have the colour of all code: a tenth of a page with snippets.
    (r'<span class="[npw]">([^<]*)</span>|<span></span>', r"\1"),
    # A header cell without a word heads nothing.
    (r"<th\b([^>]*)>(?:\s|<p>|</p>)*</th>", r"<td\1></td>"),
    # The book's title in the sidebar belongs to no region of the page.
    (r'(<div(?: id="pst-primary-sidebar")? )(class="bd-sidebar-primary)',
     r'\1role="navigation" aria-label="Book" \2'),
    (r'<button class="sidebar-toggle (primary|secondary)-toggle',
     r'<button aria-label="Toggle \1 sidebar" class="sidebar-toggle \1-toggle'),
]  # fmt: skip
logger = logging.getLogger(__name__)
MATHJAX = re.compile(r"\s*<script[^>]*mathjax/[^>]*></script>")
# In tables that cells make; MyST resolves all other links.
TO_NOTEBOOK = re.compile(r'(<a class="reference[^"]*" href=")(\w+)\.ipynb(?:#([^"]*))?"')
ARTICLE = re.compile(r"<article.*</article>", re.DOTALL)
PICTURE = re.compile(r'<img\b([^>]*?)\bsrc="((?:\.\./)*_images/([^"]+))"([^>]*?)\s*/?>')


def finish(html: str, sizes: Callable[[str], tuple[int, int] | None]) -> str:
    """Return a page with its known faults repaired and its pictures ready for a dark page.

    Parameters
    ----------
    html : str
        The page.
    sizes : callable
        Width and height of a picture, given its file's name; None if it has no dark variant.
    """
    for wrong, right in REPAIRS:
        html = re.sub(wrong, right, html)
    if not re.search(r'class="[^"]*\bmath\b', html):
        html = MATHJAX.sub("", html)

    def pair(found: re.Match) -> str:
        before, source, name, after = found.groups()
        size = sizes(name)
        if size is None:
            return found[0]
        # With its size known, a picture that loads later moves nothing. Neither the picture for the
        # other theme nor one far down is loaded before it is seen.
        rest = f'width="{size[0]}" height="{size[1]}" loading="lazy"'
        dark = source.replace(name, dark_name(name))
        return "".join(
            f'<img{_with_class(before + after, kind)} src="{path}" {rest} />'
            for kind, path in (("only-light", source), ("only-dark", dark))
        )

    return ARTICLE.sub(lambda article: PICTURE.sub(pair, article[0]), html)


def _with_class(attributes: str, name: str) -> str:
    if 'class="' in attributes:
        return attributes.replace('class="', f'class="{name} ', 1).rstrip()
    return f'{attributes.rstrip()} class="{name}"'


def dark_name(name: str) -> str:
    """Return the file name of the dark variant of a picture."""
    return re.sub(r"(\.\w+)$", r"-dark\1", name)


class Pages(BuiltinTemplateLoader):
    """Sphinx's own templates, whose pages are finished before they are written."""

    def init(self, builder, theme=None, dirs=None) -> None:
        super().init(builder, theme, dirs)
        self.builder = builder

    def render(self, template: str, context: dict) -> str:  # type: ignore[override]
        text = super().render(template, context)
        if language := (context.get("meta") or {}).get("lang"):  # around it all is English
            text = text.replace("<article", f'<article lang="{language}"', 1)
        if "<article" not in text:
            return text
        return TO_NOTEBOOK.sub(self._to_page, finish(text, self._darken))

    def _to_page(self, link: re.Match) -> str:
        """Let a link to a notebook lead to its page, and to the section that MyST knows by it."""
        start, name, slug = link.groups()
        slugs = self.builder.env.metadata[f"book/{name}"].get("myst_slugs", {})
        if slug and slug not in slugs:
            logger.warning("a table links %s.ipynb#%s, and there is no such section", name, slug)
        place = f"#{slugs[slug][1]}" if slug in slugs else ""
        return f'{start}{name}.html{place}"'

    def _darken(self, name: str) -> tuple[int, int] | None:
        """Write the dark variant of a picture of the pages; return the picture's size."""
        originals = {copy: original for original, copy in self.builder.images.items()}
        target = Path(self.builder.outdir, "_images", dark_name(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        return darken_file(Path(self.builder.srcdir, originals[name]), target)


def write_at_once(app: Sphinx, _env: object) -> None:
    """Let each processor write pages. (Jupyter Book has no option for it; reading stays serial.)"""
    app.parallel = 1 + (os.cpu_count() or 1)  # one of them hands out the work


def lighten(app: Sphinx, error: Exception | None) -> None:
    """Take from the built pages' style sheets what no page uses, and FontAwesome's files."""
    if error or app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    for file in static.glob("scripts/fontawesome.js*"):
        file.unlink()
    scripts = [p for p in static.rglob("*.js") if not {"mathjax", "fontawesome"} & set(p.parts)]
    pages = [p for p in Path(app.outdir).rglob("*.html") if static not in p.parents]
    used = names(map(_text, pages), map(_text, scripts))
    # Relative are the folders of this project; absolute are those of extensions.
    folders = [f for f in app.config.html_static_path if not Path(f).is_absolute()]
    own = {p.name for f in folders for p in Path(app.confdir, f).rglob("*.css")}
    for sheet in static.rglob("*.css"):
        if sheet.name not in own:
            sheet.write_text(without_unused(_text(sheet), used), encoding="utf-8")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def setup(app: Sphinx) -> dict:
    # A build makes many small objects and few cycles: a quarter of its time would go into looking
    # for garbage.
    gc.disable()
    app.config.template_bridge = f"{__name__}.Pages"
    app.add_js_file("looks.js", loading_method="defer")
    app.connect("doctree-resolved", add_captions)
    app.connect("doctree-resolved", finish_parts)
    app.connect("env-updated", write_at_once)
    app.connect("build-finished", lighten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
