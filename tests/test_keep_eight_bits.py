"""The code to keep of chapter 3.3 on the models that readers bring."""

import gc
import pickle
import sys
from pathlib import Path

import pytest
import torch
from eight_bits import Int8Linear, eight_bits
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "book" / "scripts"))
import rounding

TRANSFORMER = {"d_model": 64, "nhead": 4, "dim_feedforward": 128, "batch_first": True}


class Tied(nn.Module):
    """A model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(32, 64), nn.Linear(64, 64)
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.middle(self.embedding(x)).relu())


def int8_layers(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, Int8Linear)]


def off(model: nn.Module, x: torch.Tensor):
    """A metric: how far the model's output is from what it is now."""
    y = model.eval()(x).detach().float()
    return lambda net: ((net(x).float() - y).norm() / y.norm()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_keeps_what_the_metric_allows(dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 8))
    model, x = model.to(dtype), torch.randn(256, 64, dtype=dtype)
    small, before, after = eight_bits(model.train(), off(model, x), most=0.02)
    assert before == 0 < after < 0.02 and int8_layers(small) == ["0", "3"]
    assert int8_layers(model) == [] and small(x).dtype == dtype
    held = sum(t.nbytes for t in small.state_dict().values())
    assert held < 1.4 * sum(p.numel() for p in model.parameters())
    same, _, worse = eight_bits(model, off(model, x), most=after / 2)
    assert same is model and worse == after
    again = pickle.loads(pickle.dumps(small))
    assert torch.equal(again(x), small(x)) and type(again[0].bias) is nn.Parameter


def test_a_row_of_zeros_and_a_metric_that_is_not_a_number() -> None:
    model = nn.Linear(8, 4)
    model.weight.data[2] = 0
    x = torch.randn(5, 8)
    small = eight_bits(model, off(model, x), most=0.02)[0]
    assert int8_layers(small) == [""] and small.weight[2].count_nonzero() == 0
    model.weight.data[1, 3] = float("nan")
    assert eight_bits(model, lambda net: net(x).sum().item(), most=9.0)[0] is model


def test_tied_weights_stay_tied() -> None:
    model, x = Tied(), torch.randint(32, (4, 16))
    small, _, after = eight_bits(model, off(model, x), most=0.02)
    assert int8_layers(small) == ["middle"] and small.head.weight is small.embedding.weight
    assert after > 0


def test_a_transformer_with_its_fast_path_autocast_and_hooks() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(**TRANSFORMER), 2).eval()
    x, seen = torch.randn(2, 16, 64), []
    model.layers[0].linear1.register_forward_hook(lambda *given: seen.append(1))
    small, _, after = eight_bits(model, off(model, x), most=0.02)
    assert len(int8_layers(small)) == 4 and 0 < after < 0.02 and small is not model
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(small(x).float(), model(x).float(), atol=0.1)
    assert seen, "hooks are kept"
    with pytest.raises(ValueError, match="nothing becomes int8"):
        eight_bits(nn.ReLU(), lambda net: 1.0, most=0)


def test_the_old_weights_are_gone_when_the_copy_is_measured() -> None:
    def held(net):
        return sum(type(o) is nn.Parameter and o.shape == (8, 9) for o in gc.get_objects())

    assert eight_bits(nn.Linear(9, 8), held, most=0)[1:] == (1, 1)


def test_codes_and_scales_of_the_chapter() -> None:
    fours = torch.linspace(-6, 6, 1001)
    codes = {0, 0.5, 1, 1.5, 2, 3, 4, 6}
    assert set(rounding.nearest(fours, "e2m1").abs().tolist()) == codes
    fives = torch.randn(1000) * 1e-4  # mostly below the smallest normal number, 2**-14
    assert torch.equal(rounding.nearest(fives, "e5m2"), fives.to(torch.float8_e5m2).float())
    x = torch.randn(4, 64) * torch.tensor([1e-3, 1, 10, 0])[:, None]
    for way in (("int4", 32), ("int8", 0), ("e2m1", 32, "power"), ("e2m1", 16, "e4m3")):
        bits, error = rounding.in_total([x], *way)
        assert 4 <= bits <= 8.5 and 0 < error < 0.2 and not rounding.rounded(x, *way)[3].any()
