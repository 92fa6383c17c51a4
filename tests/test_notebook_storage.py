"""What the recorder makes of a notebook before it is stored, and how long it takes to read."""

import base64
import io

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from utils.plotting import figure, plt
from utils.record import notebooks
from utils.record.notebooks import minutes, shrink, stated_minutes

TABLE = new_output("execute_result", {"text/markdown": "| a |\n| b |", "text/plain": "a\nb\nc"})
PICTURE = new_output("display_data", {"image/png": "", "text/plain": "<Figure size 9x9>"})


def png(picture: np.ndarray) -> bytes:
    Image.fromarray(picture.astype(np.uint8)).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def drawn(curves: int) -> bytes:
    fig, ax = figure("How high?", "time [s]", "height [m]")
    for start in range(curves):
        ax.plot(np.sin(np.linspace(start, start + 9, 50)))
    fig.savefig(file := io.BytesIO(), dpi=150)
    plt.close(fig)
    return file.getvalue()


def pixels(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)


@pytest.mark.parametrize("curves, most", [(2, 128), (6, 256)])
def test_a_figure_shrinks_and_looks_the_same(curves, most) -> None:
    """Plain areas keep their colors: a palette of means would tint them by the letters' edges."""
    large = drawn(curves)
    small = shrink(large)
    assert len(small) < len(large) / 2
    assert shrink(small) == small, "shrinking again changes nothing"
    assert len(np.unique(Image.open(io.BytesIO(small)))) <= most
    exact, now = pixels(large), pixels(small)
    assert np.abs(now - exact).max() <= notebooks.SEEN
    colors, counts = np.unique(exact.reshape(-1, 3), axis=0, return_counts=True)
    for color in colors[np.argsort(counts)[-8:]]:
        assert (now[(exact == color).all(axis=2)] == color).all()


def test_colors_that_no_palette_holds_stay_and_two_hundred_need_the_larger_one() -> None:
    rows, columns = np.mgrid[0:256, 0:256]
    gradient = png(np.dstack([rows, columns, 255 - rows]))
    assert shrink(gradient) == gradient, "a palette would make bands"
    levels = np.stack(np.meshgrid([0, 50, 100, 150, 200, 250], *[[0, 50, 100, 150, 200]] * 2))
    squares = levels.reshape(3, -1).T.reshape(15, 10, 3).repeat(20, 0).repeat(20, 1)
    noisy = png(squares + np.random.default_rng(0).integers(0, 4, squares.shape))
    small = shrink(noisy)
    assert len(small) < len(noisy) / 2
    assert np.abs(pixels(small) - pixels(noisy)).max() <= 16


def test_tidy_follows_the_tags_drops_the_timing_and_shrinks_the_pictures() -> None:
    data = {"image/png": base64.b64encode(drawn(1)).decode(), "text/plain": "<Figure>"}
    words = new_output("display_data", data={"text/plain": "no picture"})
    outputs = [new_output("display_data", data=data), words]
    cells = [
        new_code_cell("1", metadata={"tags": ["hide-input"], "execution": {"start": "now"}}),
        new_code_cell("2", metadata={"tags": ["hide-cell"], "jupyter": {"other": 1}}),
        new_code_cell("3", metadata={"jupyter": {"source_hidden": True}}, outputs=outputs),
        new_code_cell("4", metadata={"tags": ["remove-cell"]}),
        new_markdown_cell("5"),
    ]
    notebook = new_notebook(cells=cells)
    notebooks.tidy(notebook)
    source, both = {"source_hidden": True}, {"source_hidden": True, "outputs_hidden": True}
    wanted = [source, {"other": 1} | both, None, both, None]
    assert [cell.metadata.get("jupyter") for cell in notebook.cells] == wanted
    assert "execution" not in cells[0].metadata and words.data == {"text/plain": "no picture"}
    stored = cells[2].outputs[0].data["image/png"]
    assert stored.endswith("\n"), "as Jupyter stores it"
    assert len(stored) < len(data["image/png"]) / 2
    nbformat.validate(notebook)


# --- reading time --------------------------------------------------------------------------------


def code(source: str, *outputs, tags: tuple[str, ...] = ()):
    return new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})


PRINTED = new_output("stream", name="stdout", text="a\n\nb\n")
COUNTED = [
    (new_markdown_cell("word " * 200), 1),
    (new_markdown_cell("it's non-blocking, 1,000.5 times"), 4 / 200),
    (new_markdown_cell("[link](https://a.b/c) <b>bold</b> $$x + y$$"), 2 / 200),
    (new_markdown_cell("```\ncode is no prose\n```"), 0),
    (new_markdown_cell("```{note}\ndirectives are\n```"), 3 / 200),
    (new_markdown_cell("![alt text](a.svg)"), 2 / 200 + 1 / 4),
    (code("x = 1\n\ny = 2"), 2 / 20),
    (code("x = 1", tags=("hide-input",)), 0),
    (code("@experiment\ndef f(): ...", tags=("hide-cell",)), 2 / 20),
    (code("", PRINTED), 2 / 60),
    (code("", TABLE), 2 / 60),
    (code("", PICTURE, PRINTED, tags=("hide-input",)), 1 / 4 + 2 / 60),
]


def test_what_counts_and_that_it_adds_up() -> None:
    whole = new_notebook()
    for cell, expected in COUNTED:
        whole.cells.append(cell)
        assert minutes(new_notebook(cells=[cell])) == pytest.approx(expected), cell
    assert minutes(whole) == pytest.approx(sum(expected for _, expected in COUNTED))


@pytest.mark.parametrize("tag", ["hide-cell", "hide-input", "remove-cell", "remove-input"])
def test_an_experiment_is_visible_where_other_code_is_not(tag) -> None:
    assert not notebooks.is_visible(code("x = 1", tags=(tag,)))
    assert notebooks.is_visible(code("@experiment(needs='cuda')\ndef f(): ...", tags=(tag,)))
    assert notebooks.is_visible(code("x = 1", tags=("keep",)))


def test_the_line_follows_the_text_and_nothing_else_changes() -> None:
    line = "*reads in 7 min · runs in 10 s on a CPU · measured on one H100*"
    first = new_markdown_cell(f"# 3 · Tensors\n\nIt takes 7 min.\n\n{line}")
    notebook = new_notebook(cells=[first, new_markdown_cell("word " * 5000)])
    expected = first.source.replace("reads in 7 min", "reads in 25 min")
    for _ in range(2):
        notebooks.set_reading_time(notebook)
        assert stated_minutes(notebook) == 25 and first.source == expected
    for texts in ([], ["# How we measure\n\nIt reads in 5 min"]):
        notebook = new_notebook(cells=list(map(new_markdown_cell, texts)))
        notebooks.set_reading_time(notebook)
        assert stated_minutes(notebook) is None
        assert [cell.source for cell in notebook.cells] == texts
