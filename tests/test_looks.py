"""What tools/looks does to pages while they are built."""

import io
import json

import numpy as np
import pytest
from docutils import nodes
from docutils.utils import new_document
from myst_nb.sphinx_ import HideCodeCellNode
from PIL import Image, ImageColor

from book_looks import finish
from captions import machine, origins, sentence, words
from cases import cases
from dark import BLACK, INKS, PAPER, dark_png, dark_svg, darken_file, darkened, svg_size
from notebooks import BOOK
from parts import finish_parts, fold_name
from unused_css import names, without_unused
from utils import plotting


def rgb(color: str) -> np.ndarray:
    return np.array(ImageColor.getrgb(color))


def luminance(color: str) -> float:
    c = rgb(color) / 255
    c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return float(c @ [0.2126, 0.7152, 0.0722])


# --- dark figures --------------------------------------------------------------------------------


def test_inks_and_paper_are_those_of_figures_and_pages() -> None:
    assert {light for light, _ in INKS} == set(plotting.COLORS) - {plotting.BLACK}
    assert PAPER[0] == plotting.STYLE["figure.facecolor"]
    css = (BOOK / "_static" / "book.css").read_text(encoding="utf-8")
    assert all(f"--pst-color-background: {color.lower()};" in css for color in PAPER)


def test_each_color_becomes_what_stands_for_it_and_edges_lie_between() -> None:
    for light, dark in [PAPER, BLACK, *INKS]:
        assert np.abs(darkened(rgb(light)[None])[0].astype(int) - rgb(dark)).max() <= 1, light
        half = darkened(((rgb(PAPER[0]) + rgb(light)) / 2)[None])[0]
        assert np.abs(half - (rgb(PAPER[1]) + rgb(dark)) / 2).max() <= 12, light
        legible = (luminance(dark) + 0.05) / (luminance(PAPER[1]) + 0.05) > 4.5
        assert legible or dark == PAPER[1], dark


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_a_picture_keeps_its_size_and_shapes_and_its_letters_can_be_read(mode) -> None:
    """Black letters stay dark on a bar, and get light on paper."""
    picture = Image.new("RGB", (200, 100), PAPER[0])
    picture.paste(plotting.SKY, (0, 0, 100, 100))
    for x in (50, 150):
        picture.paste("#000000", (x, 45, x + 4, 55))
    picture = picture.quantize(8) if mode == "P" else picture.convert(mode)
    picture.save(file := io.BytesIO(), "PNG")
    dark = Image.open(io.BytesIO(dark_png(file.getvalue()))).convert("RGB")
    assert dark.size == (200, 100)
    sky = dict(INKS)[plotting.SKY]
    for at, color in ((52, PAPER[1]), (152, BLACK[1]), (20, sky), (190, PAPER[1])):
        assert np.abs(np.array(dark.getpixel((at, 50))) - rgb(color)).max() <= 3, at


def test_a_drawing_whose_letters_have_no_color_gets_light_ones() -> None:
    dark = dark_svg(f'<svg viewBox="0 0 4 4"><rect fill="{PAPER[0]}"/><text>a</text></svg>')
    assert dark.startswith(f'<svg fill="{BLACK[1].lower()}"')
    assert f'<rect fill="{PAPER[1].lower()}"/>' in dark
    assert dark_svg('<svg fill="#000000"/>').count("fill") == 1


def test_size_of_a_drawing() -> None:
    box = '<svg viewBox="0 0 400 590"'
    assert svg_size(f'{box} width="640">') == (640, 944)
    assert svg_size(f"{box}>") == svg_size(f'{box}><rect width="10"/>') == (400, 590)
    with pytest.raises(ValueError, match="viewBox"):
        svg_size('<svg width="640"/>')


def test_only_pngs_and_drawings_have_a_dark_variant(tmp_path) -> None:
    Image.new("P", (30, 20)).save(tmp_path / "a.png")
    assert darken_file(tmp_path / "a.png", tmp_path / "dark.png") == (30, 20)
    assert darken_file(tmp_path / "photo.jpg", tmp_path / "dark.jpg") is None
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "dark.png"}


# --- captions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('fig, ax = figure("One", "x")', ["One"]),
        ('show(timeline(t, "A"), "drawing")\nshow(timeline(t, "B"), "drawing")', ["A", "B"]),
        ('fig.suptitle("Two", x=0)', ["Two"]),
        ('figure(title, "x [ms]")', [None]),  # not the label of an axis
        ('title, unit = "Three", "GiB"\nfig, ax = figure(title, unit)', ["Three"]),
        ('figure(f"{n} GPUs")', [None]),
        ('fig, ax = figure("One")\ntimeline(ax, trace)', ["One"]),
        ("%time figure('One')", [None]),
        ('figure("One")\nfigure("Two")\nfigure("Three")', [None, None]),  # which of them?
    ],
)
def test_a_figure_answers_what_its_title_says(source, expected) -> None:
    assert words(source, len(expected)) == expected
    own = words(source, len(expected), "Own.")
    assert own == (["Own."] if len(expected) == 1 else expected), "that of a single picture"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("show(fig, speeds.where)", ["record:speeds"]),
        ('show(fig, recorded("a").where)', ["record:a"]),
        ('show(fig, "drawing")\nshow(fig, "drawing, cut")', ["drawing", "drawing, cut"]),
        ("show(fig, first.where)", ["record:a"]),
        ('show(fig, f"{first.where} and {second.where}")', ["record:a"]),
        ("show(fig, second.where)", ["record:b"]),
        ("show(fig, where)", [""]),
        ("%time show(fig, speeds.where)", []),
    ],
)
def test_a_figure_comes_from_what_its_cell_shows(source, expected) -> None:
    above = ['first, n = recorded("a"), 2\nsecond = recorded("b")', "%matplotlib inline"]
    assert origins(source, above) == expected


