"""The codes to keep that feed a GPU and make steps: on the ordinary cases of a program."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter, UserDict, namedtuple
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import ANY, MagicMock, Mock, call

import prefetch as prefetch_file
import pytest
import torch
from as_one_graph import as_one_graph
from captured import captured
from compile_pays import compile_pays
from fast_step import fast, fast_step
from fused_softmax import fused_softmax
from jpegs import Jpegs, floats, jpeg_loader
from PIL import Image
from prefetch import prefetch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.tv_tensors import Image as TVImage

from notebooks import BOOK

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
Pair = namedtuple("Pair", "x y")


class Side:
    """A stream that copies as late as it may: when somebody waits for it."""

    def __init__(self, device="cuda:0", priority=0):
        self.device, self.queue, self.steps, self.waited = torch.device(device), [], 0, []
        self.wait_event = self.waited.append

    def record_event(self):
        return self.steps

    def synchronize(self):
        while self.queue:
            there, source = self.queue.pop(0)
            there.copy_(source)


@pytest.fixture
def fake(monkeypatch):
    """A GPU whose copies are late, and whose memory is the CPU's; pinned is what ``locked`` has."""
    main, side, locked, kept = Side(), Side(), [], []

    def cuda(tensor):
        assert any(tensor is pinned for pinned in locked)
        side.queue.append((torch.full_like(tensor, -1), tensor))
        return side.queue[-1][0]

    def pin_memory(tensor):
        if not any(tensor is pinned for pinned in locked):
            locked.append(tensor.clone())
            return locked[-1]
        return tensor

    monkeypatch.setattr(prefetch_file, "SIDES", {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority=0: side)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch.Tensor, "cuda", cuda)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: kept.append(tensor))
    return SimpleNamespace(main=main, side=side, locked=locked, kept=kept)


@pytest.fixture(params=["cpu", "late", pytest.param("cuda", marks=gpu)])
def device(request):
    """The devices that batches go to: what holds on one holds on all."""
    if request.param == "late":
        request.getfixturevalue("fake")
    return torch.device("cpu" if request.param == "cpu" else "cuda")


