"""Picking a device, describing the machine, and noticing a GPU that is held back."""

import itertools
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from utils import device
from utils.record import PROVENANCE


@pytest.fixture
def accelerators(monkeypatch):
    """A function that gives this machine so many accelerators, of a kind."""

    def set_count(count: int, kind: str = "cuda") -> None:
        def current(check_available: bool) -> torch.device | None:
            # Without check_available torch answers what the wheel was built for.
            return torch.device(kind) if count or not check_available else None

        monkeypatch.setattr(torch.accelerator, "current_accelerator", current)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)

    return set_count


NAMES = {0: ["cpu"], 1: ["cuda", "cuda:0", "cpu"], 2: ["cuda", "cuda:0", "cuda:1", "cpu"]}


@pytest.mark.parametrize("count", NAMES)
def test_pick_gives_what_is_there_only(accelerators, count) -> None:
    assert torch.ones(2, device=device.pick()).sum().item() == 2, "on this machine"
    accelerators(count)
    assert device.pick() == torch.device(NAMES[count][0])
    for name in NAMES[count]:
        assert device.pick(name) == torch.device(name)
    for name in {*NAMES[2], "cuda:99", "mps", "meta"} - {*NAMES[count]}:
        have = f"{count} x cuda" if count else "no accelerator"
        with pytest.raises(RuntimeError, match=f"{name} was asked for, but this machine .* {have}"):
            device.pick(name)


def test_gpus_are_counted_only_if_the_driver_works(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for works in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda works=works: works)
        assert device.gpu_count() == (3 if works else 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 3))
    assert device.capability() == (10, 3)


def test_the_name_of_the_processor(tmp_path, monkeypatch) -> None:
    file, processor = tmp_path / "cpuinfo", "model name\t: AMD EPYC 9554\nmodel name\t: another\n"
    monkeypatch.setattr(device, "Path", lambda path: {"/proc/cpuinfo": file}[path])
    monkeypatch.setattr(device.platform, "machine", lambda: "aarch64")
    for name in ("", "arm"):
        monkeypatch.setattr(device.platform, "processor", lambda name=name: name)
        file.unlink(missing_ok=True)
        assert device.cpu_name() == (name or "aarch64")
        file.write_text("CPU architecture: 8\n")  # Arm's names no model
        assert device.cpu_name() == (name or "aarch64")
        file.write_text(processor)
        assert device.cpu_name() == "AMD EPYC 9554"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_provenance_says_what_a_record_must_say(count, monkeypatch) -> None:
    answers = {"driver_version": ["580.1", "580.2"]}
    monkeypatch.setattr(device, "gpu_count", lambda: count)
    monkeypatch.setattr(device, "nvidia_smi", answers.get)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 7))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92000)
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda process: {1, 5, 7}, raising=False)
    found = device.provenance()
    known = {"gpu": "NVIDIA H100", "driver": "580.1", "cudnn": 92000}
    wanted = (known if count else dict.fromkeys(known)) | {"gpu_count": count, "cpu_cores": 3}
    wanted |= {"nccl": "2.30.7" if count == 2 else None, "torch": torch.__version__}
    assert wanted.items() <= found.items(), "of cores those that this process may use"
    assert set(PROVENANCE) <= found.keys() and found["cuda"] == torch.version.cuda
    assert found["cpu"] and len(found["date"]) == len("2026-11-22")
    answers.clear()
    monkeypatch.delattr(device.os, "sched_getaffinity")
    monkeypatch.setattr(device.os, "cpu_count", lambda: 11)
    found = device.provenance()
    assert (found["driver"], found["cpu_cores"]) == (None, 11)


# --- a GPU that something other than its power limit holds back --------------------------------

FAST, SLOW = "1980, 1980, 300.0, 700.0", "450, 1980, 236.3, 700.0"


@pytest.fixture
def held_back(monkeypatch):
    """A function that says what is said of GPUs of which nvidia-smi has these lines."""

    def ask(*lines: str, gpus: int = 1) -> str | None:
        fake, clock, queued = MagicMock(), itertools.count(step=0.3), []
        fake.randn.return_value.__matmul__ = lambda a, b: queued.append(b)
        fake.cuda.synchronize = lambda device: queued.clear()
        fake.cuda.get_device_properties = lambda index: SimpleNamespace(uuid=f"a-{index}-b")

        def nvidia_smi(query: str) -> tuple[str, ...]:
            assert queued and next(clock) > 1, "asked under a second of load"
            assert query == "uuid,clocks.sm,clocks.max.sm,power.draw,power.limit"
            return lines

        monkeypatch.setitem(sys.modules, "torch", fake)
        monkeypatch.setattr(device, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        monkeypatch.setattr(device, "gpu_count", lambda: gpus)
        monkeypatch.setattr(device, "nvidia_smi", nvidia_smi)
        said, loaded = device.held_back(), fake.randn.call_args_list
        assert [call.kwargs["device"] for call in loaded] == [
            f"cuda:{i}" for i in range(len(loaded))
        ]
        return said

    return ask


@pytest.mark.parametrize(
    "shown, slow",
    [
        (FAST, False),  # at its highest clock
        ("1125, 1980, 690.5, 700.0", False),  # at its limit of power
        ("1401, 2000, 300.0, 700.0", False),
        ("1400, 2000, 300.0, 700.0", True),
        ("900, 1980, 561.0, 700.0", False),
        ("900, 1980, 560.0, 700.0", True),
        ("[N/A], [N/A], [N/A], [N/A]", False),  # some cards do not tell
        ("450, 1980, [N/A], [N/A]", False),
    ],
)
def test_a_gpu_that_is_held_back_is_noticed(held_back, shown, slow) -> None:
    assert bool(held_back(f"GPU-a-0-b, {shown}")) is slow


def test_the_slow_card_is_named_and_no_other_accused(held_back) -> None:
    fast, slow = (f"GPU-a-{{}}-b, {numbers}".format for numbers in (FAST, SLOW))
    said = held_back(fast(0), fast(1), slow(2), gpus=3)
    assert "GPU 2 runs at 450 of 1980 MHz and draws 236 of 700 W" in said
    assert held_back(fast(0), fast(1), gpus=2) is None and held_back(gpus=0) is None
    # CUDA_VISIBLE_DEVICES hides one from PyTorch.
    assert held_back(slow("hidden"), fast(0)) is None
    assert "GPU 0 runs at 450" in held_back(fast("hidden"), slow(0))
    for lines in ((), [fast(0)]):  # nobody tells of the other
        assert held_back(*lines, gpus=2) is None