@pytest.mark.parametrize(
    "gpu, count, said",
    [
        ("NVIDIA H100 80GB HBM3", 1, "one H100"),
        ("NVIDIA H200", 4, "four H200s"),
        ("NVIDIA GeForce RTX 4090", 5, "5 RTX 4090s"),
        (None, 0, "Intel Xeon"),
    ],
)
def test_a_caption_names_the_machine_of_the_record(gpu, count, said, tmp_path) -> None:
    provenance = {"gpu": gpu, "gpu_count": count, "cpu": "Intel Xeon"}
    (tmp_path / "r.json").write_text(json.dumps({"provenance": provenance}))
    assert machine("record:r", tmp_path) == machine(said, tmp_path) == f"Measured on {said}."
    assert machine("record:still to be made", tmp_path) == machine("", tmp_path) == ""
    assert machine("drawing: an SM is a square", tmp_path) == "Drawing: an SM is a square."


def test_a_title_becomes_a_sentence() -> None:
    titles = ["Who waits?", "It grows", "It grows.", "Leave one out …", "He said “no.”"]
    assert [t for t in titles if sentence(t) != t] == ["It grows"]


# --- folds, boxes, links -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch\nfrom utils import show", "The imports"),
        ("# How the blocks lie.\ndraw()", "Code: How the blocks lie"),
        ("def a(): pass\n\nclass B: pass", "Code: a, B"),
        ("assert a == b", "What is checked"),
        ("in_short({'1.5 s': seconds})", "Where the box's numbers come from"),
        ("%time draw()", "The code of the table"),
    ],
)
def test_a_fold_is_called_by_what_is_in_it(source, name) -> None:
    assert fold_name(source, "the table") == name


def test_folds_that_follow_one_another_are_one() -> None:
    page = new_document("page")
    for name in ("Show the stopwatch", "Code: a, b", "", "The imports", "Show more helpers"):
        fold = HideCodeCellNode(prompt_show=name, prompt_hide="", classes=["above-input"])
        fold += nodes.literal_block(name, name)
        page += nodes.container("", fold) if name else nodes.paragraph("", "Then:")
    finish_parts(None, page, "page")
    names = ["Show the stopwatch; a, b", "Show the imports; helpers"]
    assert [fold["prompt_show"] for fold in page.findall(HideCodeCellNode)] == names
    assert len(page) == 3 and len(list(page.findall(nodes.literal_block))) == 4


def test_rules_get_a_box_and_what_looks_like_a_host_no_link() -> None:
    page, rules = new_document("page"), nodes.bullet_list("", nodes.list_item())
    page += nodes.section("", nodes.title("", "A"), nodes.paragraph("", "", nodes.Text("Promise.")))
    page[0] += [nodes.paragraph("", "", nodes.strong("", "In short")), rules, nodes.paragraph()]
    page[0][-1] += nodes.reference("", "train.py", refuri="http://train.py")
    page[0][-1] += nodes.reference("", "a site", refuri="http://a.b")
    page += nodes.raw("", '<table class="then-and-now"><pre>a.b(c, d=0.5)</pre>', format="html")
    finish_parts(None, page, "page")
    kinds = [nodes.title, nodes.paragraph, nodes.container, nodes.paragraph]
    assert list(map(type, page[0])) == kinds
    assert page[0][2]["classes"] == ["in-short"] and page[0][2][1] is rules
    assert [link.astext() for link in page.findall(nodes.reference)] == ["a site"]
    assert page[-1].astext().endswith("<pre>a<wbr>.b(<wbr>c, d=<wbr>0.5)</pre>")


# --- style sheets --------------------------------------------------------------------------------


@pytest.mark.parametrize(("css", "kept"), cases("test_rules_that_may_match_stay"))
def test_rules_that_may_match_stay(css, kept) -> None:
    assert without_unused(css, {"a", "a:b"}) == kept


def test_a_sheet_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2 of a style sheet"):
        without_unused(".a{x:1}\n.b", {"a"})


def test_a_name_is_used_if_a_page_or_a_script_has_it() -> None:
    used = names(["<p class=\"a b\"><p class='c'>"], ["e.classList.add('show-me')"])
    assert {"a", "b", "c", "show-me"} <= used


# --- pages ---------------------------------------------------------------------------------------


def finished(body: str, size: tuple[int, int] | None = (960, 624)) -> str:
    return finish(f"<article>{body}</article>", lambda name: size)


def test_mathjax_is_loaded_only_where_there_is_a_formula() -> None:
    script = '<script defer="defer" src="../_static/mathjax/tex-chtml.js"></script>'
    assert script not in finished(f"{script}<p>x</p>")
    assert script in finished(f'{script}<span class="math notranslate">x</span>')


@pytest.mark.parametrize(("wrong", "right"), cases("test_faults_are_repaired"))
def test_faults_are_repaired(wrong, right) -> None:
    assert finished(f"{wrong}<p>x</p>") == finished(f"{right}<p>x</p>")


def test_a_picture_gets_its_size_and_one_for_dark_pages() -> None:
    html = finished('<img alt="Two bars" src="../_images/a.png" />')
    assert html.count('alt="Two bars"') == html.count('width="960" height="624"') == 2
    assert 'class="only-light" src="../_images/a.png"' in html
    assert 'class="only-dark" src="../_images/a-dark.png"' in html
    image = '<img alt="A photo" src="../_images/a.jpg" />'
    assert image in finished(image, size=None), "without a dark variant it stays as it is"
