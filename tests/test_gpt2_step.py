"""The training step of part 2 and its scales, with a small network on the CPU."""

import contextlib
import gc
import weakref
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional as F

from utils import gpt2_step
from utils.gpt2_step import features, peak_and_time, training, whole
from utils.memory import GIB
from utils.models import Transformer

SMALL = {"width": 32, "layers": 2, "heads": 4, "context": 16}
SHORT = {"batch": 4, "time": 8, "vocabulary": 50}


class CpuForGpu:
    """torch, but that its device "cuda" is the CPU."""

    device = staticmethod(lambda name: torch.device(name.replace("cuda", "cpu")))

    def __getattr__(self, name: str):
        return getattr(torch, name)


@pytest.fixture
def built(monkeypatch) -> list[Transformer]:
    """Steps are of a small network on the CPU; the networks that were built go here."""
    networks: list[Transformer] = []

    def build(vocabulary: int) -> Transformer:
        networks.append(Transformer(vocabulary, **SMALL))
        return networks[-1]

    monkeypatch.setattr(gpt2_step, "Transformer", build)
    monkeypatch.setattr(gpt2_step, "torch", CpuForGpu())
    monkeypatch.setattr(gpt2_step, "VOCABULARY", 50)
    monkeypatch.setattr(gpt2_step, "half_type", lambda: torch.bfloat16)
    return networks


def sgd(parameters, lr):
    return torch.optim.SGD(parameters, lr=1e3 * lr)  # Adam's first step hides the gradient's size


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_step_is_the_plain_one(built) -> None:
    step = training(optimizer=sgd, **SHORT)
    for _ in range(2):
        step()
    torch.manual_seed(0)
    plain, tokens = Transformer(50, **SMALL), torch.randint(50, (4, 9))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(plain(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    torch.testing.assert_close(weights(built[0]), weights(plain))


def test_pieces_add_up_to_the_whole_batch(built) -> None:
    for micro in (1, 2, 4):
        training(micro=micro, optimizer=sgd, **SHORT)()
    for model in built[1:]:
        torch.testing.assert_close(weights(model), weights(built[0]), rtol=1e-4, atol=1e-6)


def test_remedies_go_into_their_places(built) -> None:
    run, head = Mock(side_effect=gpt2_step.direct), Mock(side_effect=whole)
    training(run=run, head=head, micro=2, **SHORT)()
    assert [call.args[0] for call in run.mock_calls] == [*built[0].blocks] * 2
    shapes = [[tuple(x.shape) for x in call.args[1:]] for call in head.mock_calls]
    assert shapes == [[(2, 8, 32), (2, 8)]] * 2


def test_parameters_and_products_have_the_dtype_asked_for(built) -> None:
    training(dtype=torch.bfloat16, **SHORT)()
    assert built[0].head.weight.dtype == torch.bfloat16
    autocast = Mock(return_value=contextlib.nullcontext())
    gpt2_step.torch.amp = SimpleNamespace(autocast=autocast)
    for amp in (False, True):
        training(amp=amp, **SHORT)()
    wanted = [(call.args, call.kwargs) for call in autocast.call_args_list]
    assert wanted == [(("cuda",), {"dtype": torch.bfloat16, "enabled": on}) for on in (False, True)]


@pytest.mark.parametrize(("has", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_half_type_asks_what_the_card_has_of_its_own(has, dtype, monkeypatch) -> None:
    supported = lambda including_emulation=True: has or including_emulation  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert gpt2_step.half_type() == dtype


@pytest.fixture
def scales(monkeypatch) -> SimpleNamespace:
    """A GPU of which 0.2 GiB are taken, where a step needs 3.035 and lasts as long as it says."""
    seen = SimpleNamespace(now=0.0, held=0.2, acts=[])

    def peak(step) -> float:
        seen.acts.append("peak")
        step()
        return 3.23462 * GIB

    cuda = SimpleNamespace(
        memory_allocated=lambda: seen.held * GIB, synchronize=lambda: seen.acts.append("wait")
    )
    monkeypatch.setattr(gpt2_step, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(gpt2_step, "time", SimpleNamespace(perf_counter=lambda: seen.now))
    monkeypatch.setattr(gpt2_step, "peak_bytes", peak)
    monkeypatch.setattr(gpt2_step, "clean", lambda: seen.acts.append("clean"))
    return seen


def test_peak_and_time_tells_peak_and_median(scales) -> None:
    took, given = [90, 80, 1, 5, 2.3456], []

    def make(**remedies):
        given.append(remedies)

        def step() -> None:
            scales.acts.append("step")
            scales.now += took.pop(0) / 1e3

        return step

    assert peak_and_time(make, 3, micro=2) == [3.035, 2.35]
    assert given == [{"micro": 2}] and not took
    assert scales.acts == ["clean", "step", "peak", "step", *["step", "wait"] * 3, "clean"]


def test_the_next_one_is_weighed_on_an_empty_gpu(scales, monkeypatch) -> None:
    steps, alive = [], []

    def make():
        step = lambda: None  # noqa: E731
        steps.append(weakref.ref(step))
        return step

    monkeypatch.setattr(gpt2_step, "clean", lambda: alive.append([s() is not None for s in steps]))
    peak_and_time(make)
    assert alive == [[], [False]], "what the step held was still there when memory was freed"


def test_peak_and_time_refuses_while_the_last_step_is_alive(scales) -> None:
    scales.held = 0.25
    with pytest.raises(AssertionError, match="still alive"):
        peak_and_time(lambda: pytest.fail("built"))


def test_remedies_change_neither_loss_nor_gradients() -> None:
    torch.manual_seed(0)
    model, tokens = Transformer(50, **SMALL).double(), torch.randint(50, (4, 9))
    remedies = [(gpt2_step.direct, whole), (gpt2_step.direct, partial(gpt2_step.chunked, size=10))]
    names = ("checkpointed", "keep_products", "keep_attention")
    remedies += [(getattr(gpt2_step, name), whole) for name in names]
    found = []
    for run, head in remedies:
        loss = head(model, features(model, tokens[:, :-1], run), tokens[:, 1:])
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        found.append(torch.cat([loss.detach()[None], *map(torch.flatten, gradients)]))
        torch.testing.assert_close(found[-1], found[0], atol=1e-12, rtol=0)


def test_an_optimizer_in_the_backward_pass_steps_frees_and_dies() -> None:
    networks = [torch.nn.Linear(3, 2) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    usual = torch.optim.AdamW(networks[0].parameters(), lr=0.1)
    early = gpt2_step.InBackward(networks[1].parameters(), lr=0.1)
    for network, optimizer in zip(networks, (usual, early), strict=True):
        optimizer.zero_grad()
        network(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(weights(networks[1]), weights(networks[0]))
    assert all(p.grad is None for p in networks[1].parameters())
    witness = weakref.ref(networks.pop().weight)
    del network, optimizer, early
    gc.collect()
    assert witness() is None, "no cycle keeps the network alive"


def test_peaks_and_times_are_listed_beside_the_first() -> None:
    table = gpt2_step.listed({"plain": [10.0, 100.0], "lean": [2.5, 120.0]})
    assert table.rows[1] == ["lean", "2.50 GiB", "0.25", "120.0 ms", "1.20"]
