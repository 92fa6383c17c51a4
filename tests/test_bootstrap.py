"""`make` on a machine that has only Python: what it installs, how often, and how it fails.

Each test runs the real Makefile in an empty folder; a stand-in for Python installs nothing.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from cases import cases

ROOT = Path(__file__).resolve().parent.parent
FILES = ["Makefile", "requirements.txt", "pyproject.toml", "tools/bootstrap.sh"]
# Answers `-c CODE` as the real Python would after {before}; makes an environment of stand-ins; and
# in place of `pip install` notes the call, and runs ./pip.sh if there is one.
STAND_IN = """#!/bin/sh
case "$*" in
*"-m venv"*)
    echo venv >>calls
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    echo "VIRTUAL_ENV=$PWD/.venv" >.venv/bin/activate
    printf '#!/bin/sh\\necho the pages are built\\n' >.venv/bin/jupyter-book
    chmod +x .venv/bin/jupyter-book ;;
*"-m pip install"*)
    echo pip >>calls
    if [ -e pip.sh ]; then . ./pip.sh; fi ;;
*"-m pip list"*)
    echo torch==2.99+cpu ;;
*)
    exec {python} -c 'import sys; {before}; exec(sys.argv[2])' "$@" ;;
esac
"""

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="there is no make")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A fresh clone, as far as `make book` is concerned, with a python3 beside it."""
    clone = tmp_path / "a clone"
    for name in FILES:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    python(clone)
    disk(clone, megabytes=9000)  # not this machine's, which may be full
    return clone


def disk(folder: Path, megabytes: int) -> None:
    """Put a stand-in for `df` on the PATH of `make`: so much is free."""
    path = folder.parent / "bin" / "df"
    path.write_text(f"#!/bin/sh\necho; echo disk 9 9 {megabytes}000 9% /\n")
    path.chmod(0o755)