def threads():
    return [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


def test_batches_keep_their_order_and_their_nest(device):
    rows, others = [torch.full((3,), k) for k in range(5)], (None, 0.5, b"", True)
    batches = ({"x": x, "rest": [Pair(x + 1, "name"), (k, *others)]} for k, x in enumerate(rows))
    for k, batch in enumerate(prefetch(batches, device)):
        pair, rest = batch.pop("rest")
        assert (type(pair), pair.y, rest) == (Pair, "name", (k, *others))
        assert batch["x"].tolist() == [k] * 3 and pair.x.tolist() == [k + 1] * 3
    assert k == 4 and list(prefetch([], device)) == [] and threads() == []


@dataclass(slots=True)
class Item:
    x: torch.Tensor


KINDS = [UserDict, Counter, SimpleNamespace, Item, lambda x: {x}, lambda x: frozenset([x])]
KINDS += [lambda **x: x.values(), lambda x: (x for _ in "a"), lambda x: TVImage(x[None, None])]


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_hide_tensors_is_refused_in_a_sentence_and_opened_by_its_caller(device, kind):
    batches = [[1.0, {"deep": kind(x=torch.ones(2))}]]
    with pytest.raises(TypeError, match=r"^<class '.*'> may hide tensors: make it a dict or"):
        next(prefetch(batches, device))
    assert next(prefetch(map(dict, [UserDict(x=torch.ones(2))]), device))["x"].tolist() == [1, 1]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_loader_may_refill_its_only_buffer(device, pinned):
    buffer = torch.zeros(2**20)
    if pinned and device.type == "cuda":
        buffer = buffer.pin_memory()
    batches = (buffer.fill_(k) for k in range(8))
    assert [x[-1].item() + x[0].item() for x in prefetch(batches, device)] == list(range(0, 16, 2))


def test_without_cuda_batches_are_moved_as_they_come():
    asked = ({"x": torch.zeros(k)} for k in range(9))
    batch = next(prefetch(asked, "meta"))
    assert batch["x"].device.type == "meta" and next(asked)["x"].shape == (1,)


def test_an_error_comes_at_its_place(device):
    def batches():
        yield torch.tensor(0)
        yield torch.tensor(1)
        raise OSError("image 2 is truncated")

    seen = []
    with pytest.raises(OSError, match="image 2 is truncated"):
        seen += map(int, prefetch(batches(), device))
    assert seen == [0, 1] and threads() == []


@pytest.mark.parametrize("depth", [0, 1, 2, 4])
def test_who_stops_early_leaves_no_thread_and_asked_for_few(device, depth):
    asked = []
    batches = (asked.append(k) or torch.tensor(k) for k in range(100))
    fed = prefetch(batches, device, depth)
    seen = [x.item() for _ in range(4) for x in [next(iter(fed))]]  # goes on after each stop
    assert fed.close() is None and threads() == [] and len(asked) <= 4 + depth
    assert seen == [0, 1, 2, 3], "what was made in advance is not lost"
    assert next(batches).item() == len(asked) - 1, "nobody runs the loader any more"


@pytest.mark.parametrize("starts", [lambda loader: loader, lambda loader: (yield from loader)])
@pytest.mark.parametrize("device", ["late", pytest.param("cuda", marks=gpu)], indirect=True)
def test_caller_and_thread_keep_their_cores_when_a_loader_pins(device, starts):
    """A thread sets one for all that have not asked, from the first or in a generator function."""

    class Loader:
        def __iter__(self):
            (one := threading.Thread(target=torch.set_num_threads, args=(1,))).start(), one.join()
            return (torch.tensor(torch.get_num_threads()) for _ in "ab")

    def caller():
        seen.extend([*map(int, prefetch(starts(Loader()), device)), torch.get_num_threads()])

    seen, here = [], torch.get_num_threads()
    torch.set_num_threads(3)
    (thread := threading.Thread(target=caller)).start(), thread.join()
    torch.set_num_threads(here)
    assert seen == [3, 3, 3]


def test_a_loader_that_keeps_its_workers_gives_every_epoch_the_same(device):
    loader = DataLoader(range(12), 4, num_workers=1, persistent_workers=True)
    for stop in (3, 1, 3):  # the second epoch ends early
        seen = [x.tolist() for _, x in zip(range(stop), prefetch(loader, device), strict=False)]
        assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]][:stop]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_copy_waits_for_the_step_that_frees_its_place(fake, depth):
    for _ in prefetch(map(torch.tensor, range(9)), "cuda", depth):
        fake.main.steps += 1  # the program has queued a step
    assert fake.side.waited[:9] == [max(0, k - depth) for k in range(9)]
    assert len(fake.kept) == 9, "memory that the main stream reads is marked as such"
    assert list(prefetch([], "cuda")) == [] and len(prefetch_file.SIDES) == 1, "a stream for all"


@gpu
def test_memory_is_not_reused_before_it_is_read():
    totals = []
    for x in prefetch((torch.full((2**20,), float(k)) for k in range(12)), "cuda"):
        torch.cuda._sleep(20_000_000)  # other work is queued before the batch is read
        totals.append(x.sum())
        del x  # while the thread makes another
    assert [total.item() for total in totals] == [k * 2.0**20 for k in range(12)]


@gpu
def test_few_batches_are_on_the_gpu_however_far_the_program_runs_ahead():
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    for x in prefetch((torch.ones(2**21) for _ in range(20)), "cuda"):
        torch.cuda._sleep(5_000_000)
        x.sum()
    most = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
    torch.cuda.synchronize()
    assert most < 5.5 * 2**23


@gpu
def test_what_is_there_stays_and_what_a_loader_makes_there_is_whole():
    there = torch.ones(3, device="cuda")
    assert next(prefetch([there], "cuda")) is there
    made = (torch.full((2**22,), k, device="cuda").cumsum(0)[-1] for k in range(6))
    assert [x.item() for x in prefetch(made, "cuda")] == [k * 2**22 for k in range(6)]


PHOTOS = {"ä.jpg": ("RGB", "white"), "b.jpg": ("RGB", "black"), "c.jpg": ("L", 255)}
PHOTOS |= {"d.png": ("RGB", "white"), "e.jpg": ("CMYK", 0)}


