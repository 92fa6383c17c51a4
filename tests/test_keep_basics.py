"""Codes to keep of part 1, "Which GPU?" and the ledger: the cases that readers bring."""

import os
import random
import subprocess
import sys
from collections import UserDict, deque
from dataclasses import dataclass
from types import SimpleNamespace
from unittest.mock import Mock

import gpu_check
import numpy as np
import price
import pytest
import torch
from left_behind import left_behind
from repeatable import seed_everything
from strays import strays
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm

from cases import cases
from notebooks import BOOK, read

# --- 1.1 ----------------------------------------------------------------------------------------

# What torch says, and words of the answer.
SAID = cases("test_check_names_what_the_error_names")


@pytest.mark.parametrize("said, answer", SAID.items())
@pytest.mark.parametrize("kind", [RuntimeError, AssertionError, OSError])
def test_check_names_what_the_error_names(said, answer, kind, monkeypatch) -> None:
    monkeypatch.setattr(torch, "ones", Mock(side_effect=kind(said)))
    found = gpu_check.check()
    assert answer in found
    known = sum(any(w in said for w in key.split("|")) for key in gpu_check.CAUSES)  # at most one
    assert known == (answer != "not one of these")
    if not known:
        assert said.split("\n")[0] in found and kind.__name__ in found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_check_computes() -> None:
    assert gpu_check.check().endswith("did 2,147,483,648 operations")


# --- 1.4 and 1.6: both open what readers put tensors into ----------------------------------------


@dataclass
class Batch:
    x: torch.Tensor


@dataclass(slots=True)
class Slotted:
    x: torch.Tensor


OPENED = [  # what a tensor may be in, and how it is called there
    (lambda t: {"x": t}, "x"),
    (lambda t: {5: t}, "5"),
    (lambda t: UserDict(x=t), "x"),  # as BatchEncoding of transformers
    (Batch, "x"),
    (Slotted, "x"),
    (lambda t: SimpleNamespace(x=t), "x"),
    (lambda t: [t], "0"),
    (lambda t: (t,), "0"),
    (lambda t: deque([t]), "0"),
    (lambda t: frozenset([t]), "0"),
    (lambda t: {torch.zeros(1, device="meta"): t}, "0"),  # as an optimizer's state
    (lambda t: {"parts": [SimpleNamespace(x=(t,))]}, "parts.0.x.0"),
]


@pytest.mark.parametrize("wrap, key", OPENED)
def test_strays_and_left_behind_open(wrap, key) -> None:
    assert strays("meta", batch=wrap(torch.ones(1))) == [f"batch.{key}: torch.float32 on cpu"]
    assert strays("meta", batch=wrap(torch.ones(1, device="meta"))) == []
    double = wrap(torch.ones(1, dtype=torch.float64))
    assert strays("cpu", batch=double) == [f"batch.{key}: torch.float64 on cpu"]
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].cache = wrap(torch.ones(1))
    assert left_behind(model) == {f"0.cache.{key}": ".to() and state_dict()"}


def test_strays_says_each_tensor_once_and_ends() -> None:
    model = nn.LSTM(2, 2)  # keeps its weights in a list, too
    ring = {"model": model, "torch": torch, "kind": nn.Linear}
    ring["again"] = ring
    names = [line.split(":")[0] for line in strays("meta", ring=ring)]
    assert names == [f"ring.model.{name}" for name, _ in model.named_parameters()]
    optimizer = torch.optim.Adam(nn.Linear(2, 2, device="meta").parameters())
    optimizer.param_groups[0]["params"][0].grad = torch.zeros(2, 2, device="meta")
    optimizer.step()  # its counter is on the CPU, on purpose
    assert len(optimizer.state) == 1 and strays("meta", optimizer=optimizer) == []
    assert strays("meta", state=optimizer.state_dict()["state"]) == []
    with pytest.raises(AssertionError, match="make iterators lists"):  # to look would use them up
        strays("meta", parameters=model.parameters())


def test_left_behind_says_which_of_the_two_misses_it() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    model[0].register_buffer("mask", torch.ones(2), persistent=False)
    model.layers, model.torch, model.kind = [nn.Linear(2, 2)], torch, nn.Linear
    model.ring = {"model": model, "norm": model[0]}
    model.ring["again"] = model.ring  # RecursionError, once
    both = ".to() and state_dict()"
    assert left_behind(model) == {"0.mask": "state_dict()", "layers.0": both}
    assert model.to("meta")[0].mask.is_meta and not model.layers[0].weight.is_meta


