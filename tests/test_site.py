"""The built pages in a browser: whole, legible, and without a single request to a network.

pages.py builds them, and says what happens where Chromium is missing.
"""

import functools
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml

import address
from access import faults
from pages import LOCAL

ROOT = Path(__file__).resolve().parent.parent
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = [TOC["root"]] + [
    chapter["file"] for part in TOC.get("parts", []) for chapter in part["chapters"]
]
# The front, the shortest chapter, and pages with formulas, wide tables, predictions.
SAMPLES = [
    TOC["root"],
    "book/00_quickstart",
    "book/51_data_parallel",
    "book/which_gpu",
    "book/23_out_of_memory",
    "book/then_and_now",
]


@pytest.fixture(scope="module", params=PAGES)
def visit(request, open_page) -> SimpleNamespace:
    """Each page of the table of contents, opened once for all tests that only look at it."""
    visit = open_page(request.param, shared=True)
    visit.first_load = list(visit.requests)
    return visit


def source(name: str) -> tuple[str, list[str]]:
    """The Markdown of a page, and the tags of all its cells."""
    if (path := ROOT / f"{name}.ipynb").exists():
        cells = nbformat.read(path, as_version=4).cells
        markdown = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        return markdown, [tag for cell in cells for tag in cell.metadata.get("tags", [])]
    return (ROOT / f"{name}.md").read_text(encoding="utf-8"), []


def contrast(page, selector: str) -> float:
    """Contrast ratio of an element's text to what is behind it, as WCAG 2 defines it.

    https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio
    """
    colours = page.locator(selector).first.evaluate(
        """element => {
            const text = getComputedStyle(element).color;
            const seen = c => !/^rgba\\(.*, 0\\)$|transparent/.test(c);
            let back = 'rgb(255, 255, 255)';
            for (let e = element; e; e = e.parentElement) {
                const colour = getComputedStyle(e).backgroundColor;
                if (seen(colour)) { back = colour; break; }
            }
            return [text, back];
        }"""
    )

    def luminance(colour: str) -> float:
        parts = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted(map(luminance, colours))
    return (light + 0.05) / (dark + 0.05)


# --- every page ----------------------------------------------------------------------------------


def test_page_is_whole(visit) -> None:
    """It shows its title, and leads to every other page."""
    title = re.search(r"^# (.+)$", source(visit.name)[0], re.MULTILINE)[1]
    shown = visit.page.locator("article h1")
    assert shown.is_visible()
    assert re.sub(r"\W", "", shown.inner_text()) == re.sub(r"\W", "", title)
    assert visit.page.locator("nav.bd-links a").count() == len(PAGES)


def test_page_asks_nothing_of_the_network(visit) -> None:
    assert [url for url in visit.requests if not url.startswith(LOCAL)] == []


def test_page_has_no_console_errors(visit) -> None:
    assert visit.errors == []


def test_tables_can_be_filtered(visit) -> None:
    tables = visit.page.locator(".dt-container:has(input)").all()
    for table in tables:
        rows, field = table.locator("tbody tr"), table.locator("input")
        before = rows.count()
        field.fill("no row has these words")
        assert rows.count() == 1 < before
        field.fill("")
        assert rows.count() == before
    if tables:
        visit.page.wait_for_timeout(100)  # for observers of what came and went
    assert visit.errors == []


def test_first_load_is_light(visit) -> None:
    """A megabyte for the front, 1.2 for a chapter, besides MathJax, where there is a formula."""
    files = {Path(unquote(urlsplit(u).path)) for u in visit.first_load if u.startswith("file:")}
    mathjax = {file for file in files if "mathjax" in file.parts}
    assert bool(mathjax) == (visit.page.locator("article .math").count() > 0)
    weights = {file.name: file.stat().st_size for file in files - mathjax}
    limit = 1_000_000 if visit.name == TOC["root"] else 1_200_000
    assert sum(weights.values()) <= limit, sorted(weights.items(), key=lambda item: -item[1])[:8]


def test_icons_are_drawn(visit) -> None:
    """icons.css has each icon that the theme names; one that it lacks would be a black square."""
    icons = "[class*='fa-']:is(.fas, .far, .fab, .fa-solid, .fa-regular, .fa-brands)"
    mask = (
        "icons => icons.filter(i => getComputedStyle(i).maskImage === 'none').map(i => i.outerHTML)"
    )
    assert visit.page.locator(icons).count() > 5
    assert visit.page.locator(icons).evaluate_all(mask) == []


