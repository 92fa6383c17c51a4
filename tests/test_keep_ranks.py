"""Codes to keep of parts 5 and 6 on the ordinary case: many ranks, and a look at the GPU."""

import math
import os
import runpy
import sys

import pytest
import split
import torch
from global_mean import global_mean
from profile_steps import step_profiler
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from notebooks import BOOK
from ranks import quicker
from utils.ranks import torchrun

KEEP = BOOK / "keep"
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]


class Reads(TorchDispatchMode):
    """Notes operators whose result Python reads: on a GPU, it would wait for each."""

    def __init__(self) -> None:
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if torch.Tag.data_dependent_output in operator.tags:
            self.found.append(str(operator))
        return operator(*args, **(kwargs or {}))


# --- global_mean -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [301, 301.0, torch.tensor(301), torch.tensor(301.0).double()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_rank_divides_by_its_count_whatever_its_type(count, dtype, device) -> None:
    total = torch.tensor(900, dtype=dtype, device=device, requires_grad=True)
    with Reads() as reads:
        mean = global_mean(total, count)
    assert reads.found == []  # of a count on the GPU, nobody waits for the value
    mean.backward()
    assert mean.item() == pytest.approx(total.item() / 301)  # bfloat16 would count 300
    assert total.grad.item() == torch.tensor(1 / 301, dtype=dtype).item()


def test_a_batch_without_a_target_moves_nothing() -> None:
    logits = torch.ones(4, 3, requires_grad=True)
    targets = torch.full((4,), -100)
    mean = global_mean(cross_entropy(logits, targets, reduction="sum"), (targets != -100).sum())
    mean.backward()
    assert mean == 0 and logits.grad.abs().sum() == 0


RANKS = """
import json, sys, torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
sys.path.append({keep!r})
from global_mean import global_mean
from spread import spread

dist.init_process_group("gloo")
rank = dist.get_rank()
alone = [dist.new_group([r]) for r in range(2)][rank]
torch.manual_seed(0)
x, targets = torch.randn(6, 5), torch.tensor([-100, -100, -100, 1, 2, -100])
model = torch.nn.parallel.DistributedDataParallel(net := torch.nn.Linear(5, 3))

def off(own, targets):
    net.zero_grad()
    total = cross_entropy(model(x[own]), targets[own], reduction="sum")
    global_mean(total, (targets[own] != -100).sum()).backward()
    whole = cross_entropy(net(x), targets, reduction="sum") / (targets != -100).sum().clip(1)
    return (net.weight.grad - torch.autograd.grad(whole, net.weight)[0]).abs().max().item()

mine = slice(0, 2) if rank == 0 else slice(2, 6)
found = {{"rank 0 has none": off(mine, targets), "nobody has": off(mine, torch.full((6,), -100))}}
found["alone"] = global_mean(torch.tensor(6.0), 3 - rank, group=alone).item()
torch.manual_seed(rank)
net = torch.nn.BatchNorm1d(2)  # has a buffer of one integer
net.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 3)])
net.register_buffer("across", (torch.randn(3, 4) > 0).T)
found["before"] = [t.tolist() for t in net.state_dict().values()]
state = spread(net, dist.init_device_mesh("cpu", (2,)), shard=True).state_dict()
found["spread"] = [getattr(t, "full_tensor", t.clone)().tolist() for t in state.values()]
dist.destroy_process_group()
print(json.dumps(found))
"""


@quicker
def test_ranks_with_unequal_counts_make_the_gradient_of_the_whole_batch(script) -> None:
    found = torchrun(script(RANKS.format(keep=str(KEEP))), ranks=2, device="cpu", quiet=True)
    for rank, seen in enumerate(found):
        assert seen["rank 0 has none"] < 1e-6 and seen["nobody has"] == 0
        assert seen["alone"] == 6 / (3 - rank)  # a group of its own
        assert seen["spread"] == found[0]["before"] != found[1]["before"]  # sharded


