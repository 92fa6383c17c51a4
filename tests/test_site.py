"""The built pages in a browser: whole, legible, and without a single request to a network.

pages.py builds them, and says what happens where Chromium is missing.
"""

import functools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import address
from notebooks import ROOT, read, tags
from pages import LOCAL, PHONE, faults, look

TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = [TOC["root"]] + [
    chapter["file"] for part in TOC.get("parts", []) for chapter in part["chapters"]
]
# The front, the shortest chapter, and pages with formulas, wide tables, predictions.
NAMED = ("00_quickstart", "51_data_parallel", "which_gpu", "23_out_of_memory", "then_and_now")
SAMPLES = [TOC["root"], *(f"book/{name}" for name in (*NAMED, "explore"))]
THEME = "theme => { document.documentElement.dataset.theme = theme; }"


def source(name: str) -> tuple[str, list[str]]:
    """The Markdown of a page, and the tags of all its cells."""
    if (path := ROOT / f"{name}.ipynb").exists():
        cells = read(path).cells
        markdown = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        return markdown, [tag for cell in cells for tag in tags(cell)]
    return (ROOT / f"{name}.md").read_text(encoding="utf-8"), []


# --- every page ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_page(open_page, site, name) -> None:
    """Opened once: what is wrong with it, on a desktop and on a phone, in light and in dark."""
    visit = open_page(name, shared=True)
    page, first_load = visit.page, list(visit.requests)
    seen = SimpleNamespace(**look(page, "seen"))
    problems = [
        *(f"asks the network: {url}" for url in visit.requests if not url.startswith(LOCAL)),
        *wrong_with_text(name, seen),
        *wrong_with_figures(name, seen),
        *wrong_with_links(name, seen, site),
        *wrong_with_cells(name, seen),
        *heavy(name, first_load, seen.formulas > 0),
        *unfiltered(page),
        *(f"in light: {fault}" for fault in look(page, "pale")),
    ]
    page.evaluate(THEME, "dark")
    problems += [f"in the dark: {fault}" for fault in faults(page)]
    page.set_viewport_size(PHONE)
    problems += [f"too wide for a phone: {html}" for html in look(page, "wide")]
    if name in SAMPLES:
        page.evaluate(THEME, "light")
        problems += [f"on a phone: {fault}" for fault in faults(page)]
    assert problems + [f"complains: {text}" for text in visit.errors] == []


def wrong_with_text(name: str, seen: SimpleNamespace) -> Iterator[str]:
    text = source(name)[0]
    title = re.search(r"^# (.+)$", text, re.MULTILINE)[1]
    if re.sub(r"\W", "", seen.title) != re.sub(r"\W", "", title):
        yield f"its title is {seen.title!r}"
    if seen.chapters != len(PAGES):
        yield f"leads to {seen.chapters} pages of {len(PAGES)}"
    if seen.unset or seen.tex or ("$$" in text and not seen.formulas):
        yield f"mathematics is not set: {seen.unset} formulas, {seen.tex}"
    undrawn = [icon for icon, mask in seen.icons if mask == "none"]
    if len(seen.icons) <= 5 or undrawn:  # one that icons.css lacks would be a black square
        yield f"icons are not drawn: {undrawn}"
    said = seen.meta.get("description", "")
    if len(said) <= 20 or said[-1] not in ".?!:…。":
        yield f"says of itself: {said!r}"
    yield from (f"has no {key}" for key in ("og:title", "og:site_name") if not seen.meta.get(key))


def wrong_with_figures(name: str, seen: SimpleNamespace) -> Iterator[str]:
    """Each picture of an output has a number that counts up, an answer, and where it is from."""
    chapter = re.match(r"# (\d+(?:\.\d+)?) · ", source(name)[0].lstrip())
    for number, caption in enumerate(seen.captions, start=1):
        label = f"Figure {chapter[1]}.{number} " if chapter else f"Figure {number} "
        said = re.search(r".[?.!…] (Measured on|Drawing|Computed).*\.#?$", caption)
        if not caption.startswith(label) or not said:
            yield f"a figure's caption: {caption!r}"
    if len(seen.captions) != seen.pictures:
        yield f"{len(seen.captions)} captions for {seen.pictures} pictures"
    for file, described, loads in seen.images:
        if not loads or " " not in described.strip():  # else it has its file's name
            yield f"{file}: loads: {loads}, description: {described!r}"