def test_figures_are_numbered(visit) -> None:
    """Each picture of an output has a number that counts up, an answer, and where it is from."""
    captions = visit.page.locator(".cell_output figure figcaption").all_text_contents()
    pictures = visit.page.locator(".cell_output img:visible")
    assert len(captions) == visit.page.locator(".cell_output img.only-light").count()
    chapter = re.match(r"# (\d+(?:\.\d+)?) · ", source(visit.name)[0].lstrip())
    for number, caption in enumerate(captions, start=1):
        label = f"Figure {chapter[1]}.{number} " if chapter else f"Figure {number} "
        assert caption.strip().startswith(label)
        assert re.search(r".[.?!…] (Measured on|Drawing|Computed).*\.#?$", caption.strip())
    assert pictures.count() <= len(captions)


def test_mathematics_is_rendered(visit) -> None:
    formulas = visit.page.locator("article .math")
    if "$$" in source(visit.name)[0]:
        assert formulas.count() > 0
    assert visit.page.locator("article .math:not(:has(mjx-container))").count() == 0
    assert visit.page.locator("mjx-merror").all_inner_texts() == []
    text = visit.page.evaluate(
        """() => {
            const article = document.querySelector('article').cloneNode(true);
            article.querySelectorAll('pre, code, script, mjx-container').forEach(e => e.remove());
            return article.textContent;
        }"""
    )
    assert re.findall(r"\\[()\[\]]|\$\$|\$[^$\n]*\\[a-z]+[^$\n]*\$", text) == []


def test_images_are_there_and_described(visit) -> None:
    # Loaded anew: what is far down, or for the other theme, waits until it is seen.
    load = """images => Promise.all(images.map(async image => {
        const copy = new Image();
        copy.src = image.src;
        const loads = await copy.decode().then(() => copy.naturalWidth > 0, () => false);
        return [image.getAttribute('src'), loads, image.alt];
    }))"""
    for name, loads, alt in visit.page.locator("article img").evaluate_all(load):
        assert loads, f"{name} does not load"
        # Without a description of its own, an image gets its file's name.
        assert " " in alt.strip(), f"{name} has no description"


def test_no_sideways_scrolling_on_a_phone(visit) -> None:
    page, desktop = visit.page, visit.page.viewport_size
    too_wide = """() => [...document.querySelectorAll('article *')]
        .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
        .map(e => e.outerHTML.slice(0, 100)).slice(0, 5)"""
    page.set_viewport_size({"width": 390, "height": 844})
    try:
        page.wait_for_function("document.fonts.status === 'loaded'")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, page.evaluate(too_wide)
        # Code in a table is not broken within words: none has more lines than words.
        broken = """() => [...document.querySelectorAll('article td code .pre')]
            .filter(e => e.getClientRects().length > 1).map(e => e.textContent)"""
        assert page.evaluate(broken) == []
        look_at_wide_boxes(page)
    finally:
        page.set_viewport_size(desktop)


def look_at_wide_boxes(page) -> None:
    """What is wider than a phone scrolls, shows it, and can be reached; tables keep a column."""
    boxes = page.locator("article .pst-scrollable-table-container:visible")
    is_wide = "boxes => boxes.map(e => e.scrollWidth > e.clientWidth + 1)"
    wide = [n for n, it_is in enumerate(boxes.evaluate_all(is_wide)) if it_is]
    for box in map(boxes.nth, wide[:2]):
        box.evaluate("e => { e.scrollLeft = 40 }")
        page.wait_for_function("e => e.matches('.more-left')", arg=box.element_handle())
        first = box.locator("tbody tr :first-child").first
        assert first.bounding_box()["x"] >= box.bounding_box()["x"]
        assert box.get_attribute("tabindex") == "0"
        assert box.evaluate(
            "e => !e.matches('.more-right') || getComputedStyle(e).maskImage != 'none'"
        )
        box.evaluate("e => { e.scrollLeft = 0 }")
    code = """() => [...document.querySelectorAll('article pre')]
        .filter(e => e.scrollWidth > e.clientWidth + 1 && e.checkVisibility())
        .filter(e => getComputedStyle(e).maskImage === 'none' || e.tabIndex < 0).length"""
    page.wait_for_function(f"({code})() === 0")


@functools.cache
def anchors(path: Path) -> frozenset[str] | None:
    """The places that a link to a file can name; None if it is not there."""
    if not path.is_file():
        return None
    if path.suffix != ".html":
        return frozenset()
    return frozenset(re.findall(r'id="([^"]*)"', path.read_text(encoding="utf-8")))


def test_links_lead_somewhere(visit, site) -> None:
    dead = []
    for link in visit.page.locator("a[href]").evaluate_all("links => links.map(a => a.href)"):
        target = urlsplit(link)
        if target.scheme == "file":
            places, anchor = anchors(Path(unquote(target.path))), unquote(target.fragment)
            if places is None or (anchor and anchor not in places):
                dead.append(link.removeprefix(site.as_uri()))
    assert dead == []


