"""The search of the built pages: what it finds, what it shows, and what it does to a page.

queries.yml says which page a reader with a query needs.
"""

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import yaml
from docutils import nodes
from docutils.utils import new_document

import book_index
import book_search
from cases import cases
from pages import LOCAL, PHONE, faults

ROOT = Path(__file__).resolve().parent.parent
QUERIES = yaml.safe_load((ROOT / "tests" / "queries.yml").read_text(encoding="utf-8"))
FIRST, AMONG_THREE = (
    {query: pages.split() for pages, queries in QUERIES[kind].items() for query in queries}
    for kind in ("first", "among_three")
)
MISSPELT = QUERIES["misspelt"]
HARMLESS = [
    "",
    "   ",
    "%$#@!()[]{}*+?.\\^|/",
    "<script>window.injected = 1</script>",
    "<img src=x onerror='window.injected = 1'>",
    "\"'><b onmouseover=window.injected=1>x",
    "__proto__ constructor hasOwnProperty toString",
    "\u0000\ufffd\u202e",
    "😀 🤖",
    "(((((((((((((((((((((((a+)+)+)+)+",
    "a" * 10_000,
    "memory " * 1_500,
    "显存" * 5_000,
]


@pytest.fixture(scope="module")
def searched(open_page) -> SimpleNamespace:
    """The page search.html with everything loaded, and the pages for each of the queries."""
    visit = open_page("search", query="?q=memory")
    visit.page.locator(".book-search-hit").first.wait_for(timeout=60_000)
    visit.page.evaluate("async () => { window.engine = await bookSearch.load(); }")
    visit.find = lambda query: visit.page.evaluate("q => engine.search(q).results", query)
    visit.names = lambda query: [Path(page["url"]).stem for page in visit.find(query)]
    visit.run = lambda script, *values: visit.page.evaluate(
        f"values => {{ const text = bookSearch.text; return ({script})(...values); }}", list(values)
    )
    queries = [*FIRST, *AMONG_THREE, *QUERIES["guided"], *MISSPELT, *MISSPELT.values()]
    found = visit.page.evaluate(
        "qs => qs.map(q => engine.search(q).results.map(p => p.url))", queries
    )
    pages = ([Path(url).stem for url in urls] for urls in found)
    visit.answers = dict(zip(queries, pages, strict=True))
    return visit


def search_in(searched, pages: list[tuple[str, float, list[dict]]], query: str) -> list[str]:
    """The names of made-up pages, given with their weights and sections, as a query finds them."""
    pages = [
        {"url": name, "title": sections[0]["heading"], "weight": weight, "sections": sections}
        for name, weight, sections in pages
    ]
    script = "([data, query]) => bookSearch.create(data).search(query).results.map(p => p.url)"
    return searched.page.evaluate(script, [book_search.with_index(pages, [], {}, []), query])


# --- which pages are found -----------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "places"), [(FIRST, 1), (AMONG_THREE, 3)], ids=["1", "3"])
def test_page_that_is_needed_comes_first(searched, wanted, places) -> None:
    found = {query: searched.answers[query][:5] for query in wanted}
    missed = {q: found[q] for q, pages in wanted.items() if not {*found[q][:places]} & {*pages}}
    assert missed == {}


def test_words_of_the_front_lead_where_the_front_leads(searched) -> None:
    """To its page and, if the front names one, to its section."""
    leads = searched.page.evaluate("bookSearchData.leads")
    assert len(leads) > 20
    found = {said: searched.find(said)[0] for said, _, _ in leads}
    assert {said: found[said]["url"] for said in found} == {said: url for said, url, _ in leads}
    opened = {said: found[said]["sections"][0]["anchor"] for said, _, anchor in leads if anchor}
    assert opened == {said: anchor for said, _, anchor in leads if anchor}


def test_guide_in_chinese_stands_beside_the_chapter(searched) -> None:
    """And it does not come up for queries without Chinese."""
    beside = [query for query in QUERIES["guided"] if "zh" in searched.answers[query][1:5]]
    assert beside == QUERIES["guided"]
    plain = {query: found for query, found in searched.answers.items() if query.isascii()}
    assert [query for query, found in plain.items() if "zh" in found[:3]] == []


