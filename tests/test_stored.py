"""What the recorder makes of a notebook before it is stored."""

import base64
import io

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from utils.plotting import BLUE, figure, plt
from utils.record.notebooks import SEEN, shrink, tidy


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def drawn() -> bytes:
    fig, ax = figure("How fast is a copy?", "size (MiB)", "GB/s")
    ax.plot([1, 2, 3], [3, 1, 2])
    ax.fill_between([1, 2, 3], [1, 1, 2], alpha=0.3)
    file = io.BytesIO()
    fig.savefig(file, dpi=160)
    plt.close(fig)
    return file.getvalue()


def pixels(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)


def test_a_figure_shrinks_and_looks_the_same(drawn) -> None:
    small = shrink(drawn)
    assert len(small) < len(drawn) / 2
    assert np.abs(pixels(small) - pixels(drawn)).max() <= SEEN
    line = np.array([int(BLUE[i : i + 2], 16) for i in (1, 3, 5)])
    assert (pixels(small) == line).all(axis=2).any(), "the colors of lines stay"
    assert shrink(small) == small, "shrinking again changes nothing"
    assert len(np.unique(Image.open(io.BytesIO(small)))) <= 128, "they suffice for a few lines"


def test_plain_areas_keep_their_colors() -> None:
    """A palette of means would tint the background, because letters' pale edges share its place."""
    fig, ax = figure("Six lines", "time [s]", "height [m]")
    for start in range(6):
        ax.plot(np.sin(np.linspace(start, start + 9, 50)))
    file = io.BytesIO()
    fig.savefig(file, dpi=150)
    plt.close(fig)
    exact, small = pixels(file.getvalue()), pixels(shrink(file.getvalue()))
    colors, counts = np.unique(exact.reshape(-1, 3), axis=0, return_counts=True)
    for color in colors[np.argsort(counts)[-8:]]:
        assert (small[(exact == color).all(axis=2)] == color).all()


def test_a_gradient_gets_no_bands() -> None:
    """More colors than a palette holds, evenly spread: left as it is."""
    rows, columns = np.mgrid[0:256, 0:256]
    picture = png(Image.fromarray(np.dstack([rows, columns, 255 - rows]).astype(np.uint8)))
    assert shrink(picture) == picture


def test_two_hundred_colors_far_from_each_other_need_the_larger_palette() -> None:
    levels = np.stack(np.meshgrid([0, 50, 100, 150, 200, 250], *[[0, 50, 100, 150, 200]] * 2))
    squares = levels.reshape(3, -1).T.reshape(15, 10, 3).repeat(20, 0).repeat(20, 1)
    noisy = squares + np.random.default_rng(0).integers(0, 4, squares.shape)
    picture = png(Image.fromarray(noisy.astype(np.uint8)))
    small = shrink(picture)
    assert len(small) < len(picture) / 2
    assert np.abs(pixels(small) - pixels(picture)).max() <= 16


def test_metadata_follow_the_tags() -> None:
    cells = [
        new_code_cell("1", metadata={"tags": ["hide-input"], "execution": {"start": "now"}}),
        new_code_cell("2", metadata={"tags": ["hide-cell"], "jupyter": {"other": 1}}),
        new_code_cell("3", metadata={"jupyter": {"source_hidden": True}}),
        new_code_cell("5", metadata={"tags": ["remove-cell"]}),
        new_markdown_cell("4"),
    ]
    notebook = new_notebook(cells=cells)
    tidy(notebook)
    assert [cell.metadata.get("jupyter") for cell in notebook.cells] == [
        {"source_hidden": True},
        {"other": 1, "source_hidden": True, "outputs_hidden": True},
        None,
        {"source_hidden": True, "outputs_hidden": True},
        None,
    ]
    assert "execution" not in notebook.cells[0].metadata
    nbformat.validate(notebook)


def test_pictures_of_a_notebook_shrink(drawn) -> None:
    data = {"image/png": base64.b64encode(drawn).decode(), "text/plain": "<Figure>"}
    words = new_output("display_data", data={"text/plain": "no picture"})
    cell = new_code_cell("1", outputs=[new_output("display_data", data=data), words])
    tidy(new_notebook(cells=[cell]))
    assert cell.outputs[1].data == {"text/plain": "no picture"}
    assert cell.outputs[0].data["image/png"].endswith("\n"), "as Jupyter stores it"
    assert len(cell.outputs[0].data["image/png"]) < len(data["image/png"]) / 2
