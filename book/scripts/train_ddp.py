"""Train the MNIST CNN, one GPU per rank, or gloo on the CPU: train_one.py and eight changes.

    torchrun --standalone --nproc-per-node=4 train_ddp.py                  # MNIST
    torchrun --standalone --nproc-per-node=2 train_ddp.py --data digits    # without a network
    torchrun --nnodes=2 --nproc-per-node=4 \\
        --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 train_ddp.py

The last line that each rank prints is a JSON object: {"losses": [...], "accuracy": ...,
"evaluated": how many samples, "weights": their SHA-256}.
"""

import argparse
import hashlib
import json
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset


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
    """The command line, checked before this rank waits for another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["mnist", "digits"], default="mnist")
    parser.add_argument("--data-root", default=os.environ.get("DATA_ROOT", "data"))
    parser.add_argument("--batch", type=int, default=64, help="samples in a step, over all ranks")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument(
        "--save", default="mnist_cnn.pt", help="where the weights go: a path that all machines see"
    )
    parser.add_argument("--double", action="store_true", help="float64, to compare runs")
    args = parser.parse_args(argv)
    if "LOCAL_RANK" not in os.environ:
        parser.exit(2, "start it with torchrun --standalone --nproc-per-node=2 train_ddp.py\n")
    world = int(os.environ["WORLD_SIZE"])
    if args.batch < 1 or args.batch % world:
        parser.exit(2, f"--batch {args.batch} does not divide among {world} ranks\n")
    if args.epochs < 1:
        parser.exit(2, f"--epochs {args.epochs}: one epoch is the least there is to train\n")
    return args


def start() -> torch.device:
    """Join the group; one process, one device."""
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local)  # 2: one process, one device,
        torch.cuda.set_device(device)  # 2: which "cuda" means from here on
        dist.init_process_group("nccl", device_id=device)  # 1: join the group
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")  # 1
    return device


def train(
    model: nn.Module, data: Dataset, args: argparse.Namespace, device: torch.device
) -> Tensor:
    """Train ``model`` in place; return the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    world = dist.get_world_size()
    sampler = DistributedSampler(data)  # 3: every rank its share of the data,
    loader = DataLoader(data, args.batch // world, sampler=sampler)  # 3: and of the batch
    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # 4: another order every epoch
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    losses = torch.stack(losses)
    dist.all_reduce(losses)  # 6: one reduction for all steps,
    return losses / world  # 6: and equal batches, so the mean of means is the mean


@torch.no_grad()
def accuracy(model: nn.Module, data: Dataset, device: torch.device) -> tuple[float, int]:
    """Fraction of ``data`` that ``model`` labels rightly, and how many samples were looked at."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)  # right, seen
    mine = range(dist.get_rank(), len(data), dist.get_world_size())
    for images, labels in DataLoader(Subset(data, mine), 500):  # 6: my share, nothing twice
        right = model(images.to(device)).argmax(1) == labels.to(device)
        counts += torch.tensor([right.sum(), len(right)], device=device)
    dist.all_reduce(counts)  # 6: sums and counts, divided afterwards
    right, seen = counts.tolist()
    return right / seen, seen


def download(args: argparse.Namespace, dtype: torch.dtype) -> None:
    """Get MNIST if it is not there yet, or say what else to do."""
    try:
        load(args.data, args.data_root, dtype)
    except (OSError, RuntimeError) as error:
        raise SystemExit(f"no MNIST in {args.data_root} ({error}): try --data digits") from None


def run(args: argparse.Namespace, device: torch.device) -> dict:
    """Train, save, load, evaluate."""
    dtype = torch.float64 if args.double else torch.float32
    if args.data == "mnist" and os.environ["LOCAL_RANK"] == "0":  # 7: one rank downloads,
        download(args, dtype)
    dist.barrier()  # 7: the others on its machine wait,
    train_set, test_set = load(args.data, args.data_root, dtype)
    torch.manual_seed(0)
    model = CNN(side=train_set[0][0].shape[-1]).to(device, dtype)
    losses = train(DistributedDataParallel(model), train_set, args, device)  # 5: wrap
    if dist.get_rank() == 0:  # 7: one writer,
        torch.save(model.state_dict(), args.save + ".new")
        os.replace(args.save + ".new", args.save)  # 7: whole or not at all,
    dist.barrier()  # 7: nobody reads before the file is whole,
    model.load_state_dict(torch.load(args.save, map_location=device, weights_only=True))  # 7
    right, seen = accuracy(model, test_set, device)
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy {right:.1%} of {seen:,}")
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return {
        "losses": losses.tolist(),
        "accuracy": right,
        "evaluated": seen,
        "weights": hashlib.sha256(weights).hexdigest(),
    }


@record
def main(argv: list[str] | None = None) -> dict:
    args = arguments(argv)
    device = start()
    result = run(args, device)
    # Not in a "finally": after an exception it would wait for ranks that wait for this one.
    dist.destroy_process_group()  # 8: leave
    return result


if __name__ == "__main__":
    print(json.dumps(main()))