def test_what_only_the_guide_says_does_not_hide_the_chapter(searched) -> None:
    chapter = [{"id": "a", "heading": "A page", "prose": "Here a zebra is named."}]
    guide = [{"id": "a", "heading": "导读", "prose": "zebra 有什么区别？zebra 为什么慢？"}]
    for query, weight in [("zebra 为什么慢", 0.5), ("zebra", 1)]:
        pages = [("zh", weight, guide), ("chapter", 1, chapter)]
        assert search_in(searched, pages, query) == ["chapter", "zh"]


def test_slips_endings_and_beginnings_find_the_same_page(searched) -> None:
    first = {typed: searched.answers[typed][0] for typed in MISSPELT}
    assert first == {typed: searched.answers[meant][0] for typed, meant in MISSPELT.items()}
    for words in [
        "transfer transfers transferring",
        "synchronize synchronise synchronised",
        "reproducible reproduci",  # before it is typed
    ]:
        assert len({searched.names(word)[0] for word in words.split()}) == 1, words


def test_title_over_heading_over_prose_over_code_over_api(searched) -> None:
    sections = {
        "title": [{"id": "a", "heading": "Zebra: the page"}],
        "heading": [{"id": "a", "heading": "A page"}, {"id": "b", "heading": "Zebra"}],
        "prose": [{"id": "a", "heading": "A page", "prose": "Here a zebra is named."}],
        "code": [{"id": "a", "heading": "A page", "code": "zebra()"}],
        "api": [
            {"id": "a", "heading": "A page"},
            {"id": "b", "heading": "f", "prose": "A zebra.", "api": "utils.f"},
        ],
    }
    for better, worse in itertools.pairwise(sections):
        pages = [(name, 1, sections[name]) for name in (worse, better)]
        assert search_in(searched, pages, "zebra")[0] == better


MESSAGE = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x784 and 9216x10)"
AT = 'File "/usr/lib/python3/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl'
ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect. For debugging consider passing CUDA_LAUNCH_BLOCKING=1 Compile with "
    "`TORCH_USE_CUDA_DSA` to enable device-side assertions."
)


@pytest.mark.parametrize(
    ("pasted", "message"),
    [
        (f"Traceback (most recent call last): {f'{AT} return f(*args) ' * 9}{MESSAGE}", MESSAGE),
        (
            f"CUDA error: invalid device ordinal {ASYNCHRONOUS}",
            "CUDA error: invalid device ordinal ",
        ),
        (f"[rank3]: {MESSAGE}", MESSAGE),
        (ASYNCHRONOUS, ASYNCHRONOUS),  # there is nothing else
        (AT, AT),
    ],
    ids=["traceback", "asynchronous", "rank", "nothing else", "no error"],
)
def test_of_a_pasted_traceback_the_message_is_looked_for(searched, pasted, message) -> None:
    found, wanted = searched.find(pasted), searched.find(message)
    assert found and [page["url"] for page in found] == [page["url"] for page in wanted]
    assert found[0]["sections"][0]["anchor"] == wanted[0]["sections"][0]["anchor"]


def test_numbers_of_a_long_message_are_not_looked_for(searched) -> None:
    """But those of a short query are."""

    def numbers(query: str) -> set[str]:
        marks = [mark for page in searched.find(query) for mark in page["sections"][0]["marks"]]
        return {word for mark in marks for word in mark.split() if word.isdigit()}

    assert numbers(f"{MESSAGE} 7 8 16") == set()
    assert "99" in numbers("MNIST 99%")


# --- words, corrections, excerpts ----------------------------------------------------------------


@pytest.mark.parametrize(("word", "terms"), cases("test_terms_of_a_word"))
def test_terms_of_a_word(searched, word, terms) -> None:
    found = searched.run("word => text.terms(word)", word)
    assert found[:1] == terms[:1] and set(found) == set(terms)


