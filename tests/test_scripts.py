"""The scripts of the book: shown in the page, they explain themselves, and run, on any node."""

import ast
import functools
import importlib
import json
import os
import re
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest
import torch
from torch.utils.data import DistributedSampler

import forks
from pasted import Done
from ranks import quicker
from utils.ranks import Source, torchrun
from utils.record import SCRIPTS

# Chapter 0's script is for pasting, and says there how to use it: test_quickstart.py.
# What has no main guard is what scripts share.
# Measured with a model from utils, or without --help; recorded again, they leave the list.
NOT_ALONE = ["ddp_price", "first_step", "fitting", "remedies", "serving", "two_speeds"]
FILES = sorted(
    path
    for path in SCRIPTS.glob("*.py")
    if '"__main__"' in path.read_text() and path.stem not in NOT_ALONE
)
RANKED = [path for path in FILES if "\n    torchrun " in path.read_text()]
every_script = pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)


def test_source_of_what_is_not_there_is_refused() -> None:
    """What is there, pages show, and their outputs are compared."""
    with pytest.raises(ValueError, match=r"defines .*take_turns.*, but not three"):
        Source("turns.py", "three")
    with pytest.raises(FileNotFoundError):
        Source("nowhere.py")


START = """
import os, runpy, sys
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)
sys.argv = {command}
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def start(run):
    """A function that starts a script with arguments, as Python would in a terminal."""

    def start(*command: object) -> Done:
        return run(START.format(command=[str(part) for part in command]))

    return start


@every_script
def test_scripts_explain_themselves_and_stand_alone(path, start) -> None:
    done, text = start(path, "--help"), path.read_text()
    assert done.status == 0 and "usage:" in done.out, done.err
    how = "torchrun " if path in RANKED else "python "
    assert how in (ast.get_docstring(ast.parse(text)) or "")
    assert not re.search(r"^\s*(?:from|import) utils", text, re.MULTILINE)
    if path in RANKED:
        done = start(path)
        assert done.status not in (0, None) and "torchrun" in done.err
        assert "Traceback" not in done.err


@quicker
@pytest.mark.usefixtures("nothing_left")
def test_training_speed_can_be_measured_without_a_gpu() -> None:
    options = ["--model", "mlp", "--batch", 8, "--global-batch", 8, "--ranks", 1, 2]
    options += ["--wrap", "auto", "lean", "--steps", 1, "--blocks", 1]
    rows = torchrun("ddp_speed.py", *options, ranks=2, device="cpu", quiet=True)[0]["rows"]
    tried = [(row["ranks"], row["batch"], row["wrapped"], row["lean"]) for row in rows]
    one, two = [(1, 8, False, False)], [(2, 8, True, False), (2, 8, True, True)]
    assert tried == one + two + [(2, 4, True, False), (2, 4, True, True)]
    assert all(row["step_ms"] > 0 for row in rows)


# --- training under torchrun: what an edit must not lose -----------------------------------------


@pytest.fixture
def trainer(monkeypatch):
    """train_ddp.py as a module, and a function that plays one of its ranks without the others."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = importlib.reload(importlib.import_module("train_ddp"))
    events: list[str] = []

    def noting(name: str, call=lambda *args, **kwargs: None):
        return lambda *args, **kwargs: events.append(name) or call(*args, **kwargs)

    def play(rank: int, ranks: int) -> list[str]:
        """From here on ``module`` is ``rank``; what it does is noted in the list returned."""
        events.clear()
        names = ("init_process_group", "barrier", "all_reduce", "destroy_process_group")
        known = {"get_rank": lambda: rank, "get_world_size": lambda: ranks}
        fake = SimpleNamespace(**known, **{name: noting(name) for name in names})
        monkeypatch.setattr(module, "dist", fake)
        own = functools.partial(DistributedSampler, num_replicas=ranks, rank=rank)
        monkeypatch.setattr(module, "DistributedSampler", own)
        monkeypatch.setattr(module, "DistributedDataParallel", lambda model: model)
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": 99}
        for name, value in told.items():  # the last is more than there are GPUs
            monkeypatch.setenv(name, str(value))
        return events

    monkeypatch.setattr(module, "load", noting("load", lambda *args: [images(64), images(10)]))
    for place, name in ((torch, "save"), (os, "replace"), (torch, "load")):
        call = noting(f"{place.__name__}.{name}", getattr(place, name))
        monkeypatch.setattr(place, name, call)
    return module, play


