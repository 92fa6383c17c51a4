"""The networks that several chapters train, and the helper that counts their parameters."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from utils import models
from utils.models import MnistCNN, Transformer, parameter_count


def test_the_cnn_is_the_network_of_the_tutorials() -> None:
    torch.manual_seed(0)
    model, images = MnistCNN(), torch.randn(4, 1, 28, 28)
    assert parameter_count(model) == 1_199_882, "the docstring and chapter 1.7 quote it"
    features = [model.conv1, nn.ReLU(), model.conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    tutorial = nn.Sequential(*features, model.fc1, nn.ReLU(), model.fc2)
    torch.testing.assert_close(model(images), tutorial(images))
    assert model(torch.zeros(0, 1, 28, 28)).shape == (0, 10)
    with pytest.raises(RuntimeError):
        model(torch.zeros(1, 28, 20))
    moved = model.to("meta")(torch.empty(2, 1, 28, 28, device="meta"))
    assert moved.device.type == "meta", "nothing stays behind"


def test_what_counts_is_trained_and_counted_once() -> None:
    frozen, tied, other = nn.Linear(3, 2), nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
    frozen.bias.requires_grad_(False)
    other.weight = tied.weight
    assert parameter_count(frozen) == 6
    assert parameter_count(nn.Sequential(tied, other, nn.BatchNorm1d(5))) == 20 + 10, "no buffers"


def small_transformer() -> Transformer:
    torch.manual_seed(0)
    return Transformer(vocabulary=50, width=32, layers=2, heads=4, context=16)


def test_transformer_is_gpt2_small() -> None:
    with torch.device("meta"):
        model = Transformer()
    assert parameter_count(model) == 124_439_808, "the docstring and chapters 2.1 to 3.2 quote it"
    assert [block.heads for block in model.blocks] == [12] * 12, "which no size tells"
    tokens = torch.zeros(2, 1024, dtype=torch.long, device="meta")
    assert model(tokens).shape == (2, 1024, 50_257)


def test_a_block_is_torchs_own_layer() -> None:
    """GPT-2's order: each part normalizes what it reads, and adds what it gives."""
    torch.manual_seed(0)
    ours, x = models.Block(width=32, heads=4), torch.randn(3, 7, 32)
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


def test_the_head_reads_normalized_features() -> None:
    model, tokens = small_transformer(), torch.randint(50, (3, 7))
    features = model.features(tokens)
    torch.testing.assert_close(features.mean(-1), torch.zeros(3, 7), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.std(-1, correction=0), torch.ones(3, 7), atol=1e-2, rtol=0)
    torch.testing.assert_close(model.head(features), model(tokens))
    assert model.head.weight is model.tokens.weight


def test_transformer_sees_places_up_to_its_context_and_starts_indifferent() -> None:
    model, tokens = small_transformer(), torch.randint(50, (4, 17))
    same = model(torch.zeros(1, 16, dtype=torch.long))
    assert not torch.allclose(same[:, 3], same[:, 9])
    with pytest.raises(RuntimeError):  # longer than its context
        model(tokens)
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(loss.item() - math.log(50)) < 0.3, "a large loss means a bad initialization"


def test_autocast_holds_in_whichever_thread_it_is_called() -> None:
    network, computed = nn.Linear(3, 2), []
    network.register_forward_hook(lambda _, inputs, output: computed.append(output.dtype))
    wrapped, x = models.InBfloat16(network), torch.ones(4, 3)
    with ThreadPoolExecutor(1) as pool:
        found = [wrapped(x), pool.submit(wrapped, x).result()]
    assert computed == [torch.bfloat16] * 2
    assert [y.dtype for y in found] == [torch.float32] * 2 and found[0].shape == (4, 2)
    torch.testing.assert_close(found[0], network(x), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name, count", [("MLP", 203_530), ("big MLP", 8 * (4096**2 + 4096))])
def test_networks_come_with_the_shape_of_their_input(name, count) -> None:
    with torch.device("meta"):
        model, shape = models.build(name)
        assert parameter_count(model) == count and model(torch.empty(2, *shape)).shape[0] == 2


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_step_trains_and_the_images_of_a_step_fit() -> None:
    model = nn.Linear(4, 3)
    before = model.weight.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss = models.resnet_step(model, optimizer, torch.ones(2, 4), torch.tensor([0, 1]))
    assert loss > 0 and not loss.requires_grad and not torch.equal(model.weight, before)
    assert models.images_for(16e9) == 128 and models.images_for(1e12) == 768


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_step_in_a_format_trains(dtype) -> None:
    model, x, y = models.mlp(4), torch.ones(8, 4), torch.zeros(8, dtype=torch.long)
    before = model[6].bias.clone()
    models.training_step(model, torch.optim.SGD(model.parameters(), lr=1.0), x, y, dtype)()
    assert len(model) == 8 and model[6].bias.dtype == torch.float32
    assert not torch.equal(model[6].bias, before)


def test_the_precision_of_products_returns_to_what_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ZeroDivisionError), models.float32_matmul("medium"):
        assert torch.get_float32_matmul_precision() == "medium"
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before
