"""How long a chapter takes to read, and the line that says so."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from utils.record.notebooks import is_visible, minutes, set_reading_time, stated_minutes

PICTURE = new_output("display_data", {"image/png": "", "text/plain": "<Figure size 9x9>"})
TABLE = new_output("execute_result", {"text/markdown": "| a |\n| b |", "text/plain": "a\nb\nc"})


def printing(text: str):
    return new_output("stream", name="stdout", text=text)


def code(source: str, *outputs, tags: tuple[str, ...] = ()):
    return new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})


@pytest.mark.parametrize(
    "cell, expected",
    [
        (new_markdown_cell("word " * 200), 1),
        (new_markdown_cell("it's non-blocking, 1,000.5 times"), 4 / 200),
        (new_markdown_cell("[link](https://a.b/c) <b>bold</b> $$x + y$$"), 2 / 200),
        (new_markdown_cell("```\ncode is no prose\n```"), 0),
        (new_markdown_cell("```{note}\ndirectives are\n```"), 3 / 200),
        (new_markdown_cell("![alt text](a.svg)"), 2 / 200 + 1 / 4),
        (code("x = 1\n\ny = 2"), 2 / 20),
        (code("x = 1", tags=("hide-input",)), 0),
        (code("@experiment\ndef f(): ...", tags=("hide-cell",)), 2 / 20),
        (code("", printing("a\n\nb\n")), 2 / 60),
        (code("", TABLE), 2 / 60),
        (code("", PICTURE), 1 / 4),
        (code("", PICTURE, printing("a\n"), tags=("hide-input",)), 1 / 4 + 1 / 60),
    ],
)
def test_what_counts(cell, expected) -> None:
    assert minutes(new_notebook(cells=[cell])) == pytest.approx(expected)


def test_minutes_add_up() -> None:
    cells = [new_markdown_cell("word " * 100), code("x = 1", PICTURE, printing("a\n"))]
    expected = 100 / 200 + 1 / 20 + 1 / 60 + 1 / 4
    assert minutes(new_notebook(cells=cells)) == pytest.approx(expected)


@pytest.mark.parametrize("tag", ["hide-cell", "hide-input", "remove-cell", "remove-input"])
def test_an_experiment_is_visible_where_other_code_is_not(tag) -> None:
    assert not is_visible(code("x = 1", tags=(tag,)))
    assert is_visible(code("@experiment(needs='cuda')\ndef f(): ...", tags=(tag,)))
    assert is_visible(code("x = 1", tags=("keep",)))


def test_the_line_follows_the_text_and_nothing_else_changes() -> None:
    line = "*reads in 7 min · runs in 10 s on a CPU · measured on one H100*"
    first = new_markdown_cell(f"# 3 · Tensors\n\nIt takes 7 min.\n\n{line}")
    notebook = new_notebook(cells=[first, new_markdown_cell("word " * 5000)])
    set_reading_time(notebook)
    assert stated_minutes(notebook) == 25
    assert first.source.replace("reads in 25 min", "reads in 7 min").endswith(line)
    assert "It takes 7 min." in first.source
    written = first.source
    set_reading_time(notebook)
    assert first.source == written


@pytest.mark.parametrize(
    "cells", [[], [new_markdown_cell("# How we measure\n\nIt reads in 5 min")]]
)
def test_a_page_without_the_line_stays_as_it_is(cells) -> None:
    notebook = new_notebook(cells=cells)
    before = [cell.source for cell in cells]
    set_reading_time(notebook)
    assert stated_minutes(notebook) is None
    assert [cell.source for cell in notebook.cells] == before
