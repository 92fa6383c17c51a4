"""Who runs whom: architectures, wheels, visible devices."""

import pytest
import torch

from cases import cases
from utils.diagnosis import runs_on, visible
from utils.diagnosis.compatibility import WHEELS, wheel_for


def versions(text: str) -> list[tuple[int, int]]:
    return [tuple(map(int, version.split("."))) for version in text.split()]


@pytest.mark.parametrize(("arch", "runs", "fails"), cases("test_which_code_runs_where"))
def test_which_code_runs_where(arch, runs, fails) -> None:
    runs, fails = versions(runs), versions(fails)
    assert [c for c in runs + fails if runs_on(arch, c)] == runs


@pytest.mark.parametrize("name", ["90", "sm_9", "gfx90a", "sm_90b", "compute90"])
def test_architectures_are_checked(name) -> None:
    with pytest.raises(ValueError, match="is no architecture"):
        runs_on(name, (9, 0))


def test_jetson_boards_run_code_of_other_gpus_since_cuda_13_2() -> None:
    assert runs_on("sm_80", (8, 7)) and not runs_on("sm_80", (8, 7), (13, 1))
    assert not runs_on("sm_100", (10, 1), (12, 8)) and runs_on("sm_101", (10, 1), (12, 8))


@pytest.mark.parametrize("cuda", ["12.6", "13.0", "13.2"])
def test_rule_agrees_with_torch(cuda, monkeypatch) -> None:
    """torch keeps a table of its own, for the warning it prints."""
    newer = hasattr(torch.cuda, "DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION")
    if cuda == "13.2" and not newer:
        pytest.skip("this release of torch is older than the rule")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    major, minor = cuda.split(".")
    versions = [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121]
    for code in versions if major == "12" else versions[8:]:  # CUDA 13 compiles from 7.5 on
        for gpu in versions:
            ours = runs_on(f"sm_{code}", divmod(gpu, 10), (int(major), int(minor)))
            assert ours == torch.cuda._code_compatible_with_device(gpu, code), (code, gpu)


def test_wheels_agree_with_torch() -> None:
    """torch 2.15 lists what its wheels hold code for; that of CUDA 12.8 has left the list."""
    listed = getattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC", {})
    for cuda, archs in WHEELS.items():
        found = listed.get(".".join(map(str, cuda)), {})
        if isinstance(found, dict) and "x86_64" in found:
            assert {f"sm_{number}" for number in found["x86_64"]} == set(archs), cuda


@pytest.mark.parametrize(
    ("gpus", "driver", "cuda"), cases("test_which_wheel_suits_a_driver_and_cards")
)
def test_which_wheel_suits_a_driver_and_cards(gpus, driver, cuda) -> None:
    (driver,), (cuda,) = (versions(text) or [None] for text in (driver, cuda))
    assert wheel_for(versions(gpus), driver) == cuda


@pytest.mark.parametrize(("value", "expected"), cases("test_visible_devices"))
def test_visible_devices(value, expected, monkeypatch) -> None:
    assert visible(value, 4) == expected
    # torch has a parser of its own for counting GPUs before CUDA starts.
    if expected is not None:
        monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 4)
        monkeypatch.setattr(torch.cuda, "_cached_device_count", None, raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if value is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert torch.cuda._device_count_nvml() == len(expected)