def test_pages_and_queries_are_read_alike(searched) -> None:
    """The index was made in Python, and queries are read in the browser."""
    told = "() => Object.fromEntries(bookSearchData.index.words[0].map(w => [w, text.terms(w)]))"
    there = searched.run(told)
    assert len(there) > 5_000
    odd = {word: there[word] for word in there if book_index.terms(word) != there[word]}
    assert odd == {}
    text = "GradScaler, cudaMalloc_2 与 NVMe/µs: all-reduce 显存不足 HBM3e x86_64 __init__"
    words = searched.run("t => text.words(t).map(w => [w.text, w.from, w.terms])", text)
    assert words == [list(word) for word in book_index.words(text)]


def test_what_was_corrected_and_what_is_unknown_is_said(searched) -> None:
    result = searched.page.evaluate("engine.search('memroy of a xylophone')")
    assert (result["corrected"], result["unknown"]) == ("memory of a xylophone", ["xylophone"])


def test_excerpt_holds_the_words_and_is_short(searched) -> None:
    for query in ["pinned memory", "OOM", "GradScaler", "non_blocking"]:
        best = searched.find(query)[0]["sections"][0]
        shown = "".join(piece["text"] for piece in best["excerpt"])
        assert any(piece["mark"] for piece in best["excerpt"] + best["headingPieces"]), query
        assert 20 < len(shown) < 200, shown
    text = "word " * 100 + "needle " + "more " * 100
    found = searched.run("t => text.cut(t, [[500, 506]])", text)
    assert [piece["text"] for piece in found if piece["mark"]] == ["needle"]
    assert found[0]["text"] == "… " and found[-1]["text"] == " …"
    assert set("".join(p["text"] for p in found).split()) == {"…", "word", "needle", "more"}


def test_results_open_at_sections_that_exist_and_stand_in_the_order_of_the_contents(site) -> None:
    script = (site / book_search.DATA).read_text(encoding="utf-8")
    pages = json.loads(script[script.index("{") : script.rindex("}") + 1])["pages"]
    for page in pages:
        html = (site / page["url"]).read_text(encoding="utf-8")
        missing = [s["id"] for s in page["sections"] if f'id="{s["id"]}"' not in html]
        assert missing == [], page["url"]
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = [toc["root"], *(c["file"] for part in toc["parts"] for c in part["chapters"])]
    assert [page["url"] for page in pages] == [f"{name}.html" for name in listed]


# --- bad queries ---------------------------------------------------------------------------------


def test_no_query_does_harm(searched) -> None:
    page = searched.page
    for query in HARMLESS:
        page.locator("#book-search input").fill(query)
        page.locator("#book-search form").evaluate("form => form.requestSubmit()")
        page.wait_for_function(
            "!document.querySelector('.book-search-status').textContent.includes('…')"
        )
        assert page.evaluate("window.injected") is None, query
        assert page.locator("#book-search :is(script, img, b)").count() == 0, query
        assert re.search(r"\w", query) or page.locator(".book-search-hit").count() == 0, query
    assert searched.errors == []


def test_no_address_does_harm(open_page) -> None:
    evil = "%3Cimg src=x onerror=window.injected=1%3E"
    for name, query in [("search", "?q="), ("404", "?mark=")]:
        visit = open_page(name, query=f"{query}{evil}|.*|%E0%A4%A#%E0%A4%A", shared=True)
        visit.page.wait_for_timeout(300)
        assert visit.page.evaluate("window.injected") is None
        assert visit.page.locator("img[src=x]").count() == 0
        assert visit.errors == []


def test_no_page_does_harm(open_page) -> None:
    """What pages say is shown as text."""
    evil = "zebra <img src=x onerror='window.injected = 1'>"
    section = {"id": "a", "heading": evil, "prose": evil, "code": evil}
    sections = [section | {"heading": "Other"}, section]
    page = {"url": "a.html", "title": evil, "weight": 1, "sections": sections}
    shown = open_page("404", shared=True).page
    shown.evaluate(  # what data.js says later does not change it
        "value => { Object.defineProperty(window, 'bookSearchData', { value }); }",
        book_search.with_index([page], [], {}, []),
    )
    shown.keyboard.press("Control+k")
    shown.keyboard.type("zebra")
    hit = shown.locator(".book-search-hit")
    hit.wait_for(timeout=60_000)
    assert hit.inner_text().count(evil) == 3
    assert shown.locator("dialog img").count() == 0
    assert shown.evaluate("window.injected") is None


