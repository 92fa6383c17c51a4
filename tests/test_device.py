"""Picking a device, and describing the machine."""

import pytest
import torch

from utils import device


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


def test_pick_gives_a_device_that_works() -> None:
    assert torch.ones(2, device=device.pick()).sum().item() == 2
    assert device.pick("cpu") == torch.device("cpu")


@pytest.mark.parametrize("absent", ["cuda:99", "meta"])
def test_pick_refuses_what_is_not_there(absent) -> None:
    with pytest.raises(RuntimeError, match=f"{absent} was asked for, but this machine has"):
        device.pick(absent)


def test_pick_with_two_gpus(accelerators) -> None:
    accelerators(2)
    assert device.pick() == torch.device("cuda")
    for name in ("cpu", "cuda", "cuda:0", "cuda:1"):
        assert device.pick(name) == torch.device(name)
    for absent in ("cuda:2", "mps"):
        with pytest.raises(RuntimeError, match=f"{absent} was asked .* 2 x cuda"):
            device.pick(absent)


def test_pick_without_a_gpu(accelerators) -> None:
    accelerators(0)
    assert device.pick() == device.pick("cpu") == torch.device("cpu")
    for absent in ("cuda", "cuda:0"):
        with pytest.raises(RuntimeError, match=f"{absent} was asked .* no accelerator"):
            device.pick(absent)


@pytest.mark.parametrize(("works", "count"), [(True, 3), (False, 0)])
def test_gpus_are_counted_only_if_the_driver_works(works, count, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: works)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert device.gpu_count() == count


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor : 0\nmodel name\t: AMD EPYC 9554\nmodel name\t: another\n", "AMD EPYC 9554"),
        ("CPU architecture: 8\n", "aarch64"),  # Arm's names no model
        (None, "aarch64"),
    ],
)
def test_the_name_of_the_processor(cpuinfo, name, tmp_path, monkeypatch) -> None:
    file = tmp_path / "cpuinfo"
    if cpuinfo:
        file.write_text(cpuinfo)
    monkeypatch.setattr(device, "Path", lambda path: {"/proc/cpuinfo": file}[path])
    monkeypatch.setattr(device.platform, "processor", lambda: "")
    monkeypatch.setattr(device.platform, "machine", lambda: "aarch64")
    assert device.cpu_name() == name
    monkeypatch.setattr(device.platform, "processor", lambda: "arm")
    assert device.cpu_name() == ("arm" if name == "aarch64" else name)


def test_provenance_says_what_a_record_must_say() -> None:
    from utils.record import PROVENANCE

    found = device.provenance()
    assert set(PROVENANCE) <= found.keys()
    assert found["torch"] == torch.__version__ and found["cpu"] and found["cpu_cores"] >= 1
    assert (found["gpu"] is None) == (found["gpu_count"] == 0)
    assert len(found["date"]) == len("2026-11-22") and found["cuda"] == torch.version.cuda


@pytest.mark.parametrize("count", [0, 1, 2])
def test_provenance_of_a_machine_with_gpus(count, monkeypatch) -> None:
    answers = {"driver_version": ["580.1", "580.2"]}
    monkeypatch.setattr(device, "gpu_count", lambda: count)
    monkeypatch.setattr(device, "nvidia_smi", answers.get)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 7))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92000)
    found = device.provenance()
    assert found["gpu_count"] == count
    said = (found["gpu"], found["driver"], found["cudnn"])
    assert said == (("NVIDIA H100", "580.1", 92000) if count else (None, None, None))
    assert found["nccl"] == ("2.30.7" if count == 2 else None)
    answers.clear()
    assert device.provenance()["driver"] is None


def test_the_capability_is_torchs(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 3))
    assert device.capability() == (10, 3)


def test_cores_are_those_that_this_process_may_use(monkeypatch) -> None:
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda process: {1, 5, 7}, raising=False)
    assert device.provenance()["cpu_cores"] == 3
    monkeypatch.delattr(device.os, "sched_getaffinity")
    monkeypatch.setattr(device.os, "cpu_count", lambda: 11)
    assert device.provenance()["cpu_cores"] == 11
