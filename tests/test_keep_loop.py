"""The training loops to keep: ordinary batches, dropout, ignored targets, NaN, no memory left."""

import gc
import math
import weakref
from collections import UserDict
from unittest.mock import Mock

import amp
import amp_fp16
import formats
import pytest
import torch
from best import keep_best
from in_pieces import backward, in_pieces
from torch import nn
from torch.nn import functional as F
from training import one_pass

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def network(device: str = "cpu", dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(8, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 5)
    return nn.Sequential(*layers).to(device)


def batch(device: str = "cpu", rows: int = 24, ignored: int = 11) -> tuple:
    """Inputs and targets; the first targets do not count."""
    torch.manual_seed(1)
    x, y = torch.randn(rows, 8), torch.randint(5, (rows,))
    y[:ignored] = -100
    return x.to(device), y.to(device)


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def sgd(model: nn.Module, lr: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def moved(model: nn.Module, act) -> torch.Tensor:
    """By how much ``act()`` lowers the weights: with lr=1, the gradient."""
    before = weights(model)
    act()
    return before - weights(model)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return F.cross_entropy(model(x), y).item()


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def right_gradient(device: str) -> torch.Tensor:
    """Of the whole batch at once: the mean over the targets that count."""
    model, (x, y) = network(device), batch(device)
    F.cross_entropy(model(x), y).backward()
    return gradients(model)


# --- 1.7: one pass, and the best epoch ----------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_a_pass_weighs_targets_alike_and_validates_in_eval_mode(device) -> None:
    model, (x, y) = network(device, dropout=0.5).eval(), batch(device)
    whole, right = loss_of(model, x, y), (model(x).argmax(1) == y)[y != -100]
    before = weights(model.train())
    loss, share = one_pass(model, zip(x.split(7), y.split(7), strict=True), device)  # 7, 7, 7, 3
    assert loss == pytest.approx(whole, rel=1e-5)
    assert share == pytest.approx(right.float().mean().item())
    assert torch.equal(weights(model), before) and not model.training
    one_pass(model, [(x.cpu(), y.cpu())], device, sgd(model, 0.1))
    assert model.training and not torch.equal(weights(model), before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("device", DEVICES)
def test_a_bad_batch_teaches_nothing_and_is_told(device, bad) -> None:
    good, ends = batch(device, ignored=0), []
    poison = torch.full_like(good[0], bad), good[1]
    for batches, finite in (([good, good], True), ([good, poison, good], False)):
        model = network(device)
        model[0].bias.requires_grad_(False)  # has no gradient
        loss, _ = one_pass(model, batches, device, sgd(model, 0.1))
        assert math.isfinite(loss) is finite
        ends.append(weights(model))
    assert torch.equal(*ends) and ends[0].isfinite().all()


def test_a_bad_gradient_of_a_finite_loss_is_told_and_a_batch_without_targets_is_none() -> None:
    model, (x, y) = network(), batch()
    optimizer, none = sgd(model, 0.1), (x, torch.full_like(y, -100))
    assert math.isfinite(one_pass(model, [(x, y), none], "cpu", optimizer)[0])
    model[0].weight.register_hook(lambda gradient: gradient * math.nan)
    before = weights(model)
    assert math.isnan(one_pass(model, [(x, y)], "cpu", optimizer)[0])
    assert torch.equal(weights(model), before)


def test_a_pass_takes_the_gradient_of_the_targets_that_count_and_clips_it() -> None:
    model, (x, y) = network(), batch()
    gradient = moved(model, lambda: one_pass(model, [(x, y)], "cpu", sgd(model)))
    assert torch.allclose(gradient, right_gradient("cpu"), atol=1e-6)
    clipped = moved(model, lambda: one_pass(model, [(100 * x, y)], "cpu", sgd(model[-1])))
    assert clipped.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_a_pass_refuses_a_used_generator_and_learns_under_autocast() -> None:
    with pytest.raises(AssertionError, match="no batch: make a generator"):
        one_pass(network(), iter(()), "cpu")

    def learned() -> torch.Tensor:
        model = network()
        one_pass(model, [batch()] * 8, "cpu", sgd(model, 0.5))
        return weights(model) - weights(network())

    right = learned()
    assert (torch.autocast("cpu")(learned)() - right).norm() < 0.05 * right.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_no_step_waits_for_the_gpu() -> None:
    pairs = [batch("cuda")] * 3
    pinned = [tuple(t.cpu().pin_memory() for t in pair) for pair in pairs]
    for loop in (amp.train_step, one_pass):
        model = network("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        sums = []
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            if loop is one_pass:
                with pytest.raises(RuntimeError, match="synchroniz"):  # its last line, alone
                    one_pass(model, (sums.append(1) or pair for pair in pinned), "cuda", optimizer)
                assert len(sums) == 3
            else:
                loop(model, pairs, optimizer)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_the_best_epoch_s_weights_come_back_and_no_nan_of_training_is_lost(capsys) -> None:
    extra = {"get_extra_state": lambda _: "no tensor", "set_extra_state": lambda *_: None}
    model, losses = type("Own", (nn.Linear,), extra)(1, 1, False), iter([0.5, 0.3, math.nan, 0.4])
    nn.init.zeros_(model.weight)
    versions, train = [], lambda: [model.weight.data.add_(1).item() * math.nan, 0.9]
    model.register_load_state_dict_pre_hook(lambda *told: versions.append(told[3].get("version")))
    loss = torch.zeros((), dtype=torch.float64)  # one tensor, filled again and again
    assert keep_best(model, 4, train, lambda: loss.fill_(next(losses))) == 0.3
    assert model.weight.item() == 2.0 and versions == [1]
    assert "epoch 2: train [nan, 0.9], validate 0.3000\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no epoch of 2 had a finite loss"):
        keep_best(model, 2, train, lambda: math.nan)
    filled, told = iter((5.0, 6.0, 7.0)), iter((0.2, 0.5))
    with pytest.raises(StopIteration):
        keep_best(model, 3, lambda: model.weight.data.fill_(next(filled)), lambda: next(told))
    assert model.weight.item() == 5.0, "the best epoch's, after an error as well"


# --- 3.2: micro-batches, ignored targets, 16 bits -----------------------------------------------


def fp16_step(model, batches, optimizer, **options):
    scaler = torch.amp.GradScaler(next(model.parameters()).device.type, init_scale=2.0**10)
    return amp_fp16.scaled_step(model, batches, optimizer, scaler, **options)


def right_step(model: nn.Module, step, pairs) -> float:
    """The loss of a step whose gradient is that of the whole batch at once, within 5%."""
    losses, right = [], right_gradient(next(model.parameters()).device)
    take = lambda: losses.append(step(model, pairs, sgd(model), max_norm=math.inf))  # noqa: E731
    assert (moved(model, take) - right).norm() < 0.05 * right.norm()
    return losses[0].item()


STEPS = pytest.mark.parametrize("step", [amp.train_step, fp16_step])


@STEPS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", [[24], [12, 12], [10, 14], [11, 13], [23, 1]])
def test_micro_batches_give_the_gradient_of_the_whole_batch(sizes, device, step) -> None:
    model, (x, y) = network(device), batch(device)  # 11 rows do not count: a whole micro-batch
    pairs = ((a, b) for a, b in zip(x.split(sizes), y.split(sizes), strict=True))  # read once
    assert right_step(model, step, pairs) == pytest.approx(loss_of(network(device), x, y), rel=0.02)


@STEPS
def test_targets_of_sequences_are_counted_one_by_one(step) -> None:
    x, y = batch()
    pairs = [(x[:12].view(2, 6, 8), y[:12].view(2, 6)), (x[12:].view(4, 3, 8), y[12:].view(4, 3))]
    right_step(network(), step, pairs)


@STEPS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_autocast_block_around_it_changes_nothing(dtype, step) -> None:
    def trained() -> list[float]:
        both = sgd(model := network()), torch.optim.Adafactor(model.parameters())
        return [step(model, [batch()], o).item() for o in both * 3] + weights(model).tolist()

    assert torch.autocast("cpu", dtype)(trained)() == trained()


@STEPS
def test_a_loss_that_is_large_as_a_sum_does_not_overflow(step) -> None:
    model, (x, y) = network(), batch(rows=4096, ignored=0)
    model[-1].weight.data.mul_(50)
    loss = step(model, [(20 * x, y)], sgd(model))
    assert loss.isfinite() and loss * 4096 > 65_504


@STEPS
@pytest.mark.parametrize("kind", ["nan", "nothing counts", "gradient"])
def test_a_bad_step_changes_no_weight(kind, step) -> None:
    model, (x, y) = network(dropout=0.1), batch(ignored=24 if kind == "nothing counts" else 0)
    model[0].bias.requires_grad_(False)
    if kind == "gradient":
        model[0].weight.register_hook(lambda gradient: gradient * math.inf)
    x, before = x * math.nan if kind == "nan" else x, weights(model)
    loss = step(model, [(x, y)], sgd(model))
    assert torch.equal(weights(model), before)
    assert loss.isfinite() == (kind == "gradient" and step is fp16_step)  # its scale tells


def test_the_scale_halves_after_a_bad_step_not_after_an_error_and_the_next_step_is_made() -> None:
    model, (x, y), scaler = network(), batch(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    out_of_memory = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        amp_fp16.scaled_step(model, [(x, y)], optimizer, scaler)
    out_of_memory.remove()
    for inputs, scale, steps in ((x * math.nan, 2.0**15, 0), (x, 2.0**15, 1)):
        amp_fp16.scaled_step(model, [(inputs, y)], optimizer, scaler)
        done = {int(state["step"]) for state in optimizer.state.values()} or {0}
        assert scaler.get_scale() == scale and done == {steps}


@STEPS
def test_the_gradient_is_clipped_as_it_is(step) -> None:
    model, (x, y) = network(), batch(ignored=0)
    trained = torch.optim.SGD(model[-1].parameters(), lr=1.0)  # the others' gradients only grow
    clipped = moved(model, lambda: step(model, [(10 * x, y)], trained, max_norm=0.25))
    assert clipped.norm().item() == pytest.approx(0.25, rel=1e-3)


@pytest.mark.parametrize("loop", [amp.train_step, fp16_step, one_pass])
def test_batches_that_are_no_pairs_of_tensors_are_refused_in_a_sentence(loop) -> None:
    model, (x, y) = network(), batch()
    last = "cpu" if loop is one_pass else torch.optim.SGD(model.parameters())
    no_pairs = [{"x": x, "y": y}, UserDict(x=x, mask=x, y=y), ({"ids": x}, y), (x, y, y), (x,)]
    if loop is one_pass:  # PyTorch itself refuses shares of classes for the others
        no_pairs += [(x, F.one_hot(y.clamp(0), 5).float()), (x, y.to(torch.uint8))]
    for no_pair in no_pairs + [x, x[0], None] * (loop is not one_pass):
        with pytest.raises((AssertionError, ValueError), match=r"\(x, y\)|expected 2"):
            loop(model, [no_pair] * (no_pair is not None), last)
    with pytest.raises((AssertionError, AttributeError)):  # a bare pair
        loop(model, (x[:2], y[:2]), last)


# --- 2.3: a batch that does not fit -------------------------------------------------------------


class Memory:
    """A model's forward passes that run out of memory, by their number, like on a small card."""

    def __init__(self, model: nn.Module, fails: tuple):
        self.fails, self.tried, self.held = fails, [], []
        model.register_forward_hook(self)

    def __call__(self, module, inputs, output):
        self.tried.append(len(inputs[0]))
        if len(self.tried) in self.fails:
            activation = torch.ones(3)
            cycle = [activation]
            cycle.append(cycle)
            self.held.append(weakref.ref(activation))
            raise torch.OutOfMemoryError("pretended")
        assert [tensor() for tensor in self.held] == [None] * len(self.held), "still held"


@pytest.mark.parametrize(
    "fails, found, tries",
    [((), 1, [24]), ((1, 2), 4, [24, 12, 6]), ((1, 3), 4, [24, 12, 12, 6])],
    ids=["all fits", "first pieces fail", "a second piece fails"],
)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("autocast", [False, True])
def test_pieces_give_the_gradient_of_the_whole_batch(autocast, device, fails, found, tries) -> None:
    model, (x, y) = network(device), batch(device)
    memory, kept = Memory(model, fails), gc.isenabled()
    gc.disable()  # so that only the code's own collection frees what stands in cycles
    try:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            assert in_pieces(lambda n: backward(model, x, y, n), len(x)) == found
    finally:
        (gc.enable if kept else gc.disable)()
    assert memory.tried[: len(tries)] == tries
    right = right_gradient(device)
    assert (gradients(model) - right).norm() < (0.05 if autocast else 1e-5) * right.norm()


def test_pieces_end_at_the_size_of_the_batch_and_no_rank_tries_again_alone(monkeypatch) -> None:
    """Its second all-reduce would meet the other ranks' next one."""

    def tried(**options) -> list[int]:
        never = Mock(side_effect=torch.OutOfMemoryError("pretended"))
        with pytest.raises(torch.OutOfMemoryError):
            in_pieces(never, 6, **options)
        return [call.args[0] for call in never.call_args_list]

    assert tried() == [1, 2, 4, 6] and in_pieces(lambda n: None, 6, pieces=4) == 4
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    assert tried(pieces=2) == [2]
    monkeypatch.delattr("torch.distributed.is_initialized")
    monkeypatch.setattr("torch.distributed.is_available", lambda: False)  # as in some builds
    assert tried(pieces=2) == [2, 4, 6]


@pytest.mark.parametrize("at, name", [(1, "zeros_like"), (2, "_foreach_addcdiv_")])
def test_memory_that_runs_out_in_the_optimizer_is_not_retried(at, name, monkeypatch) -> None:
    """As the page has it: the step stands outside, so that none is done by halves, or twice."""
    model, (x, y) = network(dropout=0.1), batch()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for turn in range(1, at + 1):
        assert in_pieces(lambda n: backward(model, x, y, n), len(x)) == 1
        if turn < at:
            optimizer.step()
    monkeypatch.setattr(torch, name, Mock(side_effect=torch.OutOfMemoryError("pretended")))
    with pytest.raises(torch.OutOfMemoryError):
        optimizer.step()


# --- 3.1 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "capability, cuda, dtype, scaled",
    [
        (None, "13.0", torch.float32, False),
        ((6, 1), "13.0", torch.float32, False),
        ((7, 5), "13.0", torch.float16, True),
        ((8, 0), "13.0", torch.bfloat16, False),
        ((9, 4), None, torch.float32, False),  # AMD's number, of another meaning
    ],
)
def test_the_format_to_train_in(capability, cuda, dtype, scaled, monkeypatch) -> None:
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setattr("torch.cuda.is_available", lambda: capability is not None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    assert formats.training_dtype() == (dtype, scaled)