def test_a_trace_is_downloaded_as_it_was_recorded(visit, site) -> None:
    links = visit.page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
    traces = [Path(unquote(urlsplit(link).path)) for link in links if link.endswith(".json.gz")]
    if visit.name == "book/61_profiler":
        assert traces
    for path in traces:
        assert path.read_bytes() == (ROOT / "book" / "traces" / path.name).read_bytes()


def test_code_can_be_copied(visit) -> None:
    cells = visit.page.locator(".cell_input .highlight")
    buttons = visit.page.locator(".cell_input .highlight button.copybtn")
    assert buttons.count() == cells.count()
    opened = ".cell:not(.tag_hide-input, .tag_hide-cell)"
    if cells.count() and visit.page.locator(f"{opened} .copybtn").count():
        cell = visit.page.locator(f"{opened} .cell_input .highlight").first
        if visit.name in SAMPLES:  # by the mouse, which takes longer
            cell.hover()
            cell.locator("button.copybtn").click()
        else:
            cell.locator("button.copybtn").evaluate("button => button.click()")
        copied = visit.page.evaluate("navigator.clipboard.readText()")
        assert copied.strip() == cell.locator("pre").inner_text().strip()


def test_cell_tags_hide_what_they_name(visit) -> None:
    tags = source(visit.name)[1]
    for tag, selector in [
        ("hide-input", ".tag_hide-input details.above-input"),
        ("hide-output", ".tag_hide-output details.below-input"),
    ]:
        assert visit.page.locator(selector).count() == tags.count(tag), tag


def test_solutions_open(visit) -> None:
    solutions = visit.page.locator("article .tag_hide-cell > details")
    assert solutions.count() == source(visit.name)[1].count("hide-cell")
    by_mouse = visit.name in SAMPLES and solutions.count() > 0  # which takes longer
    if by_mouse:
        content = solutions.first.locator(".cell_input").first
        assert not content.is_visible()
        solutions.first.locator("summary").click()
        assert content.is_visible()
    others = """(folds, first) => folds.slice(first).map(fold => {
        const content = fold.querySelector('.cell_input'), before = content.checkVisibility();
        fold.querySelector('summary').click();
        return [before, content.checkVisibility()];
    })"""
    assert all(seen == [False, True] for seen in solutions.evaluate_all(others, int(by_mouse)))


def test_page_has_no_serious_fault_of_access(visit) -> None:
    """What axe finds in a page, here at its width on a desktop in light; it comes last."""
    assert faults(visit.page) == []


# --- the book as a whole -------------------------------------------------------------------------


