"""The whole program of ``book/keep``: spread or not, killed or not, it gives the same weights."""

import errno
import functools
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
import train

import forks
from cases import cases
from notebooks import BOOK

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: not on Windows")

# How often each run is killed: `make chaos` kills more often.
KILLS = int(os.environ.get("CHAOS", 3))
STEPS, EVERY = 20, 5
SMALL = ["--steps", f"{STEPS}", "--every", f"{EVERY}", "--batch", "12", "--size", "tiny"]
TINY = 2, 128, 32, 8, 300, 3e-3  # an eighth of its context: a step shows as much of the ranks
RANKS = {  # how many, and how they share the work
    "one": (1, []),
    "ddp": (2, []),
    "shard": (2, ["--shard", "--pieces", "2"]),  # gradients travel after the last piece
    "tensor": (2, ["--tensor", "2"]),
    "shard 3": (3, ["--shard", "--pieces", "4"]),  # more than it has rows to validate on
    "shard 4": (4, ["--shard"]),
    "both": (4, ["--shard", "--tensor", "2"]),
}

# What a rank runs before its options, in the folder of the program.
RANK = """
import os, signal, sys, train
train.product_rate, train.SIZES["tiny"] = lambda *_: 1e11, {}
replace, rate = os.replace, train.rate
def keep_the_one_before(new, path):
    if os.path.exists(path):
        replace(path, f"{{path}}.before")
    replace(new, path)
def stops(step, steps):
    step == {} and os.kill(os.getpid(), signal.SIGTERM)
    return rate(step, steps)
os.replace, train.rate, sys.argv[0] = keep_the_one_before if {} else replace, stops, "train.py"
train.main()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A part of torch to train on; held out are two batches and a half, by their file."""
    folder, modules = tmp_path_factory.mktemp("source"), Path(torch.__file__).parent / "nn/modules"
    text = b"".join(path.read_bytes() for path in sorted(modules.glob("*.py")))
    (folder / "20.py").write_bytes(text[:1_350])
    (folder / "0.py").write_bytes(text[1_350:100_000])
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """The program where a reader has copied it to: a folder with nothing else of this book."""
    folder = tmp_path_factory.mktemp("copied") / "keep"
    shutil.copytree(BOOK / "keep", folder, ignore=shutil.ignore_patterns("__pycache__", "*.pt"))
    return folder / "train.py"


