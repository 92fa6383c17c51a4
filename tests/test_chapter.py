"""A new chapter is whole, in its place and green, or nothing has changed.

Chapters are made on a copy of the book, with numbers that no chapter will have.
"""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import forks
import test_form
from notebooks import ROOT, keep_cells, read, replace, text_lines
from utils.record import recorder

NAME, PAGE, RECORD = "97_trial", "book/97_trial.ipynb", "book/records/trial_first.json"
KEEP = "book/keep/trial.py"
LISTS = ("_toc.yml", "README.md", "book/index.md", "book/cheat_sheet.md")
GUIDE = (ROOT / "book" / "contributing.md").read_text(encoding="utf-8")


def run(copy: Path, *command: str) -> subprocess.CompletedProcess:
    """Run a command on the copy, with the copy's utils and without a GPU; a Python is forked."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BOOK_", "PYTEST_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    modules = os.pathsep.join([str(copy), str(ROOT / "tests" / "at_start")])
    env |= {"PYTHONPATH": modules, "CUDA_VISIBLE_DEVICES": "", "PATH": path, forks.FORK: "all"}
    how = {"cwd": copy, "env": env, "text": True}
    with forks.Popen(command, **how, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        said = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, *said)


def guided(copy: Path, section: str) -> str:
    """Run the first commands that the page names in a section, on the copy's chapter."""
    commands = re.search(rf"^## {section}\n.*?```bash\n(.*?)```", GUIDE, re.DOTALL | re.MULTILINE)
    here, said = commands[1].replace("64_logging", NAME).replace("logging_first", "trial_first"), ""
    here = re.sub("^pytest ", "python -m pytest ", here, flags=re.MULTILINE)
    for first, *rest in map(shlex.split, here.splitlines()):
        done = run(copy, sys.executable if first == "python" else first, *rest)
        said += done.stdout + done.stderr
        assert done.returncode == 0, f"{here}\n{said}"
    return said


def files(copy: Path) -> dict[str, bytes]:
    paths = [copy / "_toc.yml", copy / "README.md", *(copy / "book").rglob("*.*")]
    return {path.relative_to(copy).as_posix(): path.read_bytes() for path in paths}


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
    now = "datetime.datetime.now(datetime.timezone.utc).date()"  # which may be the edition's day
    replace(copy / "utils" / "device.py", (now, "datetime.date.max"))
    return copy


@pytest.fixture(scope="module")
def before(copy) -> dict[str, bytes]:
    return files(copy)


@pytest.fixture(scope="module")
def made(copy, before) -> Path:
    """The copy after a chapter was made there."""
    done = run(copy, sys.executable, "tools/chapter.py", NAME)
    assert done.returncode == 0 and f"{PAGE} is made and recorded" in done.stdout, done.stderr
    return copy


@pytest.fixture
def chapter(copy, monkeypatch) -> ModuleType:
    """The copy's tools/chapter.py as a module, which records nothing."""
    monkeypatch.setattr(sys, "path", [str(copy / "tools"), *sys.path])
    monkeypatch.delitem(sys.modules, "chapter", raising=False)
    module = importlib.import_module("chapter")
    monkeypatch.setattr(module.signal, "signal", lambda *handler: None)
    monkeypatch.setattr(recorder, "record", lambda path: pytest.fail(f"records {path}"))
    return module