def images(count: int) -> MagicMock:
    """Images and labels."""
    data = MagicMock()
    data.__len__.return_value = count
    data.__getitem__.side_effect = lambda i: (torch.full((1, 8, 8), i / count), i % 10)
    return data


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


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_evaluate_every_sample_once(trainer, ranks) -> None:
    module, play = trainer
    data, seen = module.load()[1], 0
    for rank in range(ranks):
        play(rank, ranks)
        seen += module.accuracy(module.CNN(side=8), data, torch.device("cpu"))[1]
    asked = [call.args[0] for call in data.__getitem__.call_args_list]
    assert sorted(asked) == list(range(10)) and seen == 10


def test_arguments_are_checked_before_a_rank_joins(trainer, capfd) -> None:
    module, play = trainer
    wrong = {"--batch=63": "--batch 63 does not divide", "--batch=0": "--batch 0 does not divide"}
    for option, words in {**wrong, "--epochs=0": "--epochs 0: one epoch is the least"}.items():
        events = play(0, 2)
        with pytest.raises(SystemExit, match=r"^2$"):
            module.main([option])
        said = capfd.readouterr().err
        assert words in said and said.count("\n") == 1 and events == []


def test_without_mnist_and_network_training_names_the_digits(trainer, monkeypatch) -> None:
    module, play = trainer
    play(0, 2)
    fails = Mock(side_effect=RuntimeError("Error downloading train-images"))
    monkeypatch.setattr(module, "load", fails)
    with pytest.raises(SystemExit, match=r"Error downloading.*: try --data digits"):
        module.main(["--data=mnist"])


# --- real ranks ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_scripts_run_unchanged_on_two_nodes(tmp_path) -> None:
    """Two torchruns on this machine, as two nodes would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    options += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
    options += [str(SCRIPTS / "train_ddp.py"), "--data=digits", "--epochs=1"]
    # More threads, which is what one rank on a node gets, would only wait for each other.
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", forks.FORK: "ranks"}
    command = [sys.executable, "-m", "torch.distributed.run", *options, f"--save={tmp_path / 'w'}"]
    logs, running = [tmp_path / "node0", tmp_path / "node1"], []
    for log in logs:
        with open(log, "wb") as out, open(f"{log}.err", "wb") as err:
            running.append(forks.Popen(command, env=env, stdout=out, stderr=err))
    try:
        statuses = [node.wait(timeout=200) for node in running]
    finally:
        for node in running:
            node.terminate()  # it takes its ranks along
    assert statuses == [0, 0], [Path(f"{log}.err").read_text() for log in logs]
    said = [log.read_text().splitlines() for log in logs]
    assert json.loads(said[0][-1]) == json.loads(said[1][-1])
    assert sum("accuracy" in line for lines in said for line in lines[:-1]) == 1


def test_what_makes_a_model_fit_changes_no_loss(monkeypatch) -> None:
    """On the CPU: six remedies one by one, and LoRA, which trains two thin matrices a layer."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    fitting = importlib.import_module("fitting")
    small = {"BATCH": 2, "TIME": 8, "VOCABULARY": 50, "PADDED": 64, "WARM": 1, "TIMED": 2}
    for name, value in small.items():
        monkeypatch.setattr(fitting, name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small that two wait for each other
    plain, *others = (fitting.tried("2x128", 0.0, stair)["losses"] for stair in range(1, 7))
    torch.set_num_threads(threads)
    assert plain[-1] < plain[0] and len(plain) == 3
    assert all(other == pytest.approx(plain, abs=0.01) for other in others)
    adapted = fitting.with_lora(fitting.Transformer(64, 128, 2, 1)).named_parameters()
    thin = {name.rsplit(".", 2)[1] for name, p in adapted if p.requires_grad}
    assert thin == {"down", "up"} and "error" not in fitting.tried("2x128", 0.0, "LoRA")