@pytest.mark.parametrize("workers", [0, 1])
def test_jpegs_come_as_floats_of_one_size_with_their_own_class(tmp_path, workers):
    samples = [(tmp_path / name, 3 if "b" in name else 7) for name in PHOTOS]
    for (mode, color), (path, _) in zip(PHOTOS.values(), samples, strict=True):
        Image.new(mode, (40, 30), color).save(path)
    loader = jpeg_loader(Jpegs(samples, side=16), 3, workers)
    for (x, y), *more in (list(floats(loader, "cpu")) for _ in range(2)):  # two epochs
        assert more == [] and x.shape == (3, 3, 16, 16) and 7 in y
        assert x.is_contiguous(memory_format=torch.channels_last) and x.dtype == torch.float32
        white = (255 - torch.tensor([124.0, 116, 104])) / torch.tensor([58, 57, 57])
        torch.testing.assert_close(x[y == 7].amin((0, 2, 3)), white)
        assert (x[y == 3] < 0).all()
    assert Jpegs(samples).files.itemsize == len(os.fsencode(samples[0][0])) + 8, "ä takes two bytes"


@pytest.mark.parametrize("kind", [tuple, torch.tensor])
def test_whatever_numbers_floats_gets_it_makes_one_copy_of_float32(kind):
    images, numbers = MagicMock(), kind([124, 116, 104])
    next(floats([(images, torch.ones(1))], "cpu", numbers, numbers))
    minus = images.to().contiguous().__sub__
    assert minus.call_args.args[0].dtype == torch.float32
    assert minus().method_calls == [call.div_(ANY)]


def test_a_file_that_is_no_image_names_itself(tmp_path):
    (tmp_path / "page.jpg").write_text("<html>404</html>")
    with pytest.raises(OSError, match=r"page\.jpg"):
        next(iter(jpeg_loader(Jpegs([(str(tmp_path / "page.jpg"), 0)]), 1, 0)))


# --- steps -------------------------------------------------------------------------------------


def small_cnn():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 10))


def test_a_fast_step_is_a_step_and_searches_no_kernels(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    images, labels = torch.randn(6, 3, 9, 9), torch.tensor([0, 1, 2, -100, 4, -100])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    near = {"atol": 0.2, "rtol": 0} if device == "cuda" else {}  # bfloat16, other random numbers
    plain, model = small_cnn(), fast(small_cnn(), device)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (plain, model)]
    with monkeypatch.context() as full, pytest.raises(torch.OutOfMemoryError):
        full.setattr(optimizers[1], "step", Mock(side_effect=torch.OutOfMemoryError))
        fast_step(model, optimizers[1], images, labels)  # leaves gradients behind
    torch.manual_seed(1)  # of the dropout
    expected = F.cross_entropy(plain(images), labels)
    expected.backward()
    optimizers[0].step()
    torch.manual_seed(1)
    loss = fast_step(model, optimizers[1], images, labels).cpu()
    torch.testing.assert_close(loss, expected.detach(), **near)
    assert not loss.requires_grad, "or a list of losses keeps every step's graph"
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is None
        torch.testing.assert_close(ours.cpu(), theirs, **near)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not torch.backends.cudnn.benchmark, "seconds for each new shape"
    with pytest.raises(AssertionError, match="unpack your batch"):
        fast_step(model, optimizers[1], {"x": images}, labels)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks for it at a break
def test_what_compiling_pays_is_told_of_this_step_alone(capsys):
    class Breaks(nn.Module):
        def forward(self, x):
            torch._dynamo.graph_break()
            return x.cos()

    told = []
    for layer, short in ((nn.GELU(), 4), (Breaks(), 4), (nn.GELU(), 4), (nn.GELU(), 3)):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), layer)
        # Not model.compile(): torch 2.11's compiles no module of torch.nn's own.
        model = torch.compile(model, backend=lambda graph, _: time.sleep(0.4) or graph.forward)
        rows = iter([4] * 149 + [short] + [4] * 50)  # a smaller batch compiles again

        def step(model=model, rows=rows):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.ones(next(rows), 4)).mean()
            loss.backward()
            return loss

        compile_pays(step)
        times, counts = capsys.readouterr().out.splitlines()
        assert ": gain after " in times and float(times.split()[3]) < 20, "the price is not warm"
        told.append((len((found := eval(counts))["graph_break"]), found["stats"]["unique_graphs"]))
    assert told == [(0, 1), (1, 1), (0, 1), (0, 2)]


REFUSED = {"a dictionary": {"x": torch.ones(2)}, "a gradient": torch.ones(2, requires_grad=True)}