@functools.cache
def anchors(path: Path) -> frozenset[str] | None:
    """The places that a link to a file can name; None if it is not there."""
    if not path.is_file():
        return None
    if path.suffix != ".html":
        return frozenset()
    return frozenset(re.findall(r'id="([^"]*)"', path.read_text(encoding="utf-8")))


def wrong_with_links(name: str, seen: SimpleNamespace, site: Path) -> Iterator[str]:
    for link in seen.links:
        path, anchor = Path(unquote(urlsplit(link).path)), unquote(urlsplit(link).fragment)
        places = anchors(path) if link.startswith("file:") else {anchor}
        if places is None or (anchor and anchor not in places):
            yield f"leads nowhere: {link.removeprefix(site.as_uri())}"
        trace = ROOT / "book" / "traces" / path.name
        if path.name.endswith(".json.gz") and path.read_bytes() != trace.read_bytes():
            yield f"{path.name} is not as it was recorded"
    elsewhere = "colab.research.google.com|mybinder.org|/edit/main/|/issues/new"
    buttons = [link for link in seen.links if re.search(elsewhere, link)]
    is_known = bool(address.repository(ROOT))
    launches = any(f"{name}.ipynb" in link and "binder" in link for link in buttons)
    is_notebook = (ROOT / f"{name}.ipynb").exists()
    if bool(buttons) != is_known or (is_known and launches != is_notebook):
        yield f"only a public address brings buttons, and a notebook's runs it: {buttons}"


def wrong_with_cells(name: str, seen: SimpleNamespace) -> Iterator[str]:
    """Code can be copied, and is folded where its tags say so."""
    if seen.buttons != seen.cells:
        yield f"{seen.buttons} buttons copy {seen.cells} cells"
    wanted = {tag: source(name)[1].count(tag) for tag in seen.folds}
    if seen.folds != wanted or seen.open:
        yield f"folds: {seen.folds}, {seen.open} of them open; tags: {wanted}"


def heavy(name: str, urls: list[str], has_formulas: bool) -> Iterator[str]:
    """A megabyte for the front, 1.2 for a chapter, besides MathJax, where there is a formula."""
    files = {Path(unquote(urlsplit(url).path)) for url in urls if url.startswith("file:")}
    mathjax = {file for file in files if "mathjax" in file.parts}
    if bool(mathjax) != has_formulas:
        yield f"loads of MathJax: {mathjax}"
    weights = sorted(((file.stat().st_size, file.name) for file in files - mathjax), reverse=True)
    if sum(size for size, _ in weights) > (1_000_000 if name == TOC["root"] else 1_200_000):
        yield f"the first load is heavy: {weights[:8]}"


def unfiltered(page) -> Iterator[str]:
    for table in page.locator(".dt-container:has(input)").all():
        rows, field = table.locator("tbody tr"), table.locator("input")
        before = rows.count()
        field.fill("no row has these words")
        hidden = rows.count() == 1 < before
        field.fill("")
        if not hidden or rows.count() != before:
            yield "a table is not filtered"
        page.wait_for_timeout(100)  # for observers of what came and went


# --- the book as a whole -------------------------------------------------------------------------


def test_code_is_copied_and_solutions_open(open_page) -> None:
    page = open_page("book/51_data_parallel", shared=True).page
    cell = page.locator(".cell:not(.tag_hide-input, .tag_hide-cell) .cell_input .highlight").first
    cell.hover()
    cell.locator("button.copybtn").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == cell.locator("pre").inner_text().strip()
    solution = page.locator("article .tag_hide-cell > details").first
    content = solution.locator(".cell_input").first
    assert not content.is_visible()
    solution.locator("summary").click()
    assert content.is_visible()


