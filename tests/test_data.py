"""MNIST and its stand-in: no network, half a download, damaged files. Nothing here is fetched."""

import hashlib
import math
import socket
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from utils import data

TO_TENSOR = transforms.ToTensor()


def idx(dimensions: tuple[int, ...], seed: int) -> bytes:
    """An IDX file of unsigned bytes below 10, as MNIST's files are."""
    values = bytes((seed + i) % 10 for i in range(math.prod(dimensions)))
    return struct.pack(f">I{len(dimensions)}I", 0x0800 + len(dimensions), *dimensions) + values


FILES = {
    "train-images-idx3-ubyte": idx((6, 28, 28), 0),
    "train-labels-idx1-ubyte": idx((6,), 0),
    "t10k-images-idx3-ubyte": idx((3, 28, 28), 5),
    "t10k-labels-idx1-ubyte": idx((3,), 5),
}


@pytest.fixture(autouse=True)
def tiny(tmp_path, monkeypatch) -> Path:
    """An empty data folder, and a six-image MNIST that counts as the whole one."""
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in FILES.items()}
    monkeypatch.setattr(data, "MNIST_MD5", md5)
    data._prepare.cache_clear()
    yield tmp_path
    data._prepare.cache_clear()


@pytest.fixture
def network(monkeypatch) -> SimpleNamespace:
    """Stands in for torchvision's downloader; ``content`` is what it finds, or an exception."""
    network = SimpleNamespace(content=FILES, fetched=[], timeouts=set())

    def fetch(url: str, download_root: str, filename: str, md5: str) -> None:
        network.fetched.append(name := filename.removesuffix(".gz"))
        network.timeouts.add(socket.getdefaulttimeout())
        print("100%|██████████|", file=sys.stderr)
        if isinstance(network.content, BaseException):
            raise network.content
        Path(download_root, name).write_bytes(network.content[name])
        if name == network.content.get("interrupt after"):
            raise KeyboardInterrupt

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", fetch)
    return network


@pytest.fixture
def raw(tiny) -> Path:
    """The folder of the raw files, with all four in it."""
    folder = tiny / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def everything_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


# --- where the data are ------------------------------------------------------------------------


def test_data_root_comes_from_the_environment(tiny, monkeypatch) -> None:
    assert data.root() == tiny
    default = Path(data.__file__).resolve().parent.parent / "data"
    monkeypatch.setenv("DATA_ROOT", "")
    assert data.root() == default
    monkeypatch.delenv("DATA_ROOT")
    assert data.root() == default


def test_a_copy_is_used_without_the_network(raw, network, capsys) -> None:
    assert len(data.mnist(train=True)) == 6 and len(data.mnist(train=False)) == 3
    assert data.missing_mnist() is None
    assert network.fetched == []
    assert capsys.readouterr().out == "data: MNIST\n" * 2


# --- the download ------------------------------------------------------------------------------


def test_first_use_downloads_once_and_prints_one_line(tiny, network, capsys, monkeypatch) -> None:
    monkeypatch.setenv("DATA_ROOT", str(tiny / "new" / "data"))  # made with the folder above it
    data.mnist()
    data.mnist(train=False)
    assert sorted(network.fetched) == sorted(FILES)
    assert everything_in(tiny) == set(FILES)
    said = capsys.readouterr()
    assert said.out == "data: MNIST\n" * 2 and said.err == ""


def test_a_silent_firewall_cannot_hang_the_cell(network) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(77)
    try:
        data.mnist()
        assert socket.getdefaulttimeout() == 77, "the limit outlived the download"
    finally:
        socket.setdefaulttimeout(before)
    assert network.timeouts and max(network.timeouts) <= 30


@pytest.mark.parametrize(
    "error", [URLError("Name or service not known"), TimeoutError("slow"), TimeoutError()]
)
def test_without_network_the_stand_in_says_so(tiny, network, capsys, error) -> None:
    network.content = error
    digits = data.mnist(transform=TO_TENSOR)
    assert isinstance(digits, data.Digits) and digits[0][0].shape == (1, 28, 28)
    said = capsys.readouterr().out
    assert said.startswith("data: NOT MNIST") and said.count("\n") == 1
    assert "no copy in" in said and "no download" in said
    tried = len(network.fetched)
    assert data.missing_mnist() and len(data.mnist(train=False)) == 360
    assert len(network.fetched) == tried, "once a process"
    assert everything_in(tiny) == set()


def test_an_interrupted_download_leaves_nothing_and_is_repeated(tiny, network) -> None:
    network.content = {**FILES, "interrupt after": "train-labels-idx1-ubyte"}
    with pytest.raises(KeyboardInterrupt):
        data.mnist()
    assert everything_in(tiny) == set()
    network.content = FILES
    assert len(data.mnist()) == 6


def test_a_damaged_download_does_not_pass_for_data(tiny, network, capsys) -> None:
    name = "t10k-images-idx3-ubyte"
    network.content = {**FILES, name: FILES[name][:-5]}
    assert isinstance(data.mnist(), data.Digits)
    said = capsys.readouterr().out
    assert "damaged" in said and name in said
    assert everything_in(tiny) == set()


# --- files that were there ---------------------------------------------------------------------


def test_damaged_files_are_fetched_again_or_named(raw, network, capsys) -> None:
    labels = raw / "train-labels-idx1-ubyte"
    damaged = labels.read_bytes()[:-1] + b"\xff"
    labels.write_bytes(damaged)
    content, network.content = network.content, URLError("no route")
    assert isinstance(data.mnist(), data.Digits)
    said = capsys.readouterr().out
    assert labels.name in said and "damaged" in said
    assert labels.read_bytes() == damaged, "not ours to delete"
    network.content = content
    data._prepare.cache_clear()  # as in another process
    assert len(data.mnist()) == 6 and data.damaged_files(raw) == []


def test_a_folder_that_cannot_be_written_is_no_crash(tiny, network, monkeypatch) -> None:
    (tiny / "file").write_text("not a folder")
    monkeypatch.setenv("DATA_ROOT", str(tiny / "file"))
    assert isinstance(data.mnist(), data.Digits)


# --- the stand-in is a drop-in -----------------------------------------------------------------


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("transform", [None, TO_TENSOR])
def test_stand_in_has_the_interface_of_mnist(raw, train, transform) -> None:
    digits, real = data.Digits(train, transform), data.mnist(train, transform)
    assert len(digits) == len(digits.data) == len(digits.targets)

    def kind(images) -> list:
        (image, label), parts = images[0], (images.data, images.targets)
        own = (image.size, image.mode) if transform is None else (image.shape, image.dtype)
        return [type(image), type(label), *own, *((part.dtype, part.shape[1:]) for part in parts)]

    assert kind(digits) == kind(real) and kind(digits)[1] is int


def test_stand_in_shows_the_digits_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    train, test = data.Digits(True), data.Digits(False, TO_TENSOR)
    assert (len(train), len(test)) == (1437, 360)
    for part in (train, test):
        assert part.targets.unique().tolist() == list(range(10))
        assert part.data.max() > 200 and part.data.min() == 0
    small = torch.nn.functional.interpolate(test.data[:, None] / 255, size=8, mode="bilinear")
    digits = torch.tensor(load_digits().images[1437:], dtype=torch.float32) / 16
    assert (small[:, 0] - digits).abs().max() < 0.2
    images, labels = next(iter(DataLoader(test, batch_size=32)))
    assert torch.equal((images[:, 0] * 255).round().to(torch.uint8), test.data[:32])
    assert torch.equal(labels, test.targets[:32])