@pytest.mark.parametrize("what", [*REFUSED, "autocast around it"])
def test_what_a_graph_would_spoil_is_refused_everywhere(what, monkeypatch):
    if what not in REFUSED:
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
        with pytest.raises(AssertionError, match="use autocast around each forward"):
            as_one_graph(lambda: None, lambda: None)
    with pytest.raises(TypeError, match="tensors that need no gradient, and use autocast inside"):
        captured(lambda x: x, REFUSED.get(what, torch.ones(2)))


def test_on_a_cpu_the_step_itself_comes_back(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    step = torch.nn.Identity()
    assert captured(step, torch.ones(1)) is step and as_one_graph(step, None) is step


class OnTheHost(torch.Tensor):
    def to(self, device, copy):
        assert (device, copy) == ("cuda", True)
        return torch.empty(self.shape, device="meta")  # as if it were there


def test_neither_a_number_in_a_cpu_tensor_nor_a_stray_one_is_frozen(monkeypatch):
    for name in ("is_available", "synchronize", "Stream", "stream", "graph", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    where = []
    captured(lambda t: where.append(t.device.type), torch.tensor(2.0).as_subclass(OnTheHost))
    assert set(where) == {"meta"}, "the graph reads a number that a replay can change"
    with pytest.raises(TypeError, match="positional"):
        as_one_graph(lambda steps=9: None, lambda: None)(3)  # a replay would make all nine


@gpu
def test_a_captured_step_trains_as_it_would_without_a_graph():
    torch.manual_seed(0)
    target = torch.randint(0, 4, (16,), device="cuda").index_fill(0, torch.arange(3).cuda(), -100)
    batches = torch.randn(12, 16, 8)

    def trained(graph):
        torch.manual_seed(1)
        model = nn.Linear(8, 4, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)

        def step(x, y):
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run, losses = step, []
        for x in prefetch((time.sleep(0.01) or x for x in batches), "cuda", depth=8):
            if graph and run is step:  # captured while the thread loads
                run = captured(step, x, target)
            elif not losses and not graph:
                [step(x, target) for _ in range(3)]
            losses.append(run(x, target).clone())
        return torch.stack(losses)

    torch.testing.assert_close(trained(True), trained(False))


@gpu
def test_a_replay_refuses_other_shapes_and_dtypes():
    double = captured(lambda x: 2 * x, torch.ones(3, device="cuda"))
    assert double(torch.arange(3.0)).tolist() == [0, 2, 4]
    for wrong in (torch.ones(4), torch.ones(3, dtype=torch.int64), torch.ones(3).double()):
        with pytest.raises(AssertionError, match="captured for torch"):
            double(wrong.cuda())
    scaled = captured(torch.mul, torch.ones(3, device="cuda"), torch.tensor(2.0))
    assert scaled(torch.ones(3), torch.tensor(5.0)).tolist() == [5, 5, 5], "2 is not frozen"
    w = torch.zeros(3, device="cuda")
    run = as_one_graph(lambda: w.add_(1).sum(), lambda: None)
    assert [run().item(), run().item()] == [3, 6]


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("cast", [False, True])
def test_the_softmax_is_pytorchs_in_every_case(dtype, cast):
    x = torch.randn(2, 1100, 3000, device="cuda", dtype=dtype)
    leaf = torch.randn(3, 1097, device="cuda", dtype=dtype, requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=cast):
        for case in (x, x.mT, x[..., ::2], x[0, 0], x[0, 0, 0], x[:0], x[..., :97], leaf):
            ours, theirs = fused_softmax(case), torch.softmax(case, -1)
            assert ours.requires_grad == theirs.requires_grad
            torch.testing.assert_close(ours, theirs)
        with torch.no_grad():
            torch.testing.assert_close(fused_softmax(leaf), torch.softmax(leaf, -1))


INTERPRETED = """import torch
import fused_softmax
for width in (1, 97, 1000):
    x, y = torch.randn(2, 4, width)
    fused_softmax.row_kernel[(4,)](x, y, width, BLOCK=1024)
    torch.testing.assert_close(y, x.softmax(-1))"""


@pytest.mark.skipif(not find_spec("triton"), reason="needs Triton, for its interpreter")
def test_the_softmaxs_kernel_is_right_in_the_interpreter(forked_pythons):
    env = os.environ | {"PYTHONPATH": str(BOOK / "keep"), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
