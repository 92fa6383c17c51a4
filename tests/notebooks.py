"""What the tests read from the notebooks without running them."""

import ast
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
NOTEBOOKS = sorted(BOOK.glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.name[0].isdigit()]


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """All text that the outputs of ``cell`` show."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append(output.text)
        else:
            data = output.get("data", {})
            found += [v for k, v in data.items() if k.startswith("text/") and isinstance(v, str)]
    return found


def has_figure(cell: nbformat.NotebookNode) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def experiments(notebook: nbformat.NotebookNode) -> dict[str, list[str]]:
    """Name of each ``@experiment`` of a notebook, with the sources of the cells up to it."""
    found, sources = {}, []
    for cell in code_cells(notebook):
        sources.append(cell.source)
        for node in ast.parse(cell.source).body:
            for decorator in getattr(node, "decorator_list", []):
                called = getattr(decorator, "func", decorator)
                if isinstance(called, ast.Name) and called.id == "experiment":
                    found[node.name] = list(sources)
    return found
