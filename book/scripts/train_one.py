"""Train the MNIST CNN with one process, on one GPU or on the CPU: what train_ddp.py starts from.

    python train_one.py                  # MNIST, from --data-root, downloaded if it is not there
    python train_one.py --data digits    # the 8x8 digits that scikit-learn brings along

The last line printed is a JSON object: {"losses": [...], "accuracy": ...,
"evaluated": how many samples}.
"""

import argparse
import json
import os

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset


class CNN(nn.Module):
    """Two convolutions and two linear layers, for images of ``side`` x ``side`` pixels."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * ((side - 4) // 2) ** 2, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(images)))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def load(name: str, root: str, dtype: torch.dtype) -> tuple[Dataset, Dataset]:
    """Training and test set, as tensors in host memory."""
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = torch.tensor(digits.images, dtype=dtype)[:, None] / 16
        labels = torch.tensor(digits.target)
        parts = slice(None, 1408), slice(1408, None)
        train, test = (TensorDataset(images[part], labels[part]) for part in parts)
        return train, test
    from torchvision.datasets import MNIST  # here, because it takes a second to import

    parts = [MNIST(root, train=part, download=True) for part in (True, False)]
    train, test = (
        TensorDataset(part.data[:, None].to(dtype) / 255, part.targets) for part in parts
    )
    return train, test


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["mnist", "digits"], default="mnist")
    parser.add_argument("--data-root", default=os.environ.get("DATA_ROOT", "data"))
    parser.add_argument("--batch", type=int, default=64, help="samples in a step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--save", default="mnist_cnn.pt", help="where the weights go")
    parser.add_argument("--double", action="store_true", help="float64, to compare runs")
    args = parser.parse_args(argv)
    if args.batch < 1 or args.epochs < 1:
        parser.exit(2, f"--batch {args.batch} --epochs {args.epochs}: one is the least\n")
    return args


def train(
    model: nn.Module, data: Dataset, args: argparse.Namespace, device: torch.device
) -> Tensor:
    """Train ``model`` in place; return the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    order = torch.Generator()
    sampler = RandomSampler(data, generator=order)
    loader = DataLoader(data, args.batch, sampler=sampler)
    losses = []
    for epoch in range(args.epochs):
        order.manual_seed(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    losses = torch.stack(losses)
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, data: Dataset, device: torch.device) -> tuple[float, int]:
    """Fraction of ``data`` that ``model`` labels rightly, and how many samples were looked at."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)  # right, seen
    for images, labels in DataLoader(data, 500):
        right = model(images.to(device)).argmax(1) == labels.to(device)
        counts += torch.tensor([right.sum(), len(right)], device=device)
    right, seen = counts.tolist()
    return right / seen, seen


def run(args: argparse.Namespace, device: torch.device) -> dict:
    """Train, save, evaluate."""
    dtype = torch.float64 if args.double else torch.float32
    train_set, test_set = load(args.data, args.data_root, dtype)
    torch.manual_seed(0)
    model = CNN(side=train_set[0][0].shape[-1]).to(device, dtype)
    losses = train(model, train_set, args, device)
    torch.save(model.state_dict(), args.save)
    right, seen = accuracy(model, test_set, device)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy {right:.1%} of {seen:,}")
    return {
        "losses": losses.tolist(),
        "accuracy": right,
        "evaluated": seen,
    }


def main(argv: list[str] | None = None) -> dict:
    args = arguments(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result = run(args, device)
    return result


if __name__ == "__main__":
    print(json.dumps(main()))
