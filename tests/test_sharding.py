"""What chapter 5.4 counts and sends: bytes of collectives, tokens of experts, digests of states."""

import sys
import time

import pytest
import torch
import torch.distributed as dist
from left_behind import left_behind
from tensor_parallel import tensor_parallel
from torch.distributed.fsdp import fully_shard

from notebooks import BOOK

SCRIPTS = BOOK / "scripts"


@pytest.fixture(scope="module")
def cases():
    """The script, imported without leaving its folders on the path, or its choices in train.py."""
    path, threads = list(sys.path), torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has none of those that its parent has started, and waits
    sys.path.insert(0, str(SCRIPTS))
    import sharded_cases
    import sharded_speed  # noqa: F401
    import train

    yield sharded_cases
    sys.path[:] = path
    train.HEAD = 64
    torch.set_num_threads(threads)


@pytest.fixture
def alone():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_left_behind_lists_nothing_that_fully_shard_keeps(alone) -> None:
    model = fully_shard(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    model[0].scale = model(torch.ones(1, 2)).detach()
    assert [*left_behind(model)] == ["0.scale"]


def test_traffic_counts_calls_and_the_bytes_of_the_whole_tensor(cases, alone) -> None:
    with cases.sharded.Traffic() as traffic:
        dist.all_reduce(torch.ones(10))
        dist.all_reduce(torch.ones(2, dtype=torch.float64))
        dist.all_gather_into_tensor(torch.empty(6), torch.ones(6))
        torch.ones(3).add(1)
    assert traffic.calls == {"all_reduce": 2, "all_gather": 1}
    assert traffic.bytes == {"all_reduce": 56, "all_gather": 24}


def test_every_token_goes_to_the_expert_of_its_choice(cases) -> None:
    torch.manual_seed(0)
    layer, x = cases.Experts(), torch.randn(2, 5, cases.WIDTH)
    chances = layer.router(x).softmax(-1)
    for sequence, tokens in enumerate(x):
        for place, token in enumerate(tokens):
            chance, choice = chances[sequence, place].max(0)
            want = token + chance * layer.experts[choice](token)
            torch.testing.assert_close(layer(x, None)[sequence, place], want)
    assert len(chances.argmax(-1).unique()) > 1, "more than one expert has work"


def test_a_digest_sees_one_bit_of_a_weight_and_of_a_moment(cases) -> None:
    def state(weight=1.0, moment=2.0):
        moments = {"state.w.exp_avg": torch.tensor([moment]), "param_groups.w.lr": 0.1}
        return {"w": torch.tensor([weight])}, moments

    found = {cases.digest(state(*pair)) for pair in ((), (1 + 2**-23,), (1.0, 2 + 2**-22), ())}
    assert len(found) == 3


@pytest.fixture
def ranks():
    """Four ranks of which this process is one; the others are only thought of."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    names = "stage", "data", "tensor"
    yield lambda *n: dist.init_device_mesh("cpu", n, mesh_dim_names=names[-len(n) :])
    dist.destroy_process_group()


def test_the_layers_are_split_that_the_plan_names(cases, ranks) -> None:
    net = cases.network()
    tensor_parallel(net, ranks(4))
    for name, p in net.named_parameters():
        last = name.split(".")[-2]
        want = "Shard(dim=1)" if last in ("out", "down") else "Shard(dim=0)"
        want = "Replicate()" if "norm" in last or "before" in last else want
        assert repr(*p.placements) == want, name


@pytest.mark.parametrize("name", ["norm", "blocks.1.before_mlp", "blocks.0.up", "head"])
def test_a_layer_that_the_plan_does_not_name_is_refused(cases, ranks, name) -> None:
    """torch would say nothing, and a norm that is not in the plan trains another model."""
    net = cases.network()
    place = net.get_submodule(name.rpartition(".")[0])
    place._modules["qkv"] = place._modules.pop(name.split(".")[-1])
    with pytest.raises(ValueError, match=r"qkv\.weight is tied, frozen, or not named as in train"):
        tensor_parallel(net, ranks(4))


def test_tied_weights_and_frozen_layers_are_refused(cases, ranks) -> None:
    """Split, the first would come apart, and the second train again."""
    tied, frozen, mesh = cases.network(), cases.network(), ranks(4)
    tied.head.weight = tied.embedding.weight
    frozen.blocks[1].before_mlp.requires_grad_(False)
    with pytest.raises(ValueError, match=r"^head\.weight is tied, frozen"):
        tensor_parallel(tied, mesh)
    with pytest.raises(ValueError, match=r"^blocks\.1\.before_mlp\.weight is tied, frozen"):
        tensor_parallel(frozen, mesh)


def test_gradients_are_placed_as_their_weights_and_an_odd_time_is_refused(cases, ranks) -> None:
    """A norm's comes in parts; clipping under tensor parallelism, torch 2.11 took them as whole."""
    net, mesh = cases.network(), ranks(4)
    for layer in (net.blocks[0].up, net.blocks[0].out):
        layer.bias = torch.nn.Parameter(torch.zeros(len(layer.weight)))
    tensor_parallel(net, mesh)
    (net(*cases.windows()(0)) / cases.TARGETS).backward()
    assert all(p.grad.placements == p.placements for p in net.parameters())
    assert len([p for p in net.parameters() if p.dim() == 1]) == 2 * cases.LAYERS + 1 + 2
    with pytest.raises(ValueError, match="4 ranks do not divide a time of 15"):
        net(torch.zeros(1, 15, dtype=torch.long))


@pytest.mark.parametrize("shape, half", [((1, 4), True), ((4, 1), True), ((2, 2), False)])
def test_spread_refuses_what_it_would_do_without_shards(cases, ranks, shape, half) -> None:
    net, mesh = cases.network(), ranks(*shape)
    if shape[1] > 1:
        tensor_parallel(net, mesh["tensor"])
    with pytest.raises(ValueError, match="half, and both axes at once, need shard"):
        sys.modules["spread"].spread(net, mesh["data"], half=half)


def test_copies_beside_stages_are_averaged_over_data_alone(cases, ranks) -> None:
    net = sys.modules["spread"].spread(cases.network(), mesh := ranks(2, 2, 1)["data"])
    assert net.process_group is mesh.get_group() and net.process_group.size() == 2


def test_adam_forgives_gradients_of_a_wrong_scale_and_the_norm_does_not(cases, alone) -> None:
    def doubled(net):
        for p in net.parameters():
            p.register_hook(lambda gradient: 2 * gradient)
        return net

    (losses, length), found = cases.sharded.alone(), cases.sharded.way(doubled, 1)
    assert max(abs(a - b) for a, b in zip(found["losses"], losses, strict=True)) < 1e-4
    assert found["norm"] == pytest.approx(2 * length, rel=1e-3)


def test_ways_in_new_processes_train_the_same_model(cases, forked_pythons) -> None:
    speed = sys.modules["sharded_speed"]
    ranks = speed.pair(speed.__file__, "--size", "tiny", "ddp", "one batch", limit=100)
    assert set(ranks[0]) == {"ddp", "one batch"}
    torch.testing.assert_close(*(way["losses"] for way in ranks[0].values()), rtol=0, atol=2e-3)
    assert all(len(way["ms"]) == speed.ROUNDS and way["GB"] == [] for way in ranks[0].values())


def test_a_rank_that_fails_ends_the_other(cases, tmp_path, nothing_left) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, time\ntime.sleep(100 * (1 - int(sys.argv[-1])))\nsys.exit(1)\n")
    start = time.monotonic()
    assert sys.modules["sharded_speed"].pair(script, limit=60) == [{}, {}]
    assert time.monotonic() - start < 30


def test_a_profile_is_split_by_what_the_gpu_does(cases) -> None:
    sys.modules.setdefault("sharded_causes", __import__("sharded_causes"))
    events = []
    for name, begin, length, launched in (
        ("spin_kernel", 0, 1, -5),
        ("sm90_gemm", 100, 200, 90),
        ("ncclAllGather", 200, 300, 95),
        ("elementwise", 450, 100, 97),
        ("FusedAdam", 600, 100, 590),
        ("spin_kernel", 1000, 1, 650),
    ):
        args = {"args": {"correlation": len(events)}}
        events += [{"cat": "kernel", "name": name, "ts": begin, "dur": length, **args}]
        events += [{"cat": "cuda_runtime", "name": "launch", "ts": launched, "dur": 1, **args}]
    found = sys.modules["sharded_causes"].split(events, 1)
    want = {"products": 0.2, "messages": 0.15, "small": 0.1, "optimizer": 0.1, "python": 0.15}
    assert {name: found[name] for name in want} == want
    assert found["idle"] == 0.3 and found["step"] == 1 and found["messages, in all"] == 0.3