class Run:
    """The program on some ranks, each a process whose output goes to a file."""

    def __init__(
        self, program, source, folder, *options, how="one", name="run", stop=0, kept=False
    ):
        """``stop``: a step to end at; ``kept``: of its checkpoints the one before the last, too."""
        self.folder, self.ranks, (count, spread) = folder, [], RANKS[how]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        many = {"WORLD_SIZE": f"{count}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
        command = [sys.executable, "-W", "error", "-c", RANK.format(TINY, stop, kept), *SMALL]
        command += [f"--data={source}", f"--metrics={folder}/{name}.jsonl", *options, *spread]
        for rank in range(count):
            env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            env |= {**many, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} if count > 1 else {}
            disk = "/on/another" if rank else folder  # that of the first rank counts
            with open(folder / f"{rank}.out", "w") as out, open(folder / f"{rank}.err", "w") as err:
                io = {"stdout": out, "stderr": err, "cwd": program.parent, "env": env}
                self.ranks.append(forks.Popen([*command, f"--checkpoint={disk}/{name}.pt"], **io))

    def end(self) -> tuple[int, str, str]:
        """Status of the worst rank, and what the first said."""
        status = max((rank.wait() for rank in self.ranks), key=abs)
        out, err = ((self.folder / f"0.{name}").read_text() for name in ("out", "err"))
        # Torch's own word on two-dimensional meshes, about which one can do nothing.
        kept = [line for line in err.splitlines(True) if "_redistribute" not in line]
        return status, out, "".join(kept)


@pytest.fixture
def start(program, source, tmp_path) -> Callable[..., Run]:
    return functools.partial(Run, program, source, tmp_path)


@pytest.fixture
def run(start) -> Callable[..., tuple[int, str, str]]:
    return lambda *options, **where: start(*options, **where).end()


@pytest.fixture(scope="module")
def spread(program, source, tmp_path_factory) -> Callable[[str], Path]:
    """A function that gives the metrics of a run that was never killed: one for each way.

    Beside them are its weights, run.pt, and its checkpoint before the last, run.pt.before.
    """

    @functools.cache
    def spread(how: str) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        status, _, err = Run(program, source, folder, how=how, kept=True).end()
        assert (status, err) == (0, "")
        return folder / "run.jsonl"

    return spread


@pytest.fixture(scope="module")
def whole(spread) -> Path:
    """Metrics and weights of one process that was never killed."""
    return spread("one")


def losses(path: Path) -> dict[int, tuple[float, float]]:
    """Loss and gradient's norm of each step; of one that was taken twice, the last."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["step"]: (row["bits"], row["norm"]) for row in rows}


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)["model"]


def wait_for(path: Path, steps: int) -> None:
    """Until the metrics have so many lines."""
    end = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < steps:
        assert time.monotonic() < end, "no step was taken"
        time.sleep(0.002)


def furthest(path: Path, other: Path, after: int = 0) -> float:
    """The largest difference between the losses of two runs, as a part of them.

    Processors round differently: near 8 bits per byte float32 has steps of 1e-6. Of the second run
    from its step ``after`` on. Gradients are compared, too: clipping hides from the losses how long
    they are.
    """
    ours, others = losses(path), losses(other)
    assert sorted(ours) == list(range(after + 1, STEPS + 1)) and len(others) == STEPS
    for step in ours:
        assert ours[step][1] == pytest.approx(others[step][1], rel=1e-4)
    return max(abs(ours[step][0] / others[step][0] - 1) for step in ours)


@pytest.mark.parametrize("how", [name for name in RANKS if name != "one"])
def test_spread_over_ranks_losses_are_those_of_one_process(spread, whole, how) -> None:
    if how == "tensor" and torch.__version__ < "2.12":
        pytest.skip("there, clipping makes the gradients of RMSNorm wrong (chapter 5.4)")
    assert furthest(spread(how), whole) <= 1e-6


@pytest.mark.parametrize("first, then", [("one", "both"), ("both", "ddp")])
def test_checkpoints_go_from_any_to_any(spread, run, whole, tmp_path, first, then) -> None:
    shutil.copy(spread(first).with_suffix(".pt.before"), tmp_path / "run.pt")
    status, out, err = run(how=then)
    assert (status, err) == (0, "")
    assert f"going on after step {STEPS - EVERY}, from {tmp_path}/run.pt" in out
    assert furthest(tmp_path / "run.jsonl", whole, STEPS - EVERY) <= 2e-6


@pytest.mark.parametrize("options", [["--pieces", "2"], ["--every", "1"]], ids=" ".join)
def test_a_run_that_sigterm_ends_saves_first(run, whole, tmp_path, options) -> None:
    """Two ranks do, even if each step is saved; one process goes on with what they saved."""
    status, out, _ = run(*options, how="ddp", stop=3)
    assert status == 0 and f"stopped, saved in {tmp_path}/run.pt" in out
    taken = len(losses(tmp_path / "run.jsonl"))
    assert 3 <= taken < STEPS / 2
    status, out, err = run()
    assert (status, err) == (0, "")
    assert f"going on after step {taken}, from {tmp_path}/run.pt" in out
    assert furthest(tmp_path / "run.jsonl", whole) <= 2e-6


@pytest.mark.parametrize("how", ["one", "ddp"])
def test_killed_at_any_moment_it_ends_with_the_same_bits(start, run, spread, tmp_path, how) -> None:
    whole = spread(how)
    seed = int(os.environ.get("CHAOS_SEED", time.time()))
    print(f"CHAOS_SEED={seed}")
    chance, kills, metrics = random.Random(seed), 0, tmp_path / "run.jsonl"
    while kills < KILLS:
        lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        saved = max(losses(metrics)) // EVERY * EVERY if lines else 0
        begun = start(how=how)
        wait_for(metrics, lines + chance.randint(1, STEPS - saved))
        time.sleep(chance.random() / 100)
        for rank in begun.ranks:
            rank.kill()
        if begun.end()[0] == -signal.SIGKILL:
            kills += 1
        if kills == KILLS or losses(metrics).keys() >= {STEPS}:  # no more, or at its end: compare
            status, _, err = run(how=how)
            assert (status, err) == (0, "")
            assert losses(metrics) == losses(whole)
            ours, others = (weights(path.with_suffix(".pt")) for path in (metrics, whole))
            assert ours.keys() == others.keys()
            assert all(torch.equal(ours[name], others[name]) for name in ours)
            metrics.unlink()  # begin anew
            (tmp_path / "run.pt").unlink()


@pytest.mark.parametrize("options", cases("test_rules_left_out_change_the_speed_not_the_loss"))
def test_rules_left_out_change_the_speed_not_the_loss(run, whole, tmp_path, options) -> None:
    status, _, err = run(*options.split())
    assert (status, err) == (0, "")
    assert furthest(tmp_path / "run.jsonl", whole) <= 2e-6


def test_it_says_what_it_does_and_learns_as_much_in_16_bits(run, whole, tmp_path) -> None:
    status, out, err = run("--precision", "bf16", "--profile", f"{tmp_path}/seen")
    assert (status, err) == (0, "")
    found = losses(tmp_path / "run.jsonl")
    assert found[1][0] == pytest.approx(8, abs=0.2), "each of 256 bytes may follow"
    assert 7 > found[STEPS][0] == pytest.approx(losses(whole)[STEPS][0], abs=0.02)
    last = f"step {STEPS} of {STEPS}: "
    for said in ("459,392 parameters on 1 x cpu", "held out, SHA", last, "kB/s, MFU"):
        assert said in out
    assert out.splitlines()[-1] == f"done, saved in {tmp_path}/run.pt"
    assert len(list((tmp_path / "seen").glob("*.json.gz"))) == 1
    status, out, _ = run("--precision", "bf16")
    assert status == 0 and f"going on after step {STEPS}" in out, "what is done stays done"


@pytest.mark.parametrize("options, said", cases("test_bad_input_gets_a_sentence"), ids=str)
def test_bad_input_gets_a_sentence(run, options, said) -> None:
    status, _, err = run(*options)
    assert status != 0 and "Traceback" not in err
    assert said in err.splitlines()[-1]


@pytest.mark.parametrize("ranks, options", [(2, ["--compile"]), (4, [])], ids=str)
def test_what_tensor_parallelism_cannot_do_is_refused(run, monkeypatch, ranks, options) -> None:
    monkeypatch.setitem(RANKS, "these", (ranks, ["--tensor", "2"]))
    status, _, err = run(*options, how="these")
    assert status == 2 and "--tensor goes without --compile and, on a part" in err.splitlines()[-1]


def test_with_muon_it_goes_on_to_the_same_bits_and_with_nobody_elses(run, whole, tmp_path) -> None:
    few = ["--steps", "6"]  # processors without bfloat16 take a second for each
    assert not any(run("--muon", *few, **how)[0] for how in ({"stop": 3}, {}, {"name": "other"}))
    assert losses(tmp_path / "run.jsonl") == losses(tmp_path / "other.jsonl")
    assert abs(losses(tmp_path / "run.jsonl")[6][0] - losses(whole)[6][0]) > 0.01
    status, _, err = run(*few)
    assert status == 1 and "cannot go on; move the file away to begin anew" in err


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "other run"])
def test_a_checkpoint_that_does_not_fit_is_refused_and_kept(run, whole, tmp_path, damage) -> None:
    path = shutil.copy(whole.with_suffix(".pt"), tmp_path / "run.pt")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1000])
    elif damage == "flipped":
        bad = bytearray(path.read_bytes())
        bad[len(bad) // 2] ^= 1
        path.write_bytes(bad)
    elif damage == "foreign":
        torch.save({"model": {"weight": torch.ones(3)}}, path)
    before = path.read_bytes()
    status, _, err = run(*(["--seed", "1"] if damage == "other run" else []))
    assert status == 1 and "Traceback" not in err
    assert f"cannot go on; move the file away to begin anew: {path}" in err.splitlines()[-1]
    assert path.read_bytes() == before


@pytest.fixture
def here(source, tmp_path, monkeypatch) -> Iterator[Callable[..., None]]:
    """A function that runs the program in this process and an empty folder."""

    def here(*options: str) -> None:
        monkeypatch.setattr(sys, "argv", ["train.py", *SMALL, "--data", str(source), *options])
        train.main()

    monkeypatch.setitem(train.SIZES, "tiny", TINY)
    monkeypatch.chdir(tmp_path)
    yield here
    if torch.distributed.is_initialized():  # after an error it is left to the process's end
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("full_at", [2, 4])  # of four files
def test_a_full_disk_leaves_the_last_good_checkpoint(here, tmp_path, monkeypatch, full_at) -> None:
    write, files = torch.save, []

    def disk(state: dict, file: object) -> None:
        files.append(file)
        if len(files) == full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(state, file)

    monkeypatch.setattr(torch, "save", disk)
    with pytest.raises(SystemExit, match=r"run.pt was not written.*No space left on device"):
        here("--checkpoint", "run.pt")
    assert len(files) == full_at
    assert torch.load("run.pt", weights_only=True)["run"]["step"] == EVERY * (full_at - 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.pt"]


def test_a_gpu_that_is_full_says_what_needs_less(here, monkeypatch) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    monkeypatch.setattr(train.Transformer, "forward", mock.Mock(side_effect=error))
    with pytest.raises(SystemExit, match="the GPU is full, more --pieces need less: CUDA out of"):
        here()


def test_ctrl_c_says_where_the_run_can_go_on(here, monkeypatch, capsys) -> None:
    norms = mock.Mock(side_effect=[torch.ones(())] * (EVERY + 2) + [KeyboardInterrupt])
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", norms)
    with pytest.raises(SystemExit, match="130"):
        here()
    assert capsys.readouterr().out.endswith(f"interrupted: it can go on after step {EVERY}\n")


def test_a_gpu_where_nccl_is_missing_as_on_windows_gets_gloo(here, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "set_device_index", id)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.setattr(train, "train", lambda *_: print(torch.distributed.get_backend_config()))
    here()
    assert "cuda:gloo" in capsys.readouterr().out


def test_runs_are_judged_by_the_same_bytes(here, monkeypatch, capsys) -> None:
    """With a model that says how large the bytes are: other windows would be another number."""

    def sums(net: train.Transformer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.float().sum() + 0 * sum(p.sum() for p in net.parameters())

    monkeypatch.setattr(train.Transformer, "forward", sums)
    found = set()
    for options in (["--batch", "4"], ["--batch", "8"], ["--batch", "8", "--pieces", "2"]):
        here("--steps", "1", "--checkpoint", f"{options}.pt", *options)
        found.add(re.search(r"held out ([\d.]+)", capsys.readouterr().out)[1])
    assert len(found) == 1


def test_files_that_are_held_out_are_never_trained_on(tmp_path) -> None:
    for number in range(200):
        (tmp_path / f"{number}.py").write_text(f"x = {number % 150}\n")
    data, held_out, sha = train.corpus(tmp_path)
    files = [bytes(part.tolist()).split(b"\0") for part in (data, held_out)]
    assert len(set(files[0]) & set(files[1])) == 1  # nothing, after the last zero
    assert sum(map(len, files)) == 150 + 2, "a copy counts once"
    assert 2 <= len(files[1]) <= 20
    (tmp_path / "7.py").write_text("y = 8\n")
    assert train.corpus(tmp_path)[2] != sha


def test_an_epoch_takes_each_window_once_whatever_the_number_of_copies() -> None:
    data = torch.arange(64 * 9 + 1) % 251
    windows = train.Windows(data.to(torch.uint8), 8, 6, seed=3)
    epoch = [windows(step) for step in range(windows.rows // 6)]
    x, y = (torch.cat(parts) for parts in zip(*epoch, strict=True))
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert len({tuple(row) for row in x.tolist()}) == len(x) == windows.rows // 6 * 6
    again = train.Windows(data.to(torch.uint8), 8, 6, seed=3)
    assert torch.equal(again(5)[0], windows(5)[0]), "a resumed run takes the same"
    copies = [train.Windows(data.to(torch.uint8), 8, 6, 3, copy, 2)(5)[0] for copy in range(2)]
    assert sorted(torch.cat(copies).tolist()) == sorted(windows(5)[0].tolist())
    assert not torch.equal(windows(0)[0], windows(len(epoch))[0]), "a new order each epoch"


def test_what_follows_does_not_change_what_was_predicted() -> None:
    torch.manual_seed(0)
    model = train.Transformer(2, 128, 32)
    x = torch.randint(256, (2, 32))
    changed = x.clone()
    changed[:, 20:] = 7
    before, after = model(x)[:, :20], model(changed)[:, :20]
    torch.testing.assert_close(before, after)
    assert not torch.equal(model(x)[:, 20:], model(changed)[:, 20:])