# --- late --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "first, second, dtype",
    [
        (1 / 3, 0.5, torch.bfloat16),
        (1 / 3, 1e300, torch.float64),
        (2**40 + 1, -7, torch.int64),
        ([1.5, -2.0], [0.0, 4.0], torch.float32),
    ],
)
def test_late_gives_what_came_before_then_the_last(first, second, dtype, device) -> None:
    first, second = (torch.tensor(value, dtype=dtype, device=device) for value in (first, second))
    with torch.device("meta"):  # the first NaN lies on the host, whatever the default device
        late = runpy.run_path(str(KEEP / "late.py"))["Late"]()
    number = first.clone()
    assert math.isnan(late.last())
    unknown = torch.tensor(late(number))
    assert unknown.isnan().all() and unknown.shape == first.shape  # so that two can be unpacked
    number.zero_()  # the next step may write where the last one did
    assert late(second.requires_grad_(second.is_floating_point())) == first.tolist()
    for other in (first[None], first.to(torch.float16), first.to("meta")):
        with pytest.raises(AssertionError, match=r"make a Late for each: .* came after"):
            late(other)
    assert late.last() == late.last() == late(first) == second.tolist()


@on_gpu
def test_late_does_not_wait_for_this_step_and_its_demonstration_leaves_no_mode() -> None:
    late = runpy.run_path(str(KEEP / "late.py"), run_name="__main__")["Late"]()
    assert torch.cuda.get_sync_debug_mode() == 0
    number, done = torch.ones((), device="cuda"), torch.cuda.Event()
    late(number)
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # half a second
    before = late(number * 2)
    done.record()
    assert before == 1 and not done.query() and late.last() == 2


# --- profile_steps -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps, name", [(9, "step5_rank3.json.gz"), (4, "step4_rank3.json.gz")])
def test_the_profile_of_a_rank_in_a_folder_of_its_own(
    steps, name, tmp_path, monkeypatch, capsys
) -> None:
    """Also of a loop that ends within the window: what is printed is still of one step."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
    layer, folder = torch.nn.Linear(8, 8), tmp_path / "new" / "folder"
    with step_profiler(folder, wait=1, warmup=1, active=3) as profiler:
        for _ in range(steps):
            layer(layer.weight.detach()).sum().backward()
            profiler.step()
    assert os.listdir(folder) == [name]
    said = capsys.readouterr().out
    assert said.count(" µs a step in ") == 4 and "in 1 x aten::" in said


def test_a_slow_loader_is_seen_behind_the_queue_of_its_workers(run) -> None:
    """Without a GPU, too, the profiler reports no error."""
    slow = "class Slow(list):\n __getitem__ = lambda *_: time.sleep(0.1) or torch.ones(512)\n"
    source = "import os, time\nos.environ.pop('KINETO_LOG_LEVEL', None)\n" + slow
    source += (KEEP / "profile_steps.py").read_text(encoding="utf-8")
    done = run(source.replace("torch.randn(2000, 512), 50", "Slow(range(30)), None, num_workers=2"))
    assert (done.status, done.err) == (0, "") and done.out.count("µs a step") == 4
    step, load = done.out.split("rank 0 \n")[1].splitlines()  # µs: of 50,000, workers take 100 ms
    assert "ProfilerStep" in step and 40_000 < int(load.split()[0]) <= int(step.split()[0])


# --- ddp and scaling ---------------------------------------------------------------------------

PASTED = """
import contextlib, io, json, os, runpy, tempfile, torch.distributed as dist
os.chdir(tempfile.mkdtemp())
with contextlib.redirect_stdout(io.StringIO()) as said:
    found = runpy.run_path(r"{file}", run_name="__main__")
weight, told = found["model"].module.weight.item(), [os.listdir(), said.getvalue()]
print(json.dumps({{"weight": weight, "told": told, "steps": len(found["loader"]),
                  "batch": found["loader"].batch_size, "left": not dist.is_initialized()}}))
