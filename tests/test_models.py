"""The networks that several chapters train, and the helpers that count its bytes."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from utils.models import Block, InBfloat16, MnistCNN, Transformer, parameter_bytes, parameter_count


def test_shapes_and_size() -> None:
    model = MnistCNN()
    assert parameter_count(model) == 1_199_882, "the docstring and chapter 1.7 quote it"
    assert parameter_bytes(model) == 4 * 1_199_882
    for n in (1, 5):
        assert model(torch.zeros(n, 1, 28, 28)).shape == (n, 10)
    assert model(torch.zeros(0, 1, 28, 28)).shape == (0, 10)


def test_it_is_the_network_of_the_tutorials() -> None:
    torch.manual_seed(0)
    model, images = MnistCNN(), torch.randn(4, 1, 28, 28)
    features = [model.conv1, nn.ReLU(), model.conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    tutorial = nn.Sequential(*features, model.fc1, nn.ReLU(), model.fc2)
    torch.testing.assert_close(model(images), tutorial(images))


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


def small_transformer() -> Transformer:
    torch.manual_seed(0)
    return Transformer(vocabulary=50, width=32, layers=2, heads=4, context=16)


def test_transformer_is_gpt2_small() -> None:
    with torch.device("meta"):
        model = Transformer()
    assert parameter_count(model) == 124_439_808, "the docstring and chapters 2.1 to 3.2 quote it"
    assert parameter_bytes(model) == 4 * 124_439_808, "the tied matrix is counted once"
    assert [block.heads for block in model.blocks] == [12] * 12, "which no size tells"
    tokens = torch.zeros(2, 1024, dtype=torch.long, device="meta")
    assert model(tokens).shape == (2, 1024, 50_257)


def test_a_block_is_torchs_own_layer() -> None:
    """GPT-2's order: each part normalizes what it reads, and adds what it gives."""
    torch.manual_seed(0)
    ours, x = Block(width=32, heads=4), torch.randn(3, 7, 32)
    theirs = nn.TransformerEncoderLayer(
        *(32, 4, 128), dropout=0, activation="gelu", batch_first=True, norm_first=True
    )
    theirs.self_attn.in_proj_weight, theirs.self_attn.in_proj_bias = ours.qkv.weight, ours.qkv.bias
    theirs.self_attn.out_proj, theirs.linear1, theirs.linear2 = ours.projection, ours.up, ours.down
    for norm in (ours.norm1, ours.norm2):
        nn.init.normal_(norm.weight)
    theirs.norm1, theirs.norm2 = ours.norm1, ours.norm2
    later = nn.Transformer.generate_square_subsequent_mask(7)
    torch.testing.assert_close(ours(x), theirs(x, src_mask=later))


def test_transformer_normalizes_what_the_head_reads() -> None:
    features = small_transformer().features(torch.randint(50, (3, 7)))
    torch.testing.assert_close(features.mean(-1), torch.zeros(3, 7), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.std(-1, correction=0), torch.ones(3, 7), atol=1e-2, rtol=0)


def test_transformer_sees_no_later_token() -> None:
    model = small_transformer()
    tokens = torch.randint(50, (1, 16))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 50
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10], after[:, 10])


def test_transformer_features_are_what_the_head_reads() -> None:
    model, tokens = small_transformer(), torch.randint(50, (3, 7))
    torch.testing.assert_close(model.head(model.features(tokens)), model(tokens))
    assert model.head.weight is model.tokens.weight


def test_transformer_starts_indifferent_and_learns() -> None:
    model, tokens = small_transformer(), torch.randint(50, (4, 17))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - math.log(50)) < 0.3, "a large initial loss means a bad initialization"
    assert losses[-1] < losses[0] / 2


def test_transformer_refuses_what_does_not_fit() -> None:
    with pytest.raises(RuntimeError):
        small_transformer()(torch.zeros(1, 17, dtype=torch.long))  # longer than its context
    with pytest.raises(IndexError):
        small_transformer()(torch.full((1, 4), 50))  # no such token


def test_autocast_holds_in_whichever_thread_it_is_called() -> None:
    network, computed = nn.Linear(3, 2), []
    network.register_forward_hook(lambda _, inputs, output: computed.append(output.dtype))
    wrapped, x = InBfloat16(network), torch.ones(4, 3)
    with ThreadPoolExecutor(1) as pool:
        found = [wrapped(x), pool.submit(wrapped, x).result()]
    assert computed == [torch.bfloat16] * 2
    assert [y.dtype for y in found] == [torch.float32] * 2 and found[0].shape == (4, 2)
    torch.testing.assert_close(found[0], network(x), rtol=0.02, atol=0.02)


def test_autocast_around_what_is_no_network_is_refused() -> None:
    with pytest.raises(TypeError):
        InBfloat16(None)(torch.ones(1))