def test_end_of_a_long_query_is_not_read(searched) -> None:
    query = f"pinned memory{' ' * 300}roofline"
    assert searched.names(query) == searched.names("pinned memory ")


# --- the field, and the page that a result opens -------------------------------------------------


def test_search_from_the_keyboard(open_page) -> None:
    """Ctrl+K, a query, an arrow, Enter: the section, with its words marked; Escape unmarks."""
    visit = open_page("404")
    page = visit.page
    assert [url for url in visit.requests if url.endswith(("data.js", "engine.js"))] == []
    page.keyboard.press("Control+k")
    page.keyboard.type("pinned memory")
    page.locator(".book-search-hit").first.wait_for(timeout=60_000)
    assert re.match(r"\d+ pages", page.locator("[role=status]").inner_text())
    page.keyboard.press("ArrowDown")
    chosen = page.evaluate("document.activeElement.textContent")
    assert "pinned memory" in chosen.lower()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.tagName") == "INPUT"
    page.keyboard.type(" xyzzyx")  # its answer comes when the focus is in the list already
    page.keyboard.press("ArrowDown")
    page.get_by_text("no page has").wait_for(timeout=60_000)
    assert page.evaluate("document.activeElement.className") == "book-search-hit"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("pinned memory")
    page.keyboard.press("Enter")
    marks = page.locator("mark.book-mark")
    marks.first.wait_for(timeout=60_000)
    assert "15_transfers.html#pinned-memory" in page.url and "mark=" not in page.url
    assert "pinned memory" in {text.lower() for text in marks.all_inner_texts()}
    page.wait_for_function(  # the older theme scrolls there smoothly
        "mark => { const { top, bottom } = mark.getBoundingClientRect();"
        " return top >= 0 && bottom <= innerHeight; }",
        arg=marks.first.element_handle(),
    )
    inside = "mark => mark.closest('section').id.startsWith('pinned-memory')"
    assert marks.evaluate_all(f"marks => marks.every({inside})")
    page.keyboard.press("Escape")
    assert marks.count() == 0
    assert [url for url in visit.requests if not url.startswith(LOCAL)] == []
    assert visit.errors == []


