"""The network that several chapters train, and the helpers that count its bytes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from utils.models import MnistCNN, parameter_bytes, parameter_count


def test_shapes_and_size() -> None:
    model = MnistCNN()
    assert parameter_count(model) == 1_199_882, "the docstring and chapter 4 quote it"
    assert parameter_bytes(model) == 4 * 1_199_882
    for n in (1, 5):
        assert model(torch.zeros(n, 1, 28, 28)).shape == (n, 10)
    assert model(torch.zeros(0, 1, 28, 28)).shape == (0, 10)


@pytest.mark.parametrize("shape", [(1, 28, 20), (1, 3, 28, 28), (4, 784)])
def test_wrong_images_raise(shape) -> None:
    with pytest.raises(RuntimeError):
        MnistCNN()(torch.zeros(shape))


def test_output_is_logits_not_probabilities() -> None:
    torch.manual_seed(0)
    logits = MnistCNN()(torch.randn(8, 1, 28, 28))
    assert (logits < 0).any(), "probabilities before cross_entropy would be the classic bug"
    assert not torch.allclose(logits.softmax(1), logits)


def test_images_of_a_batch_do_not_mix() -> None:
    torch.manual_seed(0)
    model, images = MnistCNN(), torch.randn(4, 1, 28, 28)
    torch.testing.assert_close(model(images)[2:3], model(images[2:3]))


def test_it_learns() -> None:
    torch.manual_seed(0)
    model = MnistCNN()
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = torch.randn(10, 1, 28, 28), torch.arange(10)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_nothing_stays_behind_when_it_moves() -> None:
    model = MnistCNN().to("meta")
    assert model(torch.empty(2, 1, 28, 28, device="meta")).device.type == "meta"


def test_frozen_parameters_weigh_but_do_not_count() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert parameter_count(model) == 6
    assert parameter_bytes(model) == 4 * 8


def test_buffers_weigh_but_do_not_count() -> None:
    model = nn.BatchNorm1d(5)
    assert parameter_count(model) == 10
    assert parameter_bytes(model) == 4 * 20 + 8  # and one int64 counter


def test_tied_parameters_are_counted_once() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    assert parameter_bytes(nn.Sequential(first, second)) == 4 * 16
    assert parameter_count(nn.Sequential(first, second)) == 16


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.bfloat16, 2)])
def test_bytes_follow_the_dtype(dtype, size) -> None:
    assert parameter_bytes(nn.Linear(3, 2).to(dtype)) == size * 8


def test_bytes_on_meta_are_those_it_would_take() -> None:
    """Tensors without data all have the address 0; they are different tensors nevertheless."""
    assert parameter_bytes(MnistCNN().to("meta")) == parameter_bytes(MnistCNN())


def test_nothing_weighs_nothing() -> None:
    assert parameter_bytes(nn.ReLU()) == parameter_count(nn.ReLU()) == 0