"""


@quicker
def test_ddp_trains_the_same_model_on_two_ranks_and_one_saves_it(script) -> None:
    ranks = torchrun(script(PASTED.format(file=KEEP / "ddp.py")), ranks=2, device="cpu", quiet=True)
    told = [rank.pop("told") for rank in ranks]
    assert told == [[["model.pt"], "cpu: weight 2.00, loss 0.0000\n"], [[], ""]]
    assert ranks[0] == ranks[1] and ranks[0]["weight"] == pytest.approx(2, abs=0.02)
    assert ranks[0]["batch"] == 32 and ranks[0]["steps"] == 10 and ranks[0]["left"]


ENDS = {"LOCAL_RANK=1": "cuda:1", "SLURM_NTASKS=2": "cuda:0", "RANK=1": "LOCAL_RANK is not in"}
ALONE = "SLURM_STEP_NUM_TASKS=2", "WORLD_SIZE=2", "RANK=0 WORLD_SIZE=3"


@pytest.mark.parametrize("told, end", [*ENDS.items(), *((n, "torchrun must") for n in ALONE)])
def test_ddp_beside_a_gpu_takes_that_of_its_local_rank_or_stops(told, end, monkeypatch) -> None:
    """Launchers may set RANK alone, so that every rank takes GPU 0, or nothing: lone copies."""
    monkeypatch.setattr(os, "environ", dict(pair.split("=") for pair in told.split()))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: sys.exit(str(device)))
    with pytest.raises((SystemExit, RuntimeError, AssertionError), match=end):
        runpy.run_path(str(KEEP / "ddp.py"), run_name="__main__")


def test_rows_that_the_ranks_do_not_divide_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    with pytest.raises(AssertionError, match="rows: not a multiple of the number"):
        runpy.run_path(str(KEEP / "scaling.py"), run_name="__main__")


@pytest.mark.parametrize("name", ["global_mean", "scaling"])
def test_a_line_is_written_in_one_piece(name, monkeypatch, capsys) -> None:
    """So that two ranks, whose outputs torchrun mixes, do not print on one line."""
    pieces = []
    monkeypatch.setattr(sys.stdout, "write", lambda text: pieces.append(text) or len(text))
    runpy.run_path(str(KEEP / f"{name}.py"), run_name="__main__")
    (line,) = filter(None, pieces)
    assert line.endswith("\n") and len(line) > 20


@quicker
def test_scaling_averages_with_a_static_graph_too(script) -> None:
    """The bare model shares DDP's hooks: if it came first, DDP would learn from its steps."""
    source = (KEEP / "scaling.py").read_text(encoding="utf-8").replace("range(10)", "range(1)")
    source = source.replace("as_bucket_view=True", "as_bucket_view=True, static_graph=True")
    grads = "{i: p.grad.sum().item() for i, p in enumerate(net.parameters())}"
    check = f"step_ms(ddp, x, 1), print(json.dumps({grads}))"
    source = "import json\n" + source.replace("dist.destroy_process_group()", check)
    first, second = torchrun(script(source), ranks=2, device="cpu", quiet=True)
    assert first == pytest.approx(second)


# --- split -------------------------------------------------------------------------------------


@pytest.mark.parametrize("loading, training", [(3, 5), (0, 5), (7, 0)])
def test_the_parts_of_a_step_on_a_clock_of_our_own(loading, training, monkeypatch) -> None:
    """Batches of every size; without a GPU, whose kernels the profiler would look for."""
    batches, spent = iter(range(80)), []  # milliseconds
    monkeypatch.setattr(split.time, "perf_counter", lambda: sum(spent) / 1e3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    load = lambda: spent.append(loading) or next(batches)  # noqa: E731
    parts = split.split(load, lambda batch: spent.append(training * batch))
    assert next(batches, None) is None  # as many as the page says
    assert parts == pytest.approx({"data": loading, "Python and computing": training * 59.5})


@on_gpu
def test_a_waiting_host_is_not_a_busy_gpu() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    parts = split.split(lambda: x, lambda batch: batch @ batch)
    assert parts["computing"] > 10 * abs(parts["data"]) and parts["computing"] > parts["Python"]