def test_dialog_can_be_used_by_all(open_page) -> None:
    """Every stop of the keyboard shows that it has the focus, and is in sight; axe finds nothing.

    On a phone and in the dark, too. A word is corrected; there are long ones.
    """
    page = open_page("404", shared=True).page  # the shortest: axe looks behind the dialog, too
    button = page.locator(".search-button__button:visible").first
    button.focus()
    page.keyboard.press("Enter")
    page.keyboard.insert_text("pinned memroy")  # at once: one search, one list
    page.locator("dialog mark").first.wait_for(timeout=60_000)
    focus = """() => {
        const at = document.activeElement, style = getComputedStyle(at);
        const { top, bottom } = at.getBoundingClientRect();
        const shown = at.closest('dialog').getBoundingClientRect();
        return {
            name: at.name || at.ariaLabel || at.href,
            outline: style.outlineStyle === 'none' ? 0 : parseFloat(style.outlineWidth),
            seen: top >= shown.top && bottom <= shown.bottom,
        };
    }"""
    links = page.locator("dialog .book-search-results a")
    addresses = links.evaluate_all("links => links.map(link => link.href)")
    stops = [page.evaluate(focus)]
    for _ in addresses:
        page.keyboard.press("ArrowDown")
        stops.append(page.evaluate(focus))
    page.keyboard.press("ArrowDown")
    assert [stop["name"] for stop in stops] == ["q", *addresses]
    assert page.evaluate(focus) == stops[-1], "nothing comes after the last"
    page.locator("dialog input").focus()
    page.keyboard.press("Tab")
    stops.append(page.evaluate(focus))
    assert stops[-1]["name"] == "Close"
    assert [stop for stop in stops if stop["outline"] < 2 or not stop["seen"]] == []
    assert faults(page, "dialog[open]") == []
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert button.evaluate("button => button === document.activeElement")
    page.set_viewport_size(PHONE)
    page.keyboard.press("Control+k")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.locator("dialog input").fill("expected to be on the same devise cudnn.benchmark")
    page.locator("dialog mark", has_text="device").first.wait_for(timeout=60_000)
    width = "element => element.scrollWidth <= element.clientWidth"
    assert page.locator(".book-search-results").evaluate(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert faults(page, "dialog[open]") == []


def test_word_in_a_fold_is_unfolded(open_page) -> None:
    """A word that stands nowhere in its section but in a fold."""
    page = open_page("book/11_detection", shared=True).page
    fold = page.locator("article section:not(:has(section)) details:has(pre)").first
    section, word = fold.evaluate(
        """fold => {
            const section = fold.closest('section');
            const copy = section.cloneNode(true);
            copy.querySelectorAll('details, section').forEach(element => element.remove());
            const outside = new Set(copy.textContent.toLowerCase().match(/\\w+/g));
            const words = fold.querySelector('pre').textContent.match(/[a-z]\\w{5,}/g);
            return [section.id, words.find(word => !outside.has(word.toLowerCase()))];
        }"""
    )
    page.goto(page.url.split("?")[0] + f"?mark={word}#{section}")
    marks = page.locator("mark.book-mark")
    marks.first.wait_for(timeout=30_000)
    assert marks.first.is_visible()


def test_search_works_on_a_server(browser, site) -> None:
    page = browser.new_page()
    page.route("**/*", lambda it: it.fulfill(path=site / urlsplit(it.request.url).path[1:]))
    page.goto("http://book.example/search.html?q=OOM")
    hit = page.locator(".book-search-hit").first
    hit.wait_for(timeout=60_000)
    assert "23_out_of_memory" in hit.get_attribute("href")
    page.close()


def test_without_javascript_search_says_so(browser, site) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto((site / "search.html").as_uri())
    assert "Search needs JavaScript" in page.locator("article").inner_text()
    context.close()


# --- what is shipped -----------------------------------------------------------------------------


def test_sphinx_own_search_is_not_shipped(site) -> None:
    assert [name for name in book_search.UNUSED if (site / name).exists()] == []
    assert "searchtools" not in (site / "book" / "index.html").read_text(encoding="utf-8")
    assert (site / book_search.DATA).stat().st_size < 2_800_000


def test_synonyms_are_texts_and_name_no_page() -> None:
    entries = yaml.safe_load(book_search.SYNONYMS.read_text(encoding="utf-8"))
    for entry in entries:
        assert entry.keys() == {"say", "mean"}
        texts = entry["say"] + entry["mean"]
        assert all(isinstance(text, str) and text.strip() for text in texts), entry
        assert not any(re.search(r"book/|\.html|^\d\d_", text) for text in texts), entry


# --- what is indexed -----------------------------------------------------------------------------


def test_sections_hold_their_own_text_without_what_is_folded_printed_or_a_formula() -> None:
    def cell(text, *tags):
        source = nodes.container("", nodes.literal_block(text, text), classes=["cell_input"])
        printed = nodes.container("", nodes.literal_block("3", "3"), classes=["cell_output"])
        return nodes.container("", source, printed, classes=["cell", *tags])

    formula = nodes.paragraph("", "", nodes.Text("Above,\n"), nodes.math("", r"\frac{1}{2}"))
    row = nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in ("one", "two")))
    cells = [cell("x = 1"), cell("import this", "tag_hide-input"), nodes.comment("", "no")]
    below = nodes.section("", nodes.title("", "Inner"), *cells, ids=["in"])
    page, parts = new_document("page"), (formula, nodes.tbody("", row), below)
    page += nodes.section("", nodes.title("", "The title"), *parts, ids=["top"])
    found = book_search.sections(page)
    assert [[s[key] for key in ("id", "heading", "prose", "code")] for s in found] == [
        ["top", "The title", "Above, …\none · two", ""],
        ["in", "Inner", "", "x = 1"],
    ]


def test_the_first_pattern_that_fits_gives_a_page_its_weight() -> None:
    weights = {"book/trials_a": 0.7, "book/trials_*": 0.5}
    names = ["book/trials_a", "book/trials_b", "book/other"]
    assert [book_search.weight(name, weights) for name in names] == [0.7, 0.5, 1.0]
