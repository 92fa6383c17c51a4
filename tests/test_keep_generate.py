"""generate.py, the code to keep of chapter 7.3."""

import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "book" / "scripts"))
import serving
from generate import generate


class Table(nn.Module):
    """After token n comes n + 1 with a logit of 3, n + 2 with 2, all else with 0."""

    def forward(self, tokens):
        following = (tokens[..., None] + torch.tensor([1, 2])) % 9
        return torch.zeros(*tokens.shape, 9).scatter(
            2, following, torch.tensor([3.0, 2.0]).expand_as(following)
        )


MODEL, START = Table().eval(), torch.tensor([[4], [7]])


def test_likeliest_tokens_and_an_end() -> None:
    for model in (MODEL, lambda tokens: Mock(logits=MODEL(tokens))):  # as Hugging Face's
        assert generate(model, START, 3, temperature=0).tolist() == [[4, 5, 6, 7], [7, 8, 0, 1]]
    ended = generate(MODEL, START, 9, temperature=0, end=8)
    assert ended.tolist() == [[4, 5, 6, 7, 8], [7, 8, 8, 8, 8]], "and stops when all have ended"


def test_drawn_as_often_as_likely() -> None:
    many = torch.zeros(20_000, 1, dtype=torch.long)
    for temperature, top in ((1.0, 9), (0.5, 2)):
        drawn = generate(MODEL, many, 1, temperature=temperature, top=top)[:, 1]
        expected = (MODEL(many[:1])[0, 0] / temperature).softmax(0)
        expected = torch.where(MODEL(many[:1])[0, 0] > 0, expected, expected if top == 9 else 0)
        found = torch.bincount(drawn, minlength=9) / len(drawn)
        torch.testing.assert_close(found, expected / expected.sum(), atol=0.015, rtol=0)


def test_a_generator_repeats_it_and_nothing_else_is_drawn() -> None:
    state = torch.get_rng_state()
    texts = [generate(MODEL, START, 9, generator=torch.Generator().manual_seed(3)) for _ in "12"]
    assert torch.equal(*texts) and torch.equal(state, torch.get_rng_state())


def test_with_a_cache_and_under_autocast() -> None:
    torch.manual_seed(0)
    net = serving.train.Transformer(2, 64, 32).eval()
    decoder, starts = serving.Decoder(net, 2, 32), []

    def cached(tokens, start):
        starts.append((start, tokens.shape[1]))
        return decoder(tokens, torch.arange(start, start + tokens.shape[1]).expand(2, -1))

    prompt = torch.randint(256, (2, 5))
    texts = [generate(m, prompt, 8, cached=m is cached, temperature=0) for m in (net, cached)]
    assert torch.equal(*texts) and starts == [(0, 5), *((5 + i, 1) for i in range(7))]
    with torch.autocast("cpu", torch.bfloat16):
        assert generate(net, prompt, 2).shape == (2, 7)


def test_what_is_refused() -> None:
    for given in ({}, 1), (START[0], 1), (START[:0], 1), (START, 0), (START, 1, False, 0.8, 0):
        with pytest.raises(ValueError, match="1 or more for count and top"):
            generate(MODEL, *given)
    with pytest.raises(ValueError, match=r"model\.eval"):
        generate(nn.Sequential(nn.Embedding(9, 9), nn.Dropout(0.1)), START, 1)