def said(chapter: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    """Why tools/chapter.py makes no chapter of this name."""
    monkeypatch.setattr(sys, "argv", ["chapter.py", name])
    with pytest.raises(SystemExit) as ended:
        chapter.main()
    return str(ended.value.code)


# --- one that can be made ------------------------------------------------------------------------


def test_a_new_chapter_is_listed_and_changes_nothing_else(before, made) -> None:
    after = files(made)
    there = {name for name in after if after[name] != before.get(name)}
    assert there == {PAGE, RECORD, KEEP, *LISTS}
    # The hours of reading may be rounded to one more; the cheat sheet has no task for it yet.
    may_change = re.compile(r"^(## More)?\n|.*hours of.*\n", re.MULTILINE)
    for name in LISTS:
        lines, old = (may_change.sub("", t[name].decode()).splitlines() for t in (after, before))
        (new,) = [line for line in lines if line not in old]
        assert [line for line in lines if line != new] == old, "nothing else, such as a count"
        assert NAME in new
    page = read(made / PAGE)
    assert page.cells[0].source.startswith("# 9.7 · Trial\n")
    assert (made / KEEP).read_text(encoding="utf-8") == keep_cells(page)[0].source + "\n"


def test_the_guide_s_commands_work_though_a_prediction_misses(made) -> None:
    """A prediction of the author's own, 100 times too long."""
    replace(made / PAGE, (r"\"copy of 64 MiB\"", r"\"large copy\""), (" 13.4, ", " 1340, "))
    guided(made, "Record")
    assert '"predicted": 1340' in (made / RECORD).read_text(encoding="utf-8")
    assert "11 passed" in guided(made, "Check")


def test_place(chapter) -> None:
    first, new, last = (f"      - file: book/{name}\n" for name in ("11_a", "12_b", "21_c"))
    part = "  - caption: Next\n    chapters:\n"
    assert chapter.placed(first + part + last, "12_b") == first + new + part + last


# --- one that cannot -----------------------------------------------------------------------------

BAD = {
    "97_other": "the number 97 is taken by 97_trial",
    "99_trial": "book/records/trial_first.json exists",
    "99_prefetch": "book/keep/prefetch.py exists",
}
MALFORMED = ["", "9_kernels", "99-kernels", "99_8x", "99_Kernels", "99_ä", "٩٩_a", "99_a\n"]
BAD |= dict.fromkeys([*MALFORMED, "../x", f"99_{'a' * 300}"], "make chapter NAME=64_logging")


@pytest.mark.parametrize("name, why", BAD.items())
def test_a_bad_name_changes_nothing(made, chapter, monkeypatch, name, why) -> None:
    before = files(made)
    message = said(chapter, monkeypatch, name)
    assert why in message and message.endswith(". Nothing was changed.")
    assert files(made) == before


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
@pytest.mark.parametrize("name", ["97_trial", "9'7; $(echo x)"])
def test_make_passes_the_name_on(made, name) -> None:
    command = ("make", "-o", "env", f"BIN={Path(sys.executable).parent}", "chapter")
    done = run(made, *command, f"NAME={name}".replace("$", "$$"))
    errors = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode == 2 and len(errors) == 1 and name in errors[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, recorder.RecordingError("cell 3 failed")])
@pytest.mark.parametrize("when", ["recording", "_toc.yml", "cheat_sheet.md"])
def test_what_fails_half_way_changes_nothing(copy, chapter, monkeypatch, error, when) -> None:
    write, failed = Path.write_text, []

    def record(path: Path) -> None:
        (copy / "book" / "records" / "other_first.json").write_text("a record")
        if when == "recording":
            raise error

    def write_text(path: Path, text: str, **how: str) -> None:
        write(path, text, **how)
        if path.name == when and not failed:
            failed.append(path)
            raise error

    monkeypatch.setattr(recorder, "record", record)
    monkeypatch.setattr(Path, "write_text", write_text)
    before = files(copy)
    assert "hanged" in said(chapter, monkeypatch, "99_other")
    assert files(copy) == before


# --- a draft -------------------------------------------------------------------------------------


def test_a_draft_shows_that_it_was_not_measured_and_is_refused(made, tmp_path) -> None:
    """The last test, because it changes the chapter."""
    replace(made / PAGE, *((rf"{n}=\"cpu\"", rf"{n}=\"cuda\"") for n in ("needs", "device")))
    end = re.search(r"```text\n(.*?)```", GUIDE, re.DOTALL)[1].replace("64_logging", NAME)
    assert guided(made, "Record").endswith(end.replace("logging_first", "trial_first"))
    draft = shutil.copy(made / PAGE, tmp_path)
    assert any("not measured" in line for line in text_lines(read(Path(draft))))
    unrecorded, nameless = test_form.problems_of(Path(draft), made / "book" / "records")
    assert unrecorded.startswith("trial_first: never recorded")
    assert "no record gives the caption its machine" in nameless
