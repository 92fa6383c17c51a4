"""The scripts that measure the whole program: book/scripts/whole.py, and what it starts."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "book" / "scripts"))
import minute
import whole

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("forked_pythons")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Some 400 kB of Python."""
    folder = Path(torch.__file__).parent / "optim"
    return shutil.copytree(folder, tmp_path_factory.mktemp("source") / "optim")


def test_a_run_to_its_end_and_one_that_waits_for_its_turns(source, tmp_path) -> None:
    options = ["--data", source, "--batch", 4, "--no-compile"]
    found, models = whole.to_the_end("1x64", *options, "--steps", 4, "--every", 2, at=(2,))
    assert [step for step, _ in found["curve"]] == [2, 4] and models.keys() == {2, 4}
    held_out = whole.train.corpus(source)[1][:9000]
    nets = [whole.model_of("1x64", models[step], CPU) for step in (2, 4)]
    first, last = (whole.bits_per_byte(net, held_out, CPU) for net in nets)
    assert 8.1 > first > last
    arm = whole.Arm("1x64", *options, "--wait", metrics=tmp_path / "lines")
    assert arm.turn(2) > 0 < arm.turn(1)
    arm.end()
    assert (tmp_path / "lines").read_text().count("\n") == 2, "three steps, the last not yet told"


def test_runs_keep_their_names_and_are_judged_by_all_held_out_bytes(source, monkeypatch) -> None:
    held_out = whole.train.corpus(source)[1][:9000]
    monkeypatch.setattr(whole.train, "corpus", lambda folder: (None, held_out, ""))
    options = ["--data", source, "--batch", 4, "--no-compile", "--steps", 2, "--every", 2]
    runs = {"low": ("1x64", *options), "high": ("1x64", *options, "--rate=1")}
    found, models = minute.all_of(runs)
    assert list(found) == ["low", "high"] and found["low"]["reached"] != found["high"]["reached"]
    net = whole.model_of("1x64", models["low"][2], CPU)
    assert found["low"]["reached"] == whole.bits_per_byte(net, held_out, CPU)


def test_what_ends_early_is_an_error(source) -> None:
    with pytest.raises(RuntimeError, match="ended with 2"):
        whole.to_the_end("1x64", "--data", source, "--batch", 0)


def test_pieces_that_stand_on_both_sides_are_found(source, tmp_path) -> None:
    alone = whole.overlap(source)
    assert alone["after"] < 0.5 and alone["files"] == alone["all files"]
    for path in list(source.glob("*.py")):
        shutil.copy(path, tmp_path / path.name)
        shutil.copy(path, tmp_path / f"again_{path.name}")
    twice = whole.overlap(tmp_path)
    assert twice["before"] > twice["after"] and 2 * twice["files"] == twice["all files"]


def test_compressors_gain_by_what_they_have_read() -> None:
    text = torch.randint(256, (3000,), dtype=torch.uint8)
    sizes = whole.compressed(text, text[:1000])
    assert sizes["gzip"] > 8 and sizes["xz after the training files"] < 1 < sizes["xz"]


def test_what_is_written_ends_with_the_file() -> None:
    def certain(byte: int):
        return lambda text: 1e3 * torch.nn.functional.one_hot(torch.tensor([[byte]]), 256)

    assert whole.written(certain(97), "x", 3, CPU) == "aaa"
    assert whole.written(certain(0), "x", 3, CPU) == ""


def test_optimizers_take_each_parameter_once_and_refuse_shards() -> None:
    net = whole.train.Transformer(2, 64, 16)
    net.head.weight.requires_grad_(False)
    net.bag = torch.nn.EmbeddingBag(9, 64)
    for muon, kinds in ((True, ["AdamW", "Muon"]), (False, ["AdamW"])):
        found = whole.train.optimizers(net, net.blocks, 1e-3, muon)
        assert [type(each).__name__ for each in found] == kinds
        taken = [p for each in found for group in each.param_groups for p in group["params"]]
        wanted = [p for p in net.parameters() if p.requires_grad]
        assert sorted(map(id, taken)) == sorted(map(id, wanted))
    only = torch.nn.Linear(4, 4, bias=False)
    assert [type(each).__name__ for each in whole.train.optimizers(only, only, 1e-3)] == ["Muon"]
    assert len(whole.train.optimizers(net, net, 1e-3)[1].param_groups[0]["params"]) == 12
    net.blocks[0].up.weight.full_tensor = None  # as a sharded one has
    refused = {(net, net.blocks, True): "whole matrices", (net, only, True): "no part of the model"}
    refused |= {(net, only, False): "no part of the model", (only, only, True): "are frozen"}
    only.requires_grad_(False)
    for (model, inside, muon), said in refused.items():
        with pytest.raises(ValueError, match=said):
            whole.train.optimizers(model, inside, 1e-3, muon)


def test_sizes_rates_and_loops_are_those_of_the_page() -> None:
    assert {name.count("x") for name in minute.SMALLER} == {1} and set(minute.LOOPS) > {"Muon"}
    whole.size_of("4x640")
    assert whole.train.SIZES["4x640"] == whole.train.SIZES["small"], "what train.py runs by default"
