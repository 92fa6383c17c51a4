"""Chapter 7.3's decoder and server, book/scripts/serving.py, on a small network."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "book" / "scripts"))
import serving
from generate import generate


@pytest.fixture(scope="module")
def net() -> torch.nn.Module:
    """Two layers with weights so large that what came before decides what follows."""
    torch.manual_seed(0)
    net = serving.train.Transformer(2, 128, 64).eval().requires_grad_(False)
    for weight in (p for p in net.parameters() if p.dim() == 2):
        weight.mul_(5)
    return net


def test_pieces_of_several_rows_make_the_logits_of_one_call(net) -> None:
    tokens = torch.randint(256, (3, 20))
    decoder, at = serving.Decoder(net, 3, 32), 0
    decoder.cache.normal_()  # what an earlier sequence left must not be seen
    for size in (7, 1, 1, 5, 6):
        places = torch.arange(at, at + size).expand(3, -1)
        logits = decoder(tokens[:, at : at + size], places)
        torch.testing.assert_close(logits, net(tokens)[:, at : at + size], atol=1e-4, rtol=0)
        at += size


def test_a_row_finds_its_slot_and_leaves_the_others_alone(net) -> None:
    tokens, decoder = torch.randint(256, (1, 9)), serving.Decoder(net, 4, 16)
    logits = decoder(tokens, torch.arange(9)[None], torch.tensor([[2]]))
    torch.testing.assert_close(logits, net(tokens), atol=1e-4, rtol=0)
    used = decoder.cache.abs().sum((0, 1, 4, 5)) > 0
    assert used.sum() == used[2, :9].sum() == 9


def test_the_step_for_readers_takes_prompts_of_ten_lengths(net, monkeypatch) -> None:
    cells = json.loads((serving.BOOK / "73_inference.ipynb").read_text(encoding="utf-8"))["cells"]
    said = next("".join(cell["source"]) for cell in cells if cell["id"] == "ladder-own")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    page = {**globals(), "net": net, "token": (token := torch.zeros(1, 1).long()), "prompt": token}
    exec(said.split("```python")[1].split("```")[0], page)
    for prompt in (torch.randint(256, (1, count)) for count in range(2, 12)):
        assert torch.equal(*(generate(m, prompt, 3, m is not net, 0) for m in (net, page["model"])))


def test_steps_of_the_ladder_read_the_same_cache(net) -> None:
    makers = serving.rungs(net, 16, None, None)
    arms, found = serving.made(makers)
    assert found["apart"]["compiled"] < 1e-5
    assert 0 < found["apart"]["int8"] < 0.3, "it rounds, and no more"
    assert arms["int8, batch 8, graph"]().shape == (8, 1, 256)
    assert arms["no cache"]().shape == (1, 16, 256)
    assert not serving.made(makers, most=-1)[0], "no time, no steps"
    assert serving.loop_of(arms["cache"].func, torch.ones(1, 1).long(), 16, 3)().shape == (1, 4)


@pytest.mark.parametrize("continuous", [True, False])
def test_requests_are_not_mixed_and_leave_nothing(net, continuous) -> None:
    server = serving.Server(net, 4, 32, 8, continuous)
    requests = [
        serving.Request([i, i + 1, i + 2][: 1 + i % 3], 1 + i % 9, i / 2) for i in range(40)
    ]
    for request in requests[::5]:
        request.leaves = request.arrives + 1
    busy = serving.serve(server, requests, in_steps=True)
    decoded = sum(len(request.answer) - bool(request.answer) for request in requests)
    assert decoded == sum(busy) and max(busy) <= 4, "a first token comes from its prompt"
    for request in requests:
        assert request.cancelled or len(request.answer) == request.count == len(request.times)
        if request.answer:  # and what a cancelled one has got is right, too
            prompt = torch.tensor([request.prompt])
            alone = generate(net, prompt, len(request.answer), temperature=0)
            assert alone[0].tolist() == request.prompt + request.answer
    assert any(request.cancelled for request in requests)
    assert sorted(server.free) == [0, 1, 2, 3] and not server.running and not server.queue
    assert not server.decoder.cache[:, :, :, :-1].any()


def test_a_free_slot_is_filled_at_once_or_when_all_are_free(net) -> None:
    steps = []
    for continuous in (True, False):
        server = serving.Server(net, 2, 32, 8, continuous)
        for count in (2, 9, 4):
            server.submit(serving.Request([1], count))
        steps.append(sum(1 for _ in iter(lambda s=server: s.step() or bool(s.queue), False)))
    assert steps[0] < steps[1]
    server.submit(gone := serving.Request([1], 3, cancelled=True))
    assert not server.step() and gone.answer == [], "nobody reads for a client that has gone"


REFUSED = [([], 1), ([1] * 9, 1), ([1], 0), ([1] * 8, 25), ([1, 256], 1), ([-1], 1)]


@pytest.mark.parametrize("prompt, count", REFUSED)
def test_what_does_not_fit_is_refused(net, prompt, count) -> None:
    with pytest.raises(ValueError, match=r"do not fit into a slot|tokens are 0 to 255"):
        serving.Server(net, 1, 32, 8).submit(serving.Request(prompt, count))


def test_waits_are_counted_in_steps(net) -> None:
    server = serving.Server(net, 1, 32, 8)
    requests = [serving.Request([1], 4, arrives) for arrives in (0, 1, 20.5)]
    assert serving.serve(server, requests, in_steps=True)[:7] == [1, 1, 1, 1, 1, 1, 0]
    assert [request.times[0] for request in requests] == [0, 3, 21]


def test_arrivals_come_at_their_rate_and_what_is_told_of_them() -> None:
    requests = serving.arrivals(2000, rate=50)
    assert 35 < requests[-1].arrives < 45 and serving.arrivals(3)[2].arrives == 0
    for request in requests:
        request.answer, request.times = [1, 2], [request.arrives + 0.5, request.arrives + 0.6]
    found = serving.told(requests)
    assert (found["first, p50"], found["gap, p99"]) == pytest.approx((0.5, 0.1), rel=1e-3)
    assert found["tokens"] == pytest.approx(100, rel=0.1) and 10 < found["waiting"] < 50


@pytest.mark.usefixtures("forked_pythons")
def test_commands_say_what_they_are_and_what_they_need() -> None:
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    for what, status, said in (("--help", 0, "serving.py load"), ("load", 1, "there is none")):
        command = [sys.executable, serving.__file__, what]
        run = subprocess.run(command, env=hidden, capture_output=True, text=True, timeout=120)
        assert run.returncode == status and said in run.stdout + run.stderr
