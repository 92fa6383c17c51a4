"""Checkpoints to keep: whole or not at all, in a thread, resumed to the last bit, or refused."""

import copy
import importlib
import io
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from background import Background
from checkpoint import save
from order import Order
from progress import Progress
from resume import resume
from stop import until_sigterm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KEEP = Path(__file__).resolve().parent.parent / "book" / "keep"
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def built(seed: int = 0, width: int = 3) -> dict:
    """What training changes, after one step: Adam has its averages."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    step(model, optimizer)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def step(model, optimizer) -> None:
    model(torch.randn(8, model[0].in_features)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def frozen(parts: dict) -> dict:
    return {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}


def same(a, b) -> bool:
    """Two nested states hold the same numbers, under the same names."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a.cpu(), b.cpu())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run-1.5.pt"


class Unwritable:
    """What fails while it is written, like this."""

    def __init__(self, error: BaseException):
        self.error = error

    def __reduce__(self) -> tuple:
        raise self.error

    def __deepcopy__(self, memo: dict) -> "Unwritable":
        return self


# --- whole or not at all ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("no"), SystemExit("no")])
def test_a_save_that_fails_leaves_the_last_checkpoint_alone(error, path, monkeypatch) -> None:
    with torch.serialization.safe_globals([SimpleNamespace]):
        save(path, part={"allowed": SimpleNamespace()})
    good, kind = path.read_bytes(), OSError if isinstance(error, ValueError) else type(error)
    with pytest.raises(kind, match="no"):
        save(path, part=Unwritable(error))
    with pytest.raises(OSError, match=r"still there: .*refuse numpy.*, types\.SimpleNamespace"):
        save(path, part={"rate": np.float64(1), "not allowed": SimpleNamespace()})
    (own := RuntimeError("a part")).__context__ = error  # as raised in an except block
    with pytest.raises(OSError, match="still there: a part"):
        save(path, part=Unwritable(own))
    write = Mock(side_effect=[None, error, *[None] * 99])  # torch.save makes it a RuntimeError
    monkeypatch.setitem(save.__globals__, "open", type("Torn", (io.FileIO,), {"write": write}))
    with pytest.raises(kind, match="no"):
        save(path, part={})
    assert path.read_bytes() == good and [f.name for f in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("width", [1, 400])
def test_a_disk_without_space_is_named_in_the_sentence(width, path) -> None:
    save(path, model=nn.Linear(3, 2))
    good = path.read_bytes()
    Path(f"{path}.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"still there: .*No space left on device") as raised:
        save(path, model=nn.Linear(width, width))
    assert "enforce fail" not in str(raised.value)
    assert path.read_bytes() == good and [f.name for f in path.parent.iterdir()] == [path.name]


def test_bytes_and_then_the_name_are_on_the_disk_when_save_ends(path, monkeypatch) -> None:
    acts = Mock(wraps=os, O_RDONLY=0, open=Mock(return_value=7), close=Mock(return_value=None))
    acts.fsync.side_effect = [None, KeyboardInterrupt, None]
    monkeypatch.setitem(save.__globals__, "os", acts)
    with pytest.raises(KeyboardInterrupt):
        save(path, model=nn.Linear(3, 2))
    assert [call[0] for call in acts.mock_calls] == ["fsync", "replace", "open", "fsync", "close"]
    acts.open.side_effect = PermissionError  # a folder that nobody may read, or of Windows
    save(path, model=nn.Linear(3, 2))


# --- compared before it is loaded ---------------------------------------------------------------


def test_what_was_saved_comes_back(path) -> None:
    saved, parts = built(), built(seed=1)
    save(path, **saved)
    resume(path, **parts)
    assert same(frozen(parts), frozen(saved))


def planned(parts: dict, option: str):
    """A scheduler of one's own, with an option of its own."""
    scheduler = torch.optim.lr_scheduler.StepLR(parts["optimizer"], 5)
    setattr(scheduler, option, 3)
    return scheduler


# What the sentence says; and of the saved and the new parts those that differ, None without.
ADAM, SGD, SCHEDULE = torch.optim.Adam, torch.optim.SGD, torch.optim.lr_scheduler
OTHERS = {
    "optimizer": lambda parts: ({"optimizer": None}, {}),
    "scheduler": lambda parts: ({}, {"scheduler": None}),
    "model.weight (4, 3)": lambda parts: ({}, {"model": nn.Linear(3, 4)}),
    "model.0.weight (4, 5)": lambda parts: ({}, built(width=5)),
    "optimizer[0]: 2 parameters, ['amsgrad', 'betas',": lambda parts: (
        *({}, {"optimizer": ADAM(nn.Linear(1, 1).parameters())}),
    ),
    "optimizer[0]: 6 parameters, ['dampening',": lambda parts: (
        *({}, {"optimizer": SGD(parts["model"].parameters(), momentum=0.9)}),
    ),
    "scaler[0]: 0 parameters, ['_growth_tracker',": lambda parts: (
        {"scaler": torch.amp.GradScaler("cpu", enabled=on)} for on in (False, True)
    ),
    "progress.generator 1": lambda parts: (
        *({"progress": Progress()}, {"progress": Progress(torch.Generator())}),
    ),
    "scheduler[0]: 0 parameters, ['T_max',": lambda parts: (
        *({}, {"scheduler": SCHEDULE.CosineAnnealingLR(parts["optimizer"], 9)}),
    ),
    "'warm'": lambda parts: ({"scheduler": planned(parts, name)} for name in ("warm", "cool")),
    "'momentum_decay'": lambda parts: (
        *({}, {"optimizer": torch.optim.NAdam(parts["model"].parameters())}),
    ),
    "numbers, no dictionary": lambda parts: (
        {"numbers": SimpleNamespace(state_dict=kind)} for kind in (list, dict)
    ),
}


@pytest.mark.parametrize("fresh", [True, False], ids=["new optimizer", "used optimizer"])
@pytest.mark.parametrize("said", OTHERS)
def test_what_does_not_fit_is_refused_and_changes_nothing(said, fresh, path) -> None:
    saved, parts = built(), built(seed=1)
    if fresh:
        parts["optimizer"] = ADAM(parts["model"].parameters())
    there, here = OTHERS[said](parts)
    saved, parts = (
        {name: part for name, part in (old | new).items() if part is not None}
        for old, new in ((saved, there), (parts, here))
    )
    save(path, **saved)
    before = frozen(parts)
    with pytest.raises(ValueError, match="nothing was loaded") as raised:
        resume(path, **parts)
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert same(frozen(parts), before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["model", "optimizer", "scheduler"])
def test_a_part_that_refuses_leaves_all_as_they_were(name, device, path, monkeypatch) -> None:
    def refuse(part, state: dict) -> None:
        load(part, state)
        raise error

    save(path, history={0: [0]}, **built())
    history, parts = {1: [1]}, built(seed=1)
    parts["model"].to(device)
    before, kind = frozen(parts), type(parts[name])
    load = kind.load_state_dict
    error = KeyError("exp_inf") if name == "optimizer" else KeyboardInterrupt("exp_inf")
    monkeypatch.setattr(kind, "load_state_dict", refuse)
    with pytest.raises(type(error), match="exp_inf"):
        resume(path, history=history, **parts)
    assert history == {1: [1]} and same(frozen(parts), before)


def test_a_file_from_before_an_option_came_is_resumed(path) -> None:
    """AdamW's and a scheduler's of PyTorch 2.6: ``load_state_dict`` knows what they meant."""
    saved, parts = built(), built(seed=1)
    before, adam = frozen(saved), torch.optim.AdamW(saved["model"].parameters(), weight_decay=0.1)
    parts["optimizer"] = torch.optim.AdamW(parts["model"].parameters())
    old = before | {"optimizer": adam.state_dict()}
    for options in old["optimizer"]["param_groups"]:
        del options["decoupled_weight_decay"], options["differentiable"]
    old["scheduler"]["verbose"] = old["scheduler"].pop("_is_initial")
    torch.save(old, path)
    resume(path, **parts)
    group = parts["optimizer"].param_groups[0]
    assert group["decoupled_weight_decay"] and group["weight_decay"] == 0.1
    assert not group["differentiable"] and same(frozen(parts)["model"], before["model"])


FIVE = "StepLR", "PolynomialLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts"
HALF = "ConstantLR", "LinearLR", "ExponentialLR"
SCHEDULES = {name: [5] for name in FIVE} | {name: [0.5] for name in HALF}
SCHEDULES |= {  # LambdaLR and MultiplicativeLR look alike
    "MultiStepLR": [[5]],
    "LambdaLR": [lambda step: 1.0],
    "CyclicLR": [0.1, 0.2],
    "OneCycleLR": [0.1, 10],
    "ReduceLROnPlateau": [],
}


def test_each_kind_of_scheduler_refuses_a_file_of_another(path) -> None:
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    kinds = {k: getattr(SCHEDULE, k)(optimizer, *more) for k, more in SCHEDULES.items()}
    steps = [SCHEDULE.StepLR(optimizer, 5), SCHEDULE.StepLR(optimizer, 5)]
    kinds |= {"chain": SCHEDULE.ChainedScheduler(steps)}
    kinds |= {"sequence": SCHEDULE.SequentialLR(optimizer, steps, [3])}
    for ours, scheduler in kinds.items():
        save(path, model=nn.Linear(3, 2), scheduler=scheduler)
        for theirs, other in kinds.items():
            parts = {"model": model, "scheduler": other}
            before = frozen(parts)
            if ours == theirs:
                resume(path, **parts)
                continue
            with pytest.raises(ValueError, match="nothing was loaded"):
                resume(path, **parts)
            assert same(frozen(parts), before), (ours, theirs)


@pytest.mark.parametrize("place", ["missing.pt", "."])
def test_a_file_that_is_not_there_is_not_called_damaged(place, tmp_path) -> None:
    with pytest.raises(OSError) as raised:
        resume(tmp_path / place, model=nn.Linear(3, 2))
    assert "damaged" not in str(raised.value)


def test_what_save_did_not_write_is_refused_in_a_sentence(path) -> None:
    model = nn.Linear(3, 2)
    foreign = {"nothing was loaded": model.state_dict(), "is not a mapping": [torch.ones(2)]}
    for said, states in foreign.items():
        torch.save(states, path)
        with pytest.raises((ValueError, TypeError), match=said):
            resume(path, model=model)
    save(path, model=model, step=3)  # a number has no place to come back to
    with pytest.raises(TypeError, match="'int' object is not a mapping"):
        resume(path, model=nn.Linear(3, 2), step=0)


def test_a_dictionary_is_a_part_saved_and_resumed(path) -> None:
    saved, now = {"best": 0.5, "names": ["a"]}, {}
    background = Background(save)
    for write in (save, background.save):
        write(path, model=nn.Linear(3, 2), history=saved)
        now.clear(), background.wait()
        resume(path, model=nn.Linear(3, 2), history=now)
        assert now == saved
        path.unlink()


def test_a_damaged_file_is_refused_and_changes_nothing(path) -> None:
    saved, parts = built(), built(seed=1)
    save(path, **saved)
    data = bytearray(path.read_bytes())
    data[data.find(saved["model"][0].weight.detach().numpy().tobytes()) + 3] ^= 64
    for damaged in (data, data[: len(data) // 2], b""):
        path.write_bytes(damaged)
        before = frozen(parts)
        with pytest.raises(ValueError, match="damaged or incomplete"):
            resume(path, **parts)
        assert same(frozen(parts), before)


# --- in a thread --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_the_file_holds_the_moment_of_the_call(device, path) -> None:
    go, written = threading.Event(), built()
    parts = {**written, "progress": Progress()}
    parts["model"].to(device)
    for state in parts["optimizer"].state.values():
        state.update({name: value.to(device) for name, value in state.items() if name != "step"})

    def late(path, **states):
        go.wait(60)
        save(path, **states)

    background, before = Background(late), frozen(parts)
    config = {"lr": [1, (2.0, None)], "milestones": Counter([2, 2])}  # as a schedule's
    background.save(path, **parts, config=config)
    torch.nn.init.zeros_(parts["model"][0].weight)
    for state in parts["optimizer"].state.values():
        state["exp_avg"].zero_(), state["step"].add_(1)
    parts["optimizer"].param_groups[0]["lr"] = 7.0
    parts["progress"].step, _ = 9, torch.rand(1)
    assert not path.exists()  # training went on while nothing was written
    go.set()
    background.wait()
    assert same(torch.load(path), {**before, "config": config})


def test_an_error_in_the_thread_is_raised_once_and_the_next_file_is_written(path) -> None:
    background = Background(save)
    for call in (background.wait, lambda: background.save(path, model=nn.Linear(3, 2))):
        background.save(path, part=Unwritable(ValueError("no")))
        with pytest.raises(OSError, match="still there"):
            call()
        background.wait()  # the error was told
    background.save(path, model=nn.Linear(3, 2))
    background.wait()
    assert [f.name for f in path.parent.iterdir()] == [path.name]
    resume(path, model=nn.Linear(3, 2))


def test_two_writes_never_run_at_once(path) -> None:
    running, most = [], []

    def slow(path, **states):
        running.append(path)
        most.append(len(running))
        threading.Event().wait(0.02)
        running.pop()

    background = Background(slow)
    for _ in range(4):
        background.save(path, model=nn.Linear(3, 2))
    background.wait()
    assert most == [1, 1, 1, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: not on Windows")
def test_nothing_is_lost_when_the_interpreter_ends(path) -> None:
    ends = ["", "raise SystemExit(0)", "raise ValueError"]
    script = f"""
import os, sys, time
sys.path.insert(0, {str(KEEP)!r})
import torch
from background import Background
from checkpoint import save
def slow(path, **states): time.sleep(0.2), save(path, **states)
for number, end in enumerate({ends}):
    if os.fork() == 0:
        Background(slow).save(f"{path}{{number}}", model=torch.nn.Linear(3, 2))
        exec(end)
        break
else:
    [os.wait() for _ in {ends}]
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, timeout=60)
    for number in range(len(ends)):
        resume(f"{path}{number}", model=nn.Linear(3, 2))


def test_copies_that_failed_are_not_written_over_the_good_file(path, monkeypatch) -> None:
    save(path, model=nn.Linear(3, 2))
    good, background = path.read_bytes(), Background(save)
    stream = Mock()
    stream().record_event().synchronize.side_effect = RuntimeError("device-side assert triggered")
    with monkeypatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: True)
        patch.setattr("torch.cuda.current_stream", stream)
        background.save(path, model=nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="device-side assert"):
        background.wait()
    assert path.read_bytes() == good


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


def test_copies_are_of_the_kind_of_what_was_copied() -> None:
    model = nn.BatchNorm1d(3)
    state = model.state_dict()
    named = Pair(torch.ones(2), 3)
    seen = {}
    background = Background(lambda path, **states: seen.update(states))
    sizes, counts = torch.Size([2, 3]), Counter([3, 3, 5])
    array, held = np.ones(2), SimpleNamespace(x=torch.ones(2))
    other = {"named": named, "sizes": sizes, "counts": counts, "array": array, "held": [held]}
    before = repr(other)
    background.save("", model=model, other=other)
    background.wait()
    named.first.zero_(), model.weight.data.zero_(), array.fill(0), held.x.zero_()
    assert type(seen["model"]) is type(state) and seen["model"]._metadata == state._metadata
    assert seen["model"]["weight"].tolist() == [1, 1, 1]
    assert repr(seen["other"]) == before != repr(other)


# --- SIGTERM, and the generators ----------------------------------------------------------------


def test_sigterm_ends_the_loop_after_the_running_step_with_status_0(run, path) -> None:
    done = run(f"""
import signal, sys
sys.path.insert(0, {str(KEEP)!r})
import torch
from checkpoint import save
from progress import Progress
from stop import until_sigterm
progress = Progress()
with until_sigterm() as stop:
    while not stop.is_set():
        if progress.step == 6: signal.raise_signal(signal.SIGTERM)
        progress.step += 1
    save({str(path)!r}, progress=progress)
""")
    assert done.status == 0
    assert torch.load(path)["progress"]["step"] == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: not on Windows")
def test_in_a_forked_process_and_after_the_block_sigterm_does_what_it_did_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), until_sigterm() as stop:
        process = torch.multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        process.start(), time.sleep(1)  # CPython forgets signals that come before the fork's end
        process.terminate(), process.join(10)
        assert process.exitcode == -signal.SIGTERM
        assert not stop.is_set() and signal.getsignal(signal.SIGTERM) != before
        _ = 1 / 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_every_generator_goes_on_where_it_was(path) -> None:
    def drawn() -> list:
        gpus = [torch.rand(1, device=d).item() for d in DEVICES]
        loader = torch.randint(1000, (3,), generator=own).tolist()
        return [random.random(), np.random.rand(), *torch.rand(2).tolist(), *loader, *gpus]

    own = torch.Generator().manual_seed(5)
    progress, progress.step = Progress(own), 12
    save(path, progress=progress)
    first = drawn()
    again = Progress(own)
    resume(path, progress=again)
    assert drawn() == first and again.step == 12


def test_a_checkpoint_of_more_gpus_and_of_a_machine_without_numpy(monkeypatch, path) -> None:
    seen, state = [], Progress().state_dict()
    bits = [torch.full((16,), n, dtype=torch.uint8) for n in range(8)]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_rng_state_all", seen.extend)
    moved = [SimpleNamespace(cpu=lambda n=n: n) for n in (*bits, state["generator 0"])]
    Progress().load_state_dict({**state, "cuda": moved[:8], "generator 0": moved[8]})
    assert seen == bits[:2]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    without = Progress().state_dict()
    assert "numpy" not in without
    Progress().load_state_dict(without)
    monkeypatch.setitem(sys.modules, "numpy", None)  # to import it is an error
    Progress().load_state_dict(state)


# --- the order of the data ----------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_from_any_step_the_order_is_that_of_the_whole_run_and_of_its_seed(workers) -> None:
    data = TensorDataset(torch.arange(10))

    def drawn(seed: int, step: int) -> list:
        order = Order(len(data), 4, seed=seed, step=step)
        loader = DataLoader(data, batch_sampler=order, num_workers=workers)
        return [rows.tolist() for (rows,) in islice(loader, 8 - step)]

    whole = drawn(0, 0)
    assert [len(rows) for rows in whole] == [4] * 8, "no smaller last batch: ranks share equally"
    epochs = [{row for rows in whole[i : i + 2] for row in rows} for i in (0, 2, 4, 6)]
    assert [len(epoch) for epoch in epochs] == [8] * 4 and set.union(*epochs) == {*range(10)}
    assert whole[:2] != whole[2:4] and drawn(0, 5) == whole[5:]
    others = [drawn(seed, 0)[i : i + 2] for seed in (1, 2, 2**32) for i in (0, 2)]
    assert whole[:2] not in others and whole[2:4] not in others, "no two runs share an epoch"
    torch.manual_seed(0)
    assert [*whole[0], *whole[1]] != torch.randperm(10)[:8].tolist(), "what the program draws first"


def test_a_second_loop_and_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows make no batch of 4"):
        Order(3, 4)
    loader = DataLoader(torch.arange(10), batch_sampler=Order(10, 4))
    assert len(list(islice(loader, 3))) == 3
    with pytest.raises(RuntimeError, match="count steps, not epochs"):
        next(iter(loader))


def test_its_loop_draws_nothing_from_the_generator_of_dropout() -> None:
    """Or a resumed run, which makes one loop more, goes on with other numbers."""
    before = torch.get_rng_state()
    runpy.run_path(str(KEEP / "order.py"), run_name="__main__")
    assert torch.equal(torch.get_rng_state(), before)


# --- all together -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_that_stopped_in_an_epoch_ends_as_one_that_did_not(device, path, monkeypatch):
    monkeypatch.syspath_prepend(KEEP.parent / "scripts")
    script = importlib.import_module("resumable")
    assert (script.save, script.resume, script.Order) == (save, resume, Order), "as pages show them"
    torch.use_deterministic_algorithms(True)
    monkeypatch.setattr(script, "save", Background(save).save)
    straight = script.build(1, device)
    script.train(straight, 60, device)
    script.train(script.build(1, device), 37, device, path)  # the last file is of step 30
    script.save.__self__.wait()
    torch.rand(5), random.random()
    parts = script.build(2, device)
    resume(path, **parts)
    assert parts["progress"].step == 30
    script.train(parts, 60, device)
    torch.use_deterministic_algorithms(False)
    assert same(frozen(parts), frozen(straight))
