"""Codes to keep of part 2 on the ordinary case: memory predicted, attributed and saved."""

import linecache
import os
import threading

import pytest
import torch
from alive_by_line import NOT_YOURS, alive_by_line, made_by
from live_bytes import LiveBytes
from sliced_loss import sliced_loss
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

# --- live_bytes --------------------------------------------------------------------------------


def counted(read=lambda loss: None, kind=torch.optim.Adam, foreach=True) -> list[int]:
    """What is alive in two steps with Adam, whose losses are read like this."""
    with FakeTensorMode(), LiveBytes() as live:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        optimizer = kind(model.parameters(), foreach=foreach)
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.ones(16, 64)), torch.zeros(16, dtype=torch.long))
            loss.backward()
            read(loss.detach())
            optimizer.step()
        blocks = sum(live.alive.values())
    parameters = sum(-(-4 * p.numel() // 512) for p in model.parameters())
    assert blocks == 4 * parameters + 4 + 1  # weights, gradients, averages; steps, the loss
    return live.history


def test_a_loss_that_is_read_does_not_stop_the_count() -> None:
    peak, said = max(counted()), []
    read = counted(lambda loss: said.append((loss.item(), bool(loss > 0), f"{float(loss):.3f}")))
    assert max(read) == peak and said == [(0, False, "0.000")] * 2
    with LiveBytes() as live:  # of real tensors, too
        assert torch.ones(3).sum().item() == 3 and live.history[-1] == 1024


def test_a_size_that_is_read_raises() -> None:
    with FakeTensorMode(), LiveBytes(), pytest.raises(RuntimeError, match="_local_scalar_dense"):
        torch.ones(3, 9)[:, : int(torch.arange(5).max())]  # as a batch cut to its longest text


REFUSED = [
    lambda: nn.TransformerEncoderLayer(16, 2, 16)(torch.ones(3, 2, 16)),
    lambda: F.scaled_dot_product_attention(*[torch.ones(1, 2, 4, 8)] * 3, dropout_p=0.1),
    torch.autocast("cpu", torch.bfloat16)(lambda: nn.Linear(3, 3)(torch.ones(2, 3)).relu().sum()),
    *[lambda k=k: k(3, 4)(torch.ones(2, 5, 3)) for k in (nn.LSTM, nn.GRU, nn.RNN)],
    *[lambda k=k: counted(kind=k, foreach=None) for k in (torch.optim.AdamW, torch.optim.SGD)],
]


@pytest.mark.parametrize("act", REFUSED)
def test_what_a_gpu_keeps_otherwise_is_refused_in_a_sentence(act) -> None:
    with FakeTensorMode(), LiveBytes(), pytest.raises(AssertionError, match="Refused: autocast, "):
        act()


def test_without_dropout_a_transformer_is_counted() -> None:
    """Its attention as on a GPU: without the matrix of weights, 16 times as large as its input."""
    with FakeTensorMode(), LiveBytes() as live:
        layer = nn.TransformerEncoderLayer(16, 1, 16, 0.0, batch_first=True)
        live.history.clear()
        layer(torch.ones(2, 4096, 16)).sum().backward()
    assert max(live.history) < 4 * 2 * 4096**2


# --- alive_by_line -----------------------------------------------------------------------------

PACKAGES = os.path.dirname(torch.__path__[0])
TORCH = {"name": "relu", "filename": f"{torch.__path__[0]}/nn/functional.py", "line": 7}
COMPILED = {"name": "call", "filename": "/tmp/torchinductor_me/ml/cmlx.py", "line": 112}
CACHED = COMPILED | {"filename": f"/scratch/cache/ml/c{'ml7' * 17}.py"}  # TORCHINDUCTOR_CACHE_DIR
THREAD = {"name": "run", "filename": threading.__file__, "line": 1}
FOREIGN = [
    f"{PACKAGES}/transformers/models/bert.py",
    f"{PACKAGES}/torch_geometric/nn/conv.py",
    "/usr/lib/python3/dist-packages/accelerate/main.py",
    "C:\\Python313\\Lib\\site-packages\\transformers\\trainer.py",
]
NODE = {"name": "torch::autograd::AddmmBackward0::apply(std::vector)", "filename": "??", "line": 0}
CPP = {"name": "at::empty", "filename": "Empty.cpp", "line": 3}


@pytest.fixture
def mine(tmp_path) -> dict:
    """A frame of a script of one's own; its folder is called torch, as some are."""
    (tmp_path / "torch").mkdir()
    file = tmp_path / "torch" / "train.py"
    file.write_text("import torch\n    x = model(batch)\n")
    linecache.checkcache()
    return {"name": "step", "filename": str(file), "line": 2}


@pytest.mark.parametrize("file", FOREIGN)
def test_the_line_is_yours_if_there_is_one(file, mine, monkeypatch) -> None:
    foreign = {"name": "forward", "filename": file, "line": 999}
    inner = [CPP, TORCH, foreign, COMPILED, CACHED, THREAD]
    assert made_by([*inner, mine, mine | {"line": 1}]) == "step: x = model(batch)"
    for typed in ("<stdin>", "<string>", "<ipython-input-2-5cf9624a4d1d>"):  # has no file
        assert made_by([*inner, mine | {"filename": typed}]) == "step: "
    assert made_by([CPP, TORCH, foreign, TORCH, THREAD]) == "forward: "  # all is installed
    assert made_by([CPP, TORCH, THREAD, NODE]) == "backward pass: AddmmBackward0"
    assert made_by([TORCH, THREAD]) == made_by([]) == "no stack: made before the recording?"
    monkeypatch.setattr("alive_by_line.NOT_YOURS", NOT_YOURS + r"|[/\\]train\.py$")  # a trainer's
    assert made_by([*inner, mine]) == "forward: "


def test_what_is_alive_is_added_up_by_line(mine, monkeypatch) -> None:
    def block(size: int, *frames: dict, state: str = "active_allocated") -> dict:
        return {"size": 2**21, "requested_size": size, "state": state, "frames": list(frames)}

    first = [block(512, mine), block(2048, TORCH, mine), block(9999, mine, state="inactive")]
    second = [block(512, NODE), {"requested_size": 7, "state": "active_pending_free"}]
    snapshot = [{"blocks": first}, {"blocks": second}]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(snapshot))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: snapshot or 1 / 0)  # CPUs' build
    assert alive_by_line() == [
        (2560, 2, "step: x = model(batch)"),
        (512, 1, "backward pass: AddmmBackward0"),
        (7, 1, "no stack: made before the recording?"),
    ]
    snapshot.clear()
    assert alive_by_line() == []