def test_light_and_dark(open_page) -> None:
    """The switch changes the page's colours; text is legible, and figures are not dimmed."""
    page = open_page(PAGES[1]).page
    themes = {}
    for _ in range(3):  # light, dark, as the system has it
        page.locator("button.theme-switch-button").first.click()
        theme = page.evaluate("document.documentElement.dataset.theme")
        themes[theme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for selector in ["article p", "article pre", "article h1", "nav.bd-links a"]:
            assert contrast(page, selector) > 4.5, f"{selector} in {theme}"
        for image in page.locator("article img").all():
            assert image.evaluate("image => getComputedStyle(image).filter") == "none"
            assert image.is_visible() == (f"only-{theme}" in image.get_attribute("class"))
    assert themes.keys() == {"light", "dark"}
    assert themes["light"] != themes["dark"]


@pytest.mark.parametrize("name", SAMPLES)
def test_no_serious_fault_of_access_in_the_dark_or_on_a_phone(open_page, name) -> None:
    page = open_page(name, shared=True).page
    for width, theme in [(1280, "dark"), (390, "light"), (390, "dark")]:
        page.set_viewport_size({"width": width, "height": 844})
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        # Of the dark and the light page only the colors differ.
        assert faults(page, colors_only=theme == "dark") == [], (width, theme)


def test_contents_mark_the_section_at_hand_after_a_leap(open_page) -> None:
    page = open_page("book/51_data_parallel").page
    marked = page.locator(":is(#pst-page-toc-nav, .page-toc) a.active")
    headings = page.locator("article h2")
    for i in (3, 1):
        # As a reload does it: no heading is seen on the way, nor where the page comes to rest.
        heading = headings.nth(i)
        heading.evaluate("h => scrollTo(0, h.getBoundingClientRect().bottom + scrollY + 60)")
        page.wait_for_timeout(600)
        assert marked.count() == 1
        section = heading.locator("..").get_attribute("id")
        assert marked.get_attribute("href") == f"#{section}"


def test_keyboard_reaches_every_button_and_shows_where_it_is(open_page) -> None:
    page = open_page(PAGES[1]).page
    buttons = page.locator("button:visible, summary:visible").count()
    page.evaluate(
        """() => {
            window.reached = [];
            addEventListener('focusin', ({ target }) => {
                const style = getComputedStyle(target);
                reached.push({
                    html: target.outerHTML.slice(0, 200),
                    button: /^(BUTTON|SUMMARY)$/.test(target.tagName),
                    place: [...document.querySelectorAll('*')].indexOf(target),
                    outline: style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth),
                });
            });
        }"""
    )
    first_again = "reached.findIndex(({ place }, i) => i && place === reached[0].place)"
    for _ in range(20):  # asked after each Tab, it takes twice as long
        for _ in range(20):
            page.keyboard.press("Tab")
        if (end := page.evaluate(first_again)) > 0:
            break
    reached = page.evaluate("reached")[: end if end > 0 else None]
    assert [at["html"] for at in reached if at["outline"] < 2] == []
    assert len({at["place"] for at in reached if at["button"]}) >= buttons


def test_paper_has_the_lesson_alone(open_page) -> None:
    """From a dark page, too: no sidebars, no buttons, no closed folds, and light figures."""
    page = open_page(PAGES[1]).page
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    for selector in [
        ".bd-sidebar",
        ".bd-header-article",
        ".copybtn",
        "#jb-print-docs-body",
        "summary",
    ]:
        shown = page.locator(f"{selector}:visible").count()
        assert shown == 0, selector
    assert page.locator("article h1").is_visible()
    assert page.locator("article img.only-light").first.is_visible()
    assert page.locator("article img.only-dark:visible").count() == 0
    assert contrast(page, "article p") > 7
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_index_html_leads_to_the_first_page(site) -> None:
    assert f"url={TOC['root']}.html" in (site / "index.html").read_text(encoding="utf-8")


def test_only_a_public_address_brings_buttons(visit) -> None:
    """To Colab, Binder, the page's source and a new issue."""
    elsewhere = "colab.research.google.com|mybinder.org|/edit/main/|/issues/new"
    links = visit.page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
    found = [link for link in links if re.search(elsewhere, link)]
    known = address.repository(ROOT) != ""
    assert bool(found) == known, found
    if known and (ROOT / f"{visit.name}.ipynb").exists():
        assert any(f"{visit.name}.ipynb" in link and "binder" in link for link in found)


def test_page_says_what_it_is(visit) -> None:
    head = visit.page.locator("head")
    for name in ("og:title", "og:site_name", "og:type"):
        assert head.locator(f"meta[property='{name}']").get_attribute("content").strip()
    said = head.locator("meta[name='description']").get_attribute("content")
    assert len(said) > 20 and said[-1] in ".?!:…。", said


def test_a_page_in_another_language_says_so(site) -> None:
    """So that it is read aloud, and its characters are drawn, as that language wants."""
    languages = {
        name: re.findall(
            r'<article[^>]* lang="([^"]+)"', (site / f"{name}.html").read_text("utf-8")
        )
        for name in PAGES
    }
    assert {name: found for name, found in languages.items() if found} == {"book/zh": ["zh-CN"]}


def test_a_missing_page_leads_on(open_page) -> None:
    page = open_page("404").page
    bases = page.locator("base").evaluate_all("found => found.map(base => base.href)")
    assert bases == [site for site in [address.site()] if site]
    assert page.locator("article a[href='search.html']").count() == 1


def test_the_cheat_sheet_prints_on_two_sides(open_page) -> None:
    printed = open_page("book/cheat_sheet").page.pdf(format="A4")
    assert len(re.findall(rb"/Type /Page\b", printed)) == 2


def test_the_ledger_sorts_and_filters_and_is_a_table_without_javascript(open_page, site) -> None:
    html = (site / "book/73_ledger.html").read_text(encoding="utf-8")
    rows = html.split('id="all-predictions"')[1].split("</table>")[0].count("<tr")
    assert rows > 500, "every row is in the page itself"
    visit = open_page("book/73_ledger")
    table = visit.page.locator("#all-predictions table")
    assert table.locator("tbody tr").count() == rows - 1
    visit.page.get_by_label("Filter").fill("pinned 1.5")
    some = table.locator("tbody tr").all_inner_texts()
    assert 0 < len(some) < 50 and all("pinned" in row.lower() for row in some)
    visit.page.get_by_label("Filter").fill("")
    for direction in (1, -1):
        table.get_by_role("button", name=re.compile("^factor")).press("Enter")
        table.locator(f"th[aria-sort={'ascending' if direction > 0 else 'descending'}]").wait_for()
        factors = [float(text) for text in table.locator("tbody td:nth-child(5)").all_inner_texts()]
        assert factors == sorted(factors, reverse=direction < 0)
    assert not visit.errors
