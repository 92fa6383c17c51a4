"""A new chapter is whole, in its place and green, or nothing has changed.

Chapters are made on a copy of the book, with numbers that no chapter will have.
"""

import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import test_form
from notebooks import ROOT, keep_cells, read, text_lines
from utils.record import recorder

NAME, PAGE, RECORD = "97_trial", "book/97_trial.ipynb", "book/records/trial_first.json"
DRAFT = "book/96_draft.ipynb"


def run(copy: Path, *command: str) -> subprocess.CompletedProcess:
    """Run a command on the copy, with the copy's utils and without a GPU."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BOOK_", "PYTEST_"))}
    env |= {"PYTHONPATH": str(copy), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)


def python(copy: Path, *arguments: str) -> subprocess.CompletedProcess:
    return run(copy, sys.executable, *arguments)


@contextmanager
def recording(copy: Path) -> Iterator[pytest.MonkeyPatch]:
    """This process records the copy's notebooks, without a GPU; their kernels have its utils."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "ROOT", copy)
        patch.setattr(recorder, "RECORDS", copy / "book" / "records")
        patch.setattr(recorder, "gpu_count", lambda: 0)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.delenv("BOOK_EXPERIMENTS", raising=False)
        yield patch


def load(copy: Path, patch: pytest.MonkeyPatch) -> ModuleType:
    """The copy's tools/chapter.py as a module."""
    patch.setattr(sys, "path", sys.path[:])
    spec = importlib.util.spec_from_file_location("chapter", copy / "tools" / "chapter.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    patch.setattr(module.signal, "signal", lambda *handler: None)
    return module


def files(copy: Path) -> dict[Path, bytes]:
    paths = [copy / "_toc.yml", *(copy / "book").glob("*.*"), *(copy / "book/records").iterdir()]
    return {path: path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the book, in a git repository, as `make chapter` finds it."""
    copy = tmp_path_factory.mktemp("book")
    left_out = shutil.ignore_patterns("__pycache__", "traces")
    for name in ("book", "utils", "tests", "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=left_out)
    for name in ("Makefile", "README.md", "CITATION.cff", "_toc.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    subprocess.run(["git", "init", "-q", str(copy)], check=True)
    return copy


@pytest.fixture(scope="module")
def made(copy) -> Path:
    """The copy after a chapter was made there."""
    before = files(copy)
    with recording(copy) as patch, redirect_stdout(io.StringIO()) as said:
        chapter = load(copy, patch)
        patch.setattr(sys, "argv", ["chapter.py", NAME])
        assert chapter.main() == 0
    assert f"{PAGE} is made and recorded" in said.getvalue()
    assert files(copy).keys() - before.keys() == {copy / PAGE, copy / RECORD}
    return copy


@pytest.fixture(scope="module")
def drafted(made) -> str:
    """What the recorder says of another chapter, whose experiment needs a GPU."""
    text = (made / PAGE).read_text(encoding="utf-8").replace("trial_first", "draft_first")
    text = text.replace("# 9.7 ·", "# 9.6 ·")
    for name in ("needs", "device"):  # as the page Contributing says
        text = text.replace(rf"{name}=\"cpu\"", rf"{name}=\"cuda\"")
    (made / DRAFT).write_text(text, encoding="utf-8")
    with recording(made), redirect_stderr(io.StringIO()) as said:
        assert recorder.main(["--allow-cpu", str(made / DRAFT)]) == 0
    return said.getvalue()


def refusals(copy: Path, page: str) -> list[str]:
    """What test_form.py says against a page of the copy."""
    return list(test_form.problems_of(copy / page, copy / "book" / "records"))


@pytest.fixture
def chapter(copy, monkeypatch) -> ModuleType:
    """The copy's tools/chapter.py as a module, which records nothing."""
    module = load(copy, monkeypatch)
    monkeypatch.setattr(recorder, "record", lambda path: pytest.fail(f"records {path}"))
    return module


# --- one that can be made ------------------------------------------------------------------------


def test_a_new_chapter_has_the_form_of_chapters(made) -> None:
    assert refusals(made, PAGE) == []
    for command in (("check",), ("format", "--check")):
        done = python(made, "-m", "ruff", *command, PAGE)
        assert done.returncode == 0, done.stdout


def test_a_new_chapter_gives_the_stored_outputs(made) -> None:
    done = python(made, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", PAGE)
    assert done.returncode == 0 and "11 passed" in done.stdout, done.stdout


def test_the_code_to_keep_of_a_new_chapter_needs_nothing_else(made, capsys) -> None:
    (cell,) = keep_cells(read(made / PAGE))
    exec(cell.source, {})
    assert capsys.readouterr().out


def test_a_new_chapter_has_its_number_its_name_and_its_place(made) -> None:
    assert read(made / PAGE).cells[0].source.startswith("# 9.7 · Trial\n")
    toc, row = (made / "_toc.yml").read_text(), f"      - file: {PAGE.removesuffix('.ipynb')}\n"
    assert toc.replace(row, "") == (ROOT / "_toc.yml").read_text()
    parts = [[c["file"] for c in part["chapters"]] for part in yaml.safe_load(toc)["parts"]]
    numbered = [part for part in parts if re.match(r"book/\d", part[0])]
    assert numbered[-1][-1] == f"book/{NAME}"


@pytest.mark.parametrize(
    "there, name, neighbors",
    [
        ("01_a 04_b | 12_c 13_d", "42_x", ("13_d", None)),
        ("01_a 04_b | 12_c 13_d", "03_x", ("01_a", "04_b")),
        ("01_a 04_b | 06_c 13_d", "05_x", ("04_b", None)),
        ("01_a 04_b | 12_c 13_d", "00_x", (None, "01_a")),
        ("01_a 04_b | 12_c | 17_d", "11_x", ("04_b", None)),  # the digit does not say which part
        ("11_a 12_b | 22_c 23_d", "21_x", (None, "22_c")),  # and here it does
        ("11_a 12_b | 22_c 23_d", "13_x", ("12_b", None)),
    ],
)
def test_place(chapter, there, name, neighbors) -> None:
    part, row = "  - caption: A part\n    chapters:\n", "      - file: book/"
    parts = [part + "".join(f"{row}{c}\n" for c in p.split()) for p in [*there.split("|"), "api"]]
    toc, said = chapter.placed("parts:\n" + "".join(parts), name)
    chapters = [
        [None, *(c["file"].removeprefix("book/") for c in part["chapters"]), None]
        for part in yaml.safe_load(toc)["parts"]
    ]
    beside = next(part for part in chapters if name in part)
    at = beside.index(name)
    assert (beside[at - 1], beside[at + 1]) == neighbors
    assert said in neighbors


# --- one that cannot -----------------------------------------------------------------------------

BAD = {
    "": "name the chapter: make chapter NAME=64_logging",
    NAME: "there is a chapter 97_trial already",
    "97_other": "the number 97 is taken by 97_trial",
    "99_trial": "book/records/trial_first.json exists",
}
MALFORMED = ["kernels", "9_kernels", "99-kernels", "99_", "99_8x", "99_Kernels", "99_ä", "٩٩_a"]
MALFORMED += ["99_a b", "99_a\n", "99_a.ipynb", "../x", f"99_{'a' * 300}"]
BAD |= dict.fromkeys(MALFORMED, "is no name for a chapter")


@pytest.mark.parametrize("name, said", BAD.items())
def test_a_bad_name_changes_nothing(made, chapter, monkeypatch, capsys, name, said) -> None:
    monkeypatch.setattr(sys, "argv", ["chapter.py", name])
    before = files(made)
    assert chapter.main() == 2
    output, errors = capsys.readouterr()
    assert output == "" and re.fullmatch(r"chapter: .+\.\n", errors), "one sentence"
    assert said in errors
    assert files(made) == before


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_make_passes_the_name_on(made) -> None:
    command = ("make", "-o", "env", f"BIN={Path(sys.executable).parent}", "chapter")
    for arguments, said in (((), "name the chapter"), ((f"NAME={NAME}",), f"a chapter {NAME}")):
        done = run(made, *command, *arguments)
        errors = [line for line in done.stderr.splitlines() if not line.startswith("make")]
        assert done.returncode == 2 and len(errors) == 1 and said in errors[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, recorder.RecordingError("cell 3 failed")])
@pytest.mark.parametrize("when", ["recording", "writing the page", "writing the contents"])
def test_what_fails_half_way_changes_nothing(
    copy, chapter, monkeypatch, capsys, error, when
) -> None:
    def record(path: Path) -> None:
        (copy / "book" / "records" / "other_first.json").write_text("a record")
        if when == "recording":
            raise error

    def replace(path: Path, goal: Path) -> None:
        stop = "_toc.yml" if when == "writing the contents" else "book/99_other.ipynb"
        if goal == copy / stop:
            raise error
        os.replace(path, goal)

    monkeypatch.setattr(recorder, "record", record)
    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(sys, "argv", ["chapter.py", "99_other"])
    before = files(copy)
    assert chapter.main() == (130 if error is KeyboardInterrupt else 1)
    assert files(copy) == before
    assert "othing was changed." in capsys.readouterr().err


# --- a draft -------------------------------------------------------------------------------------


def test_a_draft_shows_that_it_was_not_measured_and_is_refused(made, drafted) -> None:
    assert "NOT RECORDED YET: draft_first, on a machine that has cuda" in drafted
    shown = text_lines(read(made / DRAFT))
    assert "NOT RECORDED YET: draft_first" in shown
    assert any("not measured" in line for line in shown)
    unrecorded, nameless = refusals(made, DRAFT)
    assert unrecorded.startswith("draft_first: never recorded")
    assert "no record gives the caption its machine" in nameless