def test_left_behind_lets_be_what_is_computed_again() -> None:
    pruned = [nn.Linear(2, 2) for _ in range(3)]
    prune.random_unstructured(pruned[0], "weight", amount=1)
    prune.random_unstructured(pruned[1], "bias", amount=1)
    prune.random_unstructured(pruned[1], "bias", amount=1)  # a container of two
    prune.random_unstructured(pruned[2].requires_grad_(False), "weight", amount=1)
    model = nn.Sequential(*pruned, spectral_norm(nn.Linear(2, 2)))
    model.append(parametrizations.weight_norm(nn.Linear(2, 2)))
    model.append(parametrize.register_parametrization(nn.Linear(2, 2), "weight", nn.Tanh()))
    assert left_behind(model) == {}
    model[0].other = torch.ones(2)
    assert [*left_behind(model)] == ["0.other"]


# --- 1.8 ----------------------------------------------------------------------------------------


@pytest.fixture
def restored():
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def drawn(own=None):
    return [random.random(), np.random.rand(), *torch.rand(3, generator=own).tolist()]


@pytest.mark.parametrize("deterministic", [True, False])
def test_seed_everything(deterministic, restored) -> None:
    firsts = []
    for seed in (7, 7, 8):
        own = seed_everything(seed, deterministic=deterministic)
        firsts.append((drawn(), drawn(own)))
    assert firsts[0] == firsts[1]
    assert not any({*a} & {*b} for a, b in zip(firsts[0], firsts[2], strict=True))
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert not torch.utils.deterministic.fill_uninitialized_memory
    for seed in (7, 8, 9):  # the loader shares no stream with this run, nor with one beside it
        torch.manual_seed(seed)
        assert firsts[0][1][2:] != torch.rand(3).tolist()


PERSISTENT = """
import multiprocessing, torch
import numpy as np
from repeatable import seed_everything
from torch.utils.data import DataLoader, Dataset

{shown}

if __name__ == "__main__":
    for method in sorted({{"fork", "spawn"}} & {{*multiprocessing.get_all_start_methods()}}):
        data, own = EpochSeeded(), seed_everything(0, deterministic=False)
        loader = DataLoader(data, batch_size=2, shuffle=True, generator=own, num_workers=1,
            persistent_workers=True, multiprocessing_context=method)
        for epoch in range(3):
            data.epoch.fill_(epoch)
            print(method, *(f"{{x:.9f}}" for x in torch.cat(list(loader)).tolist()))
"""


@pytest.mark.usefixtures("forked_pythons")
def test_persistent_workers_see_the_epoch(tmp_path) -> None:
    (cell,) = (c for c in read(BOOK / "18_repeatable.ipynb").cells if c.id == "workers-persistent")
    shown = cell.source.split("\n\n\n")[0]  # the class, as the page has it
    (tmp_path / "run.py").write_text(PERSISTENT.format(shown=shown))
    env = os.environ | {"PYTHONPATH": str(BOOK / "keep"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error:::__main__", str(tmp_path / "run.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    found: dict[str, list[list[str]]] = {}
    for line in done.stdout.splitlines():
        method, *numbers = line.split()
        found.setdefault(method, []).append(numbers)
    seed = lambda e, i: int(np.random.default_rng([0, e, i, 1]).integers(2**63))  # noqa: E731
    draw = torch.Generator().manual_seed
    drawn_in = lambda e, i: f"{torch.rand((), generator=draw(seed(e, i))):.9f}"  # noqa: E731
    wanted = [{drawn_in(epoch, i) for i in range(8)} for epoch in range(3)]
    assert found and all([*map(set, epochs)] == wanted for epochs in found.values()), done.stderr
    first, *others = found.values()  # the generator shuffles them alike
    assert "spawn" in found and all(epochs == first for epochs in others)


# --- Which GPU? ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name, found", [("a", 6.9), ("another", 0)], ids=["counts", "unknown"])
def test_price_reads_the_joules_of_torchs_gpu(name, found, monkeypatch) -> None:
    handle = lambda uuid, gpu: setattr(gpu._obj, "value", 7 * (uuid == b"GPU-a"))  # noqa: E731
    count = lambda gpu, total: setattr(total._obj, "value", 6900 * (gpu.value == 7))  # noqa: E731
    nvml = {"nvmlInit_v2": int, "nvmlDeviceGetHandleByUUID": handle}
    nvml["nvmlDeviceGetTotalEnergyConsumption"] = count
    monkeypatch.setattr(price, "CDLL", lambda library: SimpleNamespace(**nvml))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(uuid=name))
    assert price.gpu_joules() == found
    assert price.measure(lambda: nn.Dropout(0.1)(torch.rand(3)), calls=3) > (0, 0)  # your step