def python(folder: Path, name: str = "python3", before: str = "pass") -> None:
    """Put a stand-in for Python on the PATH of `make`."""
    path = folder.parent / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(STAND_IN.format(python=sys.executable, before=before))
    path.chmod(0o755)


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen:
    path = f"{folder.parent / 'bin'}:{os.environ['PATH']}"
    how = {"cwd": folder, "env": {"PATH": path, "HOME": str(folder), **environment}, "text": True}
    # A suite that was itself started in the background would pass on that Ctrl-C is ignored.
    how["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    return subprocess.Popen(["make", *arguments], **how)


def make(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit status, output and errors of `make`, less make's own last line."""
    process = start(folder, *arguments, **environment)
    output, errors = process.communicate()
    own = [line for line in errors.splitlines() if not line.startswith("make: ***")]
    return process.returncode, output, "\n".join(own)


def calls(folder: Path) -> list[str]:
    """What was asked of Python so far: environments made, installations."""
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


def change(file: Path, line: str = "# changed") -> None:
    file.write_text(f"{file.read_text()}{line}\n")


def assert_one_sentence(result: tuple[int, str, str], *words: str) -> None:
    status, output, errors = result
    assert status != 0
    assert len(errors.splitlines()) == 1, errors
    assert all(word in errors for word in words), errors
    assert "Traceback" not in output + errors


def test_help_is_the_default_and_lists_every_target(folder) -> None:
    status, output, _ = make(folder)
    assert status == 0
    for target in ["book", "test", "lab", "record", "clean", "help"]:
        assert f"make {target} " in output
    assert calls(folder) == []


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
def test_second_run_installs_nothing_but_changed_requirements(folder, name) -> None:
    first = make(folder, "book")
    (folder / name).touch()
    second = make(folder, "book")
    assert calls(folder) == ["venv", "pip"], "only a changed text counts, not a changed date"
    assert first[0] == second[0] == 0
    assert "Installing" in first[1] and "Installing" not in second[1]
    assert second[1].splitlines()[-1] == f"The book: {folder}/_build/html/index.html"
    change(folder / name)
    for _ in range(2):
        make(folder, "book")
        assert calls(folder) == ["venv", "pip", "pip"]


def test_torch_without_cuda_is_installed_first_and_stays(folder) -> None:
    (folder / "pip.sh").write_text('echo "$PIP_EXTRA_INDEX_URL $*" >>asked')
    more = {"PIP_EXTRA_INDEX_URL": "https://mine.example/simple"}
    first = make(folder, "book", "TORCH=cpu", **more)
    second = make(folder, "test", "TORCH=cpu", **more)
    assert "2.5 GB" in first[1] and "Installing" not in second[1]
    torch, rest = (folder / "asked").read_text().splitlines()
    cpu = "https://download.pytorch.org/whl/cpu"
    assert torch.startswith(cpu) and torch.endswith(f"--index-url {cpu} -r .venv/torch.txt")
    assert rest.startswith(more["PIP_EXTRA_INDEX_URL"])
    assert rest.endswith("-r requirements.txt --constraint .venv/torch.txt")
    assert (folder / ".venv" / "torch.txt").read_text() == "torch==2.99+cpu\n"


def test_another_torch_makes_another_environment(folder) -> None:
    make(folder, "book")
    (folder / ".venv" / ".build").unlink()  # from before there was a choice: it has CUDA
    made = ["venv", "pip"]
    for argument, more in [("", []), ("TORCH=cpu", ["venv", "pip", "pip"]), ("", ["venv", "pip"])]:
        made += more
        for is_change in (bool(more), False):
            status, said, _ = make(folder, "book", *argument.split())
            assert (status, "Making .venv anew" in said) == (0, is_change)
            assert calls(folder) == made


def test_another_interpreter_or_folder_makes_another_environment(folder) -> None:
    python(folder, "python3.99", before='sys.version = "another"')
    make(folder, "book")
    for arguments in (["PYTHON=python3.99"], ["PYTHON=python3.99"], []):
        assert make(folder, "book", *arguments)[0] == 0
        assert calls(folder) == ["venv", "pip"] * 2
    moved = folder.rename(folder.with_name("moved"))
    assert make(moved, "book")[0] == 0
    assert calls(moved) == ["venv", "pip"] * 3


@pytest.mark.parametrize("arguments", [(), ("TORCH=cpu",)])
def test_interrupted_installation_is_started_again(folder, arguments) -> None:
    (folder / "pip.sh").write_text("touch .venv/half; sleep 60")
    process = start(folder, "book", *arguments)
    while not (folder / ".venv" / "half").exists():
        assert process.poll() is None, "it ended before it could be interrupted"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate()
    assert process.returncode != 0
    assert not (folder / ".venv" / ".installed").exists()

    (folder / "pip.sh").unlink()
    assert make(folder, "book", *arguments)[0] == 0
    assert calls(folder)[:3] == ["venv", "pip", "venv"]
    assert not (folder / ".venv" / "half").exists()


@pytest.mark.parametrize("case", cases("test_what_cannot_work_is_refused_before_anything_is_made"))
def test_what_cannot_work_is_refused_before_anything_is_made(folder, case) -> None:
    argument, before, words = case
    python(folder, before=before)
    assert_one_sentence(make(folder, "book", *[argument] * bool(argument)), *words)
    assert calls(folder) == [] and not (folder / ".venv").exists()


def test_a_disk_that_is_too_small_is_refused_before_the_download(folder) -> None:
    disk(folder, megabytes=3000)
    assert_one_sentence(make(folder, "book"), "has 3000 MB free", "6.5 GB")
    assert calls(folder) == [] and make(folder, "book", "TORCH=cpu")[0] == 0


@pytest.mark.parametrize("value", ['x"; touch ran; "', "x`touch ran`", "x;touch ran"])
def test_what_a_value_says_is_not_run(folder, value) -> None:
    make(folder, "chapter", f"NAME={value}")
    for name in ("TORCH", "PYTHON"):
        code, _, errors = make(folder, "book", f"{name}={value}")
        assert code == 2 and value in errors
    assert not (folder / "ran").exists()


def wheel(index: Path, name: str, version: str, *requires: str) -> None:
    """Put an empty package into a folder that pip can use as an index."""
    project, stem = index / name, f"{name.replace('-', '_')}-{version}"
    project.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {other}" for other in requires]
    files = {"METADATA": "\n".join(lines), "WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any"}
    with zipfile.ZipFile(project / f"{stem}-py3-none-any.whl", "w") as file:
        for part, text in (files | {"RECORD": ""}).items():
            file.writestr(f"{stem}.dist-info/{part}", text)
    links = (f'<a href="{path.name}">{path.name}</a>' for path in project.glob("*.whl"))
    (project / "index.html").write_text("\n".join(links))


def test_what_pip_installs_without_cuda(folder) -> None:
    """With the real Python and the real pip: first without a network, then made-up packages."""
    arguments, where = ("env", "TORCH=cpu", f"PYTHON={sys.executable}"), "file:///nowhere"
    index = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": where, "TORCH_CPU_INDEX": where}
    failed = make(folder, *arguments, PIP_USER="1", PYTHONPATH="/nowhere", **index)
    assert_one_sentence(failed, "is there a network?", "No matching", ".venv/install.log")
    assert not set(folder.glob(".venv/.install*")), "neither done, nor interrupted"

    registry, cpu = folder.parent / "registry", folder.parent / "cpu"
    for version in ("2.10", "2.15", "2.16"):  # PyTorch's own index has no 2.16 yet
        wheel(registry, "torch", version, "nvidia-cuda")
        wheel(registry, "torchvision", f"0.{version[2:]}", f"torch=={version}")
    wheel(registry, "nvidia-cuda", "13")
    wheel(registry, "torchao", "1", "torch")
    for version in ("2.10", "2.15"):
        wheel(cpu, "torch", f"{version}+cpu")
        wheel(cpu, "torchvision", f"0.{version[2:]}+cpu", f"torch=={version}")
    (folder / "requirements.txt").write_text("torch>=2.11  # why\ntorchvision\ntorchao\n")
    index |= {"PIP_INDEX_URL": registry.as_uri(), "TORCH_CPU_INDEX": cpu.as_uri()}

    def installed() -> set[str]:
        make(folder, *arguments, **index)
        log = (folder / ".venv" / "install.log").read_text()
        assert (folder / ".venv" / ".installed").exists(), log
        found = (folder / ".venv").glob("lib/python3*/site-packages/*.dist-info")
        return {path.stem for path in found if not path.stem.startswith(("pip-", "setuptools-"))}

    assert installed() == {"torch-2.15+cpu", "torchvision-0.15+cpu", "torchao-1"}
    wheel(cpu, "torch", "2.16+cpu")
    wheel(cpu, "torchvision", "0.16+cpu", "torch==2.16")
    change(folder / "requirements.txt", "torch>2.15")
    assert installed() == {"torch-2.16+cpu", "torchvision-0.16+cpu", "torchao-1"}


def test_failed_installation_says_why_and_keeps_the_environment(folder) -> None:
    fails = folder / "pip.sh"
    fails.write_text("echo ERROR: no route; exit 1")
    assert_one_sentence(make(folder, "book", "TORCH=cpu"), "is there a network?", "no route")
    assert calls(folder) == ["venv", "pip"], "the rest would bring CUDA's packages"
    assert not set(folder.glob(".venv/.install*"))
    fails.unlink()
    make(folder, "book", "TORCH=cpu")
    change(folder / "requirements.txt")
    fails.write_text("echo 'ERROR: [Errno 28] No space left on device'; exit 1")
    full = make(folder, "book", "TORCH=cpu")
    assert_one_sentence(full, "The disk is full", "2.5 GB")
    assert "network" not in full[2]
    fails.unlink()
    assert make(folder, "book", "TORCH=cpu")[0] == 0
    assert calls(folder).count("venv") == 1, "one environment, brought up to date"