# --- sliced_loss -------------------------------------------------------------------------------


def made(*shape: int, ignored: float = 0.0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(*shape, 8, requires_grad=True)
    targets = torch.randint(11, shape)
    targets[torch.rand(shape) < ignored] = -100
    return nn.Linear(8, 11), hidden, targets


def gradients(loss, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, tensors)]


@pytest.mark.parametrize("shape", [(40,), (8, 5), (2, 4, 5)])
@pytest.mark.parametrize("ignored", [0.0, 0.6])
@pytest.mark.parametrize("size", [7, 2048])
def test_slices_make_the_same_loss_and_gradients(shape, ignored, size) -> None:
    head, hidden, targets = made(*shape, ignored=ignored)
    seen = []
    head.register_forward_hook(lambda module, inputs, logits: seen.append(len(logits)))
    sliced = gradients(sliced_loss(head, hidden, targets, size), head.weight, hidden)
    assert max(seen) <= size and sum(seen) == 2 * 40  # once more in the backward pass
    whole = F.cross_entropy(head(hidden).flatten(0, -2), targets.flatten())
    torch.testing.assert_close(sliced, gradients(whole, head.weight, hidden))


def test_without_a_target_that_counts_the_loss_is_0() -> None:
    head, hidden, targets = made(8, 5, ignored=1.1)
    loss, *others = gradients(sliced_loss(head, hidden, targets, 16), head.weight, hidden)
    assert loss == 0 and not any(gradient.any() for gradient in others)


@pytest.mark.parametrize("shape", [(5, 8), (8, 4), (40,)])
def test_targets_of_another_shape_are_refused(shape) -> None:
    head, hidden, _ = made(8, 5)
    with pytest.raises(ValueError, match=r"hidden \[8, 5, 8\] needs a target for each of its rows"):
        sliced_loss(head, hidden, torch.zeros(shape, dtype=torch.long))


def test_dropout_is_the_same_when_a_slice_is_computed_again() -> None:
    linear, hidden, targets = made(40)
    head = nn.Sequential(nn.Dropout(0.5), linear)
    torch.manual_seed(1)
    sliced = gradients(sliced_loss(head, hidden, targets, 16), linear.weight, hidden)
    torch.manual_seed(1)
    parts = zip(hidden.split(16), targets.split(16), strict=True)
    plain = sum(F.cross_entropy(head(h), t, reduction="sum") for h, t in parts) / 40
    torch.testing.assert_close(sliced, gradients(plain, linear.weight, hidden))


def test_autocast_reaches_the_slices() -> None:
    head, hidden, targets = made(40, ignored=0.5)
    kinds = set()
    head.register_forward_hook(lambda module, inputs, logits: kinds.add(logits.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        loss = sliced_loss(head, hidden, targets, 16)
    loss.backward()  # outside, as is the rule
    assert kinds == {torch.bfloat16} and hidden.grad.dtype == torch.float32
    whole = F.cross_entropy(head(hidden), targets)
    torch.testing.assert_close(loss.float(), whole, rtol=0.02, atol=0)
