"""MNIST and its stand-in: no network, half a download, damaged files. Nothing here is fetched."""

import hashlib
import socket
import struct
import sys
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from utils import data

TO_TENSOR = transforms.ToTensor()


def idx(dimensions: tuple[int, ...], seed: int) -> bytes:
    """An IDX file of unsigned bytes below 10, as MNIST's files are."""
    count = torch.tensor(dimensions).prod().item()
    values = [(seed + i) % 10 for i in range(count)]
    return struct.pack(f">I{len(dimensions)}I", 0x0800 + len(dimensions), *dimensions) + bytes(
        values
    )


FILES = {
    "train-images-idx3-ubyte": idx((6, 28, 28), 0),
    "train-labels-idx1-ubyte": idx((6,), 0),
    "t10k-images-idx3-ubyte": idx((3, 28, 28), 5),
    "t10k-labels-idx1-ubyte": idx((3,), 5),
}


class Network:
    """Stands in for torchvision's downloader; ``content`` is what it finds, or an exception."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.content: dict[str, bytes] | BaseException = dict(FILES)
        self.fetched: list[str] = []
        self.timeouts: set[float | None] = set()
        monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", self.fetch)

    def fetch(self, url: str, download_root: str, filename: str, md5: str) -> None:
        self.fetched.append(filename)
        self.timeouts.add(socket.getdefaulttimeout())
        print("100%|██████████|", file=sys.stderr)
        if isinstance(self.content, BaseException):
            raise self.content
        name = filename.removesuffix(".gz")
        Path(download_root, name).write_bytes(self.content[name])
        if name == self.content.get("interrupt after"):
            raise KeyboardInterrupt


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
def network(monkeypatch) -> Network:
    return Network(monkeypatch)


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
    for unset in (None, ""):
        if unset is None:
            monkeypatch.delenv("DATA_ROOT")
        else:
            monkeypatch.setenv("DATA_ROOT", unset)
        assert data.root() == Path(data.__file__).resolve().parent.parent / "data"


def test_a_copy_is_used_without_the_network(raw, network, capsys) -> None:
    assert len(data.mnist(train=True)) == 6 and len(data.mnist(train=False)) == 3
    assert data.missing_mnist() is None
    assert network.fetched == []
    assert capsys.readouterr().out == "data: MNIST\n" * 2


# --- the download ------------------------------------------------------------------------------


def test_first_use_downloads_once_and_prints_one_line(tiny, network, capsys) -> None:
    data.mnist()
    data.mnist(train=False)
    assert sorted(name.removesuffix(".gz") for name in network.fetched) == sorted(FILES)
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


def test_a_data_folder_is_made_with_the_folders_above_it(tiny, network, monkeypatch) -> None:
    monkeypatch.setenv("DATA_ROOT", str(tiny / "new" / "data"))
    assert len(data.mnist()) == 6


@pytest.mark.parametrize(
    "error", [URLError("Name or service not known"), TimeoutError("slow"), TimeoutError()]
)
def test_without_network_the_stand_in_says_so(tiny, network, capsys, error) -> None:
    network.content = error
    assert isinstance(data.mnist(), data.Digits)
    said = capsys.readouterr().out
    assert said.startswith("data: NOT MNIST") and said.count("\n") == 1
    assert "no copy in" in said and "no download" in said
    assert data.missing_mnist()
    assert everything_in(tiny) == set()


def test_a_failed_download_is_tried_once_a_process(network) -> None:
    network.content = URLError("no route")
    data.mnist()
    tried = len(network.fetched)
    data.mnist(train=False)
    assert len(network.fetched) == tried


def test_an_interrupted_download_leaves_nothing_and_is_repeated(tiny, network) -> None:
    network.content = {**FILES, "interrupt after": "train-labels-idx1-ubyte"}
    with pytest.raises(KeyboardInterrupt):
        data.mnist()
    assert everything_in(tiny) == set()
    network.content = dict(FILES)
    assert len(data.mnist()) == 6


def test_a_damaged_download_does_not_pass_for_data(tiny, network, capsys) -> None:
    name = "t10k-images-idx3-ubyte"
    network.content = {**FILES, name: FILES[name][:-5]}
    assert isinstance(data.mnist(), data.Digits)
    said = capsys.readouterr().out
    assert "damaged" in said and name in said
    assert everything_in(tiny) == set()


# --- files that were there ---------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["truncated", "empty", "altered", "missing"])
def test_damaged_files_are_found_by_name(raw, damage) -> None:
    path = raw / "train-images-idx3-ubyte"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        changed = {"truncated": content[:100], "empty": b"", "altered": content[:-1] + b"\xff"}
        path.write_bytes(changed[damage])
    assert data.damaged_files(raw) == ["train-images-idx3-ubyte"]


def test_damaged_files_are_fetched_again(raw, network) -> None:
    (raw / "train-labels-idx1-ubyte").write_bytes(b"half")
    assert len(data.mnist()) == 6
    assert data.damaged_files(raw) == []


def test_damaged_files_without_network_are_named(raw, network, capsys) -> None:
    network.content = URLError("no route")
    (raw / "train-labels-idx1-ubyte").write_bytes(b"half")
    assert isinstance(data.mnist(), data.Digits)
    said = capsys.readouterr().out
    assert "train-labels-idx1-ubyte" in said and "damaged" in said
    assert (raw / "train-labels-idx1-ubyte").read_bytes() == b"half", "not ours to delete"


def test_a_folder_that_cannot_be_written_is_no_crash(tiny, network, monkeypatch) -> None:
    (tiny / "file").write_text("not a folder")
    monkeypatch.setenv("DATA_ROOT", str(tiny / "file"))
    assert isinstance(data.mnist(), data.Digits)


def test_mean_and_deviation_are_those_that_everybody_uses() -> None:
    assert (data.MEAN, data.STD) == (0.1307, 0.3081)


# --- the stand-in is a drop-in -----------------------------------------------------------------


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("transform", [None, TO_TENSOR])
def test_stand_in_has_the_interface_of_mnist(raw, train, transform) -> None:
    real, digits = data.mnist(train, transform), data.Digits(train, transform)
    for ours, theirs in ((digits.data, real.data), (digits.targets, real.targets)):
        assert ours.dtype == theirs.dtype
        assert ours.shape[1:] == theirs.shape[1:]
    assert len(digits) == len(digits.data) == len(digits.targets)
    (image, label), (real_image, real_label) = digits[0], real[0]
    assert type(image) is type(real_image) and type(label) is type(real_label) is int
    if transform is None:
        assert image.size == real_image.size and image.mode == real_image.mode
    else:
        assert image.shape == real_image.shape and image.dtype == real_image.dtype


def test_stand_in_gets_the_transform(network) -> None:
    network.content = URLError("no route")
    assert data.mnist(transform=TO_TENSOR)[0][0].shape == (1, 28, 28)


def test_stand_in_shows_the_digits_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    large = data.Digits(False).data[:, None] / 255
    small = torch.nn.functional.interpolate(large, size=8, mode="bilinear")[:, 0]
    digits = torch.tensor(load_digits().images[1437:], dtype=torch.float32) / 16
    assert (small - digits).abs().max() < 0.2


def test_stand_in_works_in_a_loader() -> None:
    images, labels = next(iter(DataLoader(data.Digits(True, TO_TENSOR), batch_size=32)))
    assert images.shape == (32, 1, 28, 28) and images.dtype == torch.float32
    assert labels.shape == (32,) and labels.dtype == torch.int64


def test_stand_in_has_two_parts_and_all_digits() -> None:
    train, test = data.Digits(True), data.Digits(False)
    assert (len(train), len(test)) == (1437, 360)
    for part in (train, test):
        assert part.targets.unique().tolist() == list(range(10))
        assert part.data.max() > 200 and part.data.min() == 0


def test_an_image_is_its_row_of_data() -> None:
    digits = data.Digits(False, TO_TENSOR)
    image, label = digits[7]
    assert torch.equal((image[0] * 255).round().to(torch.uint8), digits.data[7])
    assert label == digits.targets[7].item()