def test_light_and_dark(open_page) -> None:
    """The switch changes the page's colours; text is legible, and figures are not dimmed."""
    page = open_page(PAGES[1]).page
    themes = {}
    for _ in range(3):  # light, dark, as the system has it
        page.locator("button.theme-switch-button").first.click()
        theme = page.evaluate("document.documentElement.dataset.theme")
        themes[theme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert look(page, "pale") == []
        for image in page.locator("article img").all():
            assert image.evaluate("image => getComputedStyle(image).filter") == "none"
            assert image.is_visible() == (f"only-{theme}" in image.get_attribute("class"))
    assert themes.keys() == {"light", "dark"}
    assert themes["light"] != themes["dark"]


def test_contents_mark_the_section_at_hand_after_a_leap(open_page) -> None:
    page = open_page("book/51_data_parallel", shared=True).page
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
    page = open_page(PAGES[1], shared=True).page
    buttons = page.locator("button:visible, summary:visible").count()
    page.evaluate(
        """() => {
            window.reached = [];
            addEventListener('focusin', ({ target }) => {
                const { outlineStyle, outlineWidth } = getComputedStyle(target);
                reached.push([target, outlineStyle === 'none' ? 0 : parseFloat(outlineWidth)]);
            });
        }"""
    )
    for _ in range(20):  # asked after each Tab, it takes twice as long
        for _ in range(20):
            page.keyboard.press("Tab")
        if page.evaluate("reached.findIndex(([at], i) => i && at === reached[0][0])") > 0:
            break
    faint = "reached.filter(([, outline]) => outline < 2).map(([at]) => at.outerHTML.slice(0, 200))"
    assert page.evaluate(faint) == []
    folds = "reached.map(([at]) => at).filter(at => /^(BUTTON|SUMMARY)$/.test(at.tagName))"
    assert page.evaluate(f"new Set({folds}).size") >= buttons


def test_paper_has_the_lesson_alone(open_page) -> None:
    """From a dark page, too: no sidebars, no buttons, no closed folds, and light figures."""
    page = open_page(PAGES[1], shared=True).page
    page.evaluate(THEME, "dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    gone = ".bd-sidebar, .bd-header-article, .copybtn, #jb-print-docs-body, summary"
    assert page.locator(f":is({gone}):visible").count() == 0
    assert page.locator("article h1").is_visible()
    assert page.locator("article img.only-light").first.is_visible()
    assert page.locator("article img.only-dark:visible").count() == 0
    assert look(page, "pale", "article") == []
    page.emulate_media(media="null")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_index_html_leads_to_the_first_page(site) -> None:
    assert f"url={TOC['root']}.html" in (site / "index.html").read_text(encoding="utf-8")


def test_a_page_in_another_language_says_so(site) -> None:
    """So that it is read aloud, and its characters are drawn, as that language wants."""
    said = re.compile(r'<article[^>]* lang="([^"]+)"')
    languages = {name: said.findall((site / f"{name}.html").read_text("utf-8")) for name in PAGES}
    assert {name: found for name, found in languages.items() if found} == {"book/zh": ["zh-CN"]}


def test_a_missing_page_leads_on(open_page) -> None:
    page = open_page("404", shared=True).page
    bases = page.locator("base").evaluate_all("found => found.map(base => base.href)")
    assert bases == [site for site in [address.site()] if site]
    assert page.locator("article a[href='search.html']").count() == 1
    assert page.title().startswith("There is no such page")


def test_the_cheat_sheet_prints_on_two_sides(open_page) -> None:
    printed = open_page("book/cheat_sheet", shared=True).page.pdf(format="A4")
    assert len(re.findall(rb"/Type /Page\b", printed)) == 2


def seconds(text: str) -> float | None:
    """A time of the ledger in one unit."""
    number, _, unit = text.replace(",", "").partition(" ")
    scale = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}.get(unit)
    return scale and round(float(number) * scale, 12)


def off(text: str) -> float:
    """How far a ratio is from 1, either way."""
    return abs(math.log(float(text))) if float(text) > 0 else math.inf


def test_the_ledger_sorts_and_filters_and_is_a_table_without_javascript(open_page, site) -> None:
    html = (site / "book/ledger.html").read_text(encoding="utf-8")
    rows = html.split('id="all-predictions"')[1].split("</table>")[0].count("<tr")
    assert rows > 500, "every row is in the page itself"
    visit = open_page("book/ledger", shared=True)
    table = visit.page.locator("#all-predictions table")
    assert table.locator("tbody tr").count() == rows - 1
    visit.page.get_by_label("Filter").fill("pinned 1.5")
    some = table.locator("tbody tr").all_inner_texts()
    assert 0 < len(some) < 50 and all("pinned" in row.lower() for row in some)
    visit.page.get_by_label("Filter").fill("")
    for place, (head, size) in {4: ("measured", seconds), 5: ("measured ÷", off)}.items():
        for way in ("ascending", "descending"):
            button = table.get_by_role("button", name=re.compile(f"^{head}(?! ÷)"))
            button.press("Enter")
            table.locator(f"th:nth-child({place})[aria-sort={way}]").wait_for()
            texts = table.locator(f"td:nth-child({place})").all_inner_texts()
            sizes = [found for found in map(size, texts) if found is not None]
            assert len(sizes) > 100 and sizes == sorted(sizes, reverse=way == "descending")
    assert not visit.errors
