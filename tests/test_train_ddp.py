"""Training under torchrun, in the script and in the code to keep: what an edit must not lose."""

import functools
import importlib
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler

from notebooks import keep_cells, read
from ranks import Forked
from utils.record import SCRIPTS


@pytest.fixture
def trainer(monkeypatch):
    """train_ddp.py as a module, and a function that plays one of its ranks without the others."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = importlib.reload(importlib.import_module("train_ddp"))
    events: list[str] = []

    def noting(name: str, call=lambda *args, **kwargs: None):
        def noted(*args, **kwargs):
            events.append(name)
            return call(*args, **kwargs)

        return noted

    def play(rank: int, ranks: int) -> list[str]:
        """From here on ``module`` is ``rank``; what it does is noted in the list returned."""
        events.clear()
        fake = SimpleNamespace(get_rank=lambda: rank, get_world_size=lambda: ranks)
        for name in ("init_process_group", "barrier", "all_reduce", "destroy_process_group"):
            setattr(fake, name, noting(name))
        monkeypatch.setattr(module, "dist", fake)
        own = functools.partial(DistributedSampler, num_replicas=ranks, rank=rank)
        monkeypatch.setattr(module, "DistributedSampler", own)
        monkeypatch.setattr(module, "DistributedDataParallel", lambda model: model)
        for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", ranks)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "99")  # more than there are GPUs
        return events

    monkeypatch.setattr(module, "load", noting("load", lambda *args: [_Images(64), _Images(10)]))
    for place, name in ((torch, "save"), (os, "replace"), (torch, "load")):
        call = noting(f"{place.__name__}.{name}", getattr(place, name))
        monkeypatch.setattr(place, name, call)
    return module, play


class _Images(Dataset):
    """Images and labels; notes which were asked for."""

    def __init__(self, count: int):
        self.count, self.asked = count, []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.asked.append(index)
        return torch.full((1, 8, 8), index / self.count), index % 10


def test_training_ranks_meet_before_they_read_what_another_writes_and_leave(
    trainer, tmp_path
) -> None:
    module, play = trainer
    options = ["--data=mnist", "--epochs=1", "--batch=32", f"--save={tmp_path / 'w'}"]
    order = {}
    for rank in (0, 1):  # rank 1 finds the file that rank 0 has left
        events = play(rank, 2)
        module.main(options)
        order[rank] = [event for event in events if event != "all_reduce"]
    meet, leave = "barrier", "destroy_process_group"
    join, written = "init_process_group", ("torch.save", "os.replace")
    assert order[0] == [join, "load", meet, "load", *written, meet, "torch.load", leave]
    assert order[1] == [join, meet, "load", meet, "torch.load", leave]


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_ranks_evaluate_every_sample_once(trainer, ranks) -> None:
    module, play = trainer
    data = module.load()[1]
    seen = 0
    for rank in range(ranks):
        play(rank, ranks)
        seen += module.accuracy(module.CNN(side=8), data, torch.device("cpu"))[1]
    assert sorted(data.asked) == list(range(10)) and seen == 10


@pytest.mark.parametrize(
    "options, said",
    [
        (["--batch=63"], "--batch 63 does not divide among 2 ranks\n"),
        (["--batch=0"], "--batch 0 does not divide among 2 ranks\n"),
        (["--epochs=0"], "--epochs 0: one epoch is the least there is to train\n"),
    ],
)
def test_arguments_are_checked_before_a_rank_joins(trainer, capfd, options, said) -> None:
    module, play = trainer
    events = play(0, 2)
    with pytest.raises(SystemExit) as end:
        module.main(options)
    assert end.value.code == 2 and capfd.readouterr().err == said and events == []


def test_without_mnist_and_network_training_names_the_digits(trainer, monkeypatch) -> None:
    module, play = trainer

    def fails(*args):
        raise RuntimeError("Error downloading train-images")

    play(0, 2)
    monkeypatch.setattr(module, "load", fails)
    with pytest.raises(SystemExit, match=r"Error downloading.*: try --data digits"):
        module.main(["--data=mnist"])


# --- real ranks ----------------------------------------------------------------------------------


@pytest.fixture
def nodes(nothing_left, tmp_path):
    """A function that runs torchrun as one or more nodes would: what each of them printed."""
    from torch.distributed.run import main

    def nodes(count: int, *arguments: object) -> list[str]:
        # More threads, which is what one rank on a node gets, would only wait for each other.
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        act = functools.partial(main, [str(argument) for argument in arguments])
        logs, running = [tmp_path / f"node{number}" for number in range(count)], []
        for log in logs:
            with open(log, "wb") as out, open(f"{log}.err", "wb") as err:
                running.append(Forked(act, env, out.fileno(), err.fileno()))
        try:
            statuses = [node.wait(timeout=200) for node in running]
        finally:
            for node in running:
                if node.poll() is None:
                    node.terminate()  # it takes its ranks along
        assert statuses == [0] * count, [Path(f"{log}.err").read_text() for log in logs]
        return [log.read_text() for log in logs]

    return nodes


def test_scripts_run_unchanged_on_two_nodes(nodes, tmp_path) -> None:
    """Two torchruns on this machine, as two nodes would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    options += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
    training = ["--data=digits", "--epochs=1", f"--save={tmp_path / 'w'}"]
    said = nodes(2, *options, SCRIPTS / "train_ddp.py", *training)
    results = [json.loads(out.splitlines()[-1]) for out in said]
    assert results[0] == results[1]
    assert sum("accuracy" in out.replace(out.splitlines()[-1], "") for out in said) == 1


def test_the_code_to_keep_of_ddp_is_one_training_under_torchrun(
    nodes, script, monkeypatch, tmp_path
) -> None:
    path = script(keep_cells(read(SCRIPTS.parent / "52_ddp.ipynb"))[0].source)
    monkeypatch.chdir(tmp_path)
    said = nodes(1, "--standalone", "--nproc-per-node=2", path)
    assert said == ["weight 2.00, loss 0.0000\n"]
    assert (tmp_path / "model.pt").exists()
