"""MNIST, or a stand-in that says so.

MNIST is read from ``DATA_ROOT`` (default: ``data/`` in the project) and downloaded there on first
use. With no copy and no network, the 8x8 handwritten digits that ship inside scikit-learn take its
place, enlarged to 28x28: the same code runs, but nothing the book says of MNIST comes from them.
"""

import contextlib
import functools
import io
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import datasets
from torchvision.datasets.utils import check_integrity

# MD5 of the four unpacked files, so that half a download cannot pass for a data set.
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
MEAN, STD = 0.1307, 0.3081  # of MNIST's training pixels, scaled to [0, 1]


def root() -> Path:
    """Return the folder that holds the data: ``DATA_ROOT``, else ``data/`` in the project."""
    default = Path(__file__).resolve().parent.parent / "data"
    return Path(os.environ.get("DATA_ROOT") or default)


def damaged_files(folder: Path) -> list[str]:
    """Return the names of MNIST's files that are missing from, or not whole in, ``folder``."""
    return [name for name, md5 in MNIST_MD5.items() if not check_integrity(folder / name, md5)]


def _download(target: Path) -> None:
    """Fetch MNIST beside ``target`` and move it into place only when every file is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(10)  # torchvision sets none: a silent firewall would hang the cell
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as partial:
            # Its progress bars would count as output of the cell that first needs the data.
            with contextlib.redirect_stderr(io.StringIO()):
                datasets.MNIST(partial, download=True)
            fetched = Path(partial) / "MNIST" / "raw"
            if bad := damaged_files(fetched):
                raise OSError(f"downloaded files are damaged: {', '.join(bad)}")
            target.mkdir(exist_ok=True)
            for name in MNIST_MD5:
                (fetched / name).replace(target / name)
    finally:
        socket.setdefaulttimeout(before)


@functools.cache
def _prepare(folder: Path) -> str | None:
    """Make sure that ``folder`` holds MNIST; return why it could not be done, or None."""
    bad = damaged_files(folder)
    if not bad:
        return None
    there = [name for name in bad if (folder / name).exists()]
    try:
        _download(folder)
    except (OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else repr(error)
        if there:
            return f"{', '.join(there)} in {folder} damaged, and no new download: {reason}"
        return f"no copy in {folder}, and no download: {reason}"
    return None


def missing_mnist() -> str | None:
    """Return why the real MNIST cannot be had, None if it is there; downloads it on first use."""
    return "no MNIST here" if _prepare(root() / "MNIST" / "raw") else None


class Digits(Dataset):
    """The 1,797 8x8 digits of scikit-learn as 28x28 images, with MNIST's interface.

    Parameters
    ----------
    train : bool
        The first 1,437 samples, else the other 360.
    transform : callable, optional
        Applied to each image, a 28x28 PIL image of mode ``"L"``.
    """

    def __init__(self, train: bool, transform: Callable | None = None):
        from sklearn.datasets import load_digits

        digits = load_digits()
        part = slice(0, 1437) if train else slice(1437, None)
        small = torch.tensor(digits.images[part], dtype=torch.float32)[:, None] / 16
        large = torch.nn.functional.interpolate(small, size=28, mode="bilinear")
        self.data = (large[:, 0] * 255).round().to(torch.uint8)  # (n, 28, 28), as in MNIST
        self.targets = torch.tensor(digits.target[part])
        self.transform = transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[object, int]:
        image = Image.fromarray(self.data[index].numpy())
        if self.transform is not None:
            image = self.transform(image)
        return image, int(self.targets[index])


def mnist(train: bool = True, transform: Callable | None = None) -> Dataset:
    """Return MNIST as a data set of (image, label), or the stand-in, and print which.

    Parameters
    ----------
    train : bool
        The 60,000 training images, else the 10,000 test images.
    transform : callable, optional
        Applied to each 28x28 PIL image.

    Returns
    -------
    Dataset
        With ``data`` (n, 28, 28) uint8 and ``targets`` (n,) int64 besides.
    """
    why = _prepare(root() / "MNIST" / "raw")
    if why is None:
        print("data: MNIST")
        return datasets.MNIST(root(), train=train, transform=transform)
    print(f"data: NOT MNIST but scikit-learn's 8x8 digits, enlarged ({why})")
    return Digits(train, transform)
