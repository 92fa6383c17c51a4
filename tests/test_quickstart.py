"""The script of chapter 0 keeps its promises: it resumes, loses nothing, and says what is wrong.

It runs as a reader would run it, on its made-up images, of which there are fewer here.
"""

import io
import os
import re
import socket
import zipfile

import pytest
import torch

from notebooks import BOOK
from pasted import Done

SCRIPT = (BOOK / "keep" / "mnist.py").read_text(encoding="utf-8")
IMAGES = "(1000, 500)"
DIES = """import os
replace = os.replace
def dies(*names):
    {before}
    os._exit(9)
os.replace = dies
"""
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: not on Windows")


@pytest.fixture
def script(run, tmp_path):
    """A function that runs the script, after ``first``, for some epochs, on the CPU."""
    assert IMAGES in SCRIPT

    def script(epochs: int, first: str = "", data: str = os.devnull, **env: str) -> Done:
        env |= {"EPOCHS": str(epochs), "DATA_ROOT": data, "CUDA_VISIBLE_DEVICES": ""}
        text = SCRIPT.replace(IMAGES, "(200, 100)").replace("timeout(10)", "timeout(1)")
        return run(first + text, env=env)

    script.file = tmp_path / "script" / "mnist.pt"
    return script


def epochs(done: Done) -> list[int]:
    """The epochs that a run says it made."""
    assert done.status == 0, done.err
    return [int(number) for number in re.findall(r"^epoch (\d+):", done.out, re.MULTILINE)]


@pytest.mark.parametrize("raw", [b"<html>", b"\0\0\x08\x03"])  # AssertionError, ValueError
def test_without_mnist_it_says_so_and_ends_well(script, tmp_path, raw) -> None:
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "MNIST/raw" / f"{part}-ubyte").write_bytes(raw)
    done = script(1, data=str(tmp_path))
    assert epochs(done) == [1] and done.err == ""
    assert done.out.startswith(f"NOT MNIST but made-up images: none whole in {tmp_path}, no downl")
    assert re.search(r"made-up images: [\d.]+% of 100 test images right; saved in mnist", done.out)
    assert sorted(path.name for path in script.file.parent.iterdir()) == ["mnist.pt", "script.py"]


def test_a_silent_server_is_given_up(script) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = script(1, data="data", https_proxy=proxy, http_proxy=proxy, no_proxy="")
    assert epochs(done) == [1]
    assert re.match(r"NOT MNIST .* in data, no download. Proxy\? TimeoutError", done.out), done.out


def test_a_run_that_died_is_resumed_as_if_nothing_had_happened(script) -> None:
    assert epochs(script(2)) == [1, 2]
    straight = torch.load(script.file)
    script.file.unlink()
    assert script(2, DIES.format(before="replace(*names)")).status == 9
    assert epochs(script(2)) == [2]
    resumed = torch.load(script.file)
    assert resumed["done"] == 2
    torch.testing.assert_close(resumed["model"], straight["model"], rtol=0, atol=0)
    done = script(2)
    assert epochs(done) == [] and "test images right" in done.out


def test_a_death_while_saving_leaves_the_old_checkpoint(script) -> None:
    script(1)
    before = script.file.read_bytes()
    assert script(2, DIES.format(before="pass")).status == 9
    assert script.file.read_bytes() == before
    assert epochs(script(2)) == [2]


def test_a_checkpoint_that_cannot_be_used_is_refused_in_one_sentence(script) -> None:
    assert "no such folder" in script(1, CHECKPOINT="absent/mnist.pt").err
    script(1, CHECKPOINT="")  # as if it were not set
    good = script.file.read_bytes()

    def saved(change) -> bytes:
        state = torch.load(io.BytesIO(good))
        file = io.BytesIO()
        torch.save(change(state) or state, file)
        return file.getvalue()

    with zipfile.ZipFile(script.file) as parts:
        largest = max(parts.infolist(), key=lambda part: part.file_size)
    flipped = bytearray(good)
    flipped[largest.header_offset + largest.file_size // 2] ^= 0xFF
    assert torch.load(io.BytesIO(flipped)), "torch.load has begun to look: say so in the page"
    cases = {
        "BadZipFile": (good[: len(good) // 2], b"garbage", b""),
        r"damaged: \S+/data/\d+; ": (bytes(flipped),),
        "None; trained on made-up images: GELU": (saved(lambda s: s.update(network="GELU")),),
        "size mismatch": (saved(lambda s: s["model"].update({"0.weight": torch.zeros(8)})),),
        "Missing key": (saved(lambda state: state["model"].popitem() and None),),
        "damaged: None; trained on MNIST: ": (saved(lambda s: s.update(what="MNIST")),),
        "KeyError\\('what'\\)": (saved(lambda state: {"weights": state["model"]}),),
        "KeyError\\('network'\\)": (saved(lambda s: {"what": s["what"]}),),
        "Weights only load failed": (saved(lambda _: {"what": Unsafe()}),),
    }
    for said, files in cases.items():
        for file in files:
            script.file.write_bytes(file)
            done = script(2)
            assert done.status == 1 and "\nepoch" not in done.out, said
            assert re.fullmatch(r"cannot resume mnist.pt on made-up .+, change one: .+\n", done.err)
            assert re.search(said, done.err), done.err
            assert script.file.read_bytes() == file


class Unsafe:
    """What a pickle must not be able to call."""

    def __reduce__(self):
        return print, ("foreign code",)
