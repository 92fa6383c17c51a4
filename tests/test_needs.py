"""What a machine has of what experiments need."""

import sys
from importlib.util import find_spec

import pytest

from utils.record import ExperimentError
from utils.record.missing import missing


def test_needs(gpu, monkeypatch) -> None:
    assert missing(["cpu"]) is None and missing(["cuda", "gpus:1", "sm:9.0"]) is None
    assert (missing(["linux"]) is None) == (sys.platform == "linux")
    assert (missing(["triton"]) is None) == (find_spec("triton") is not None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "no C++ compiler" in missing(["c++"])
    assert "2 needed" in missing(["gpus:2"])
    assert "10.0" in missing(["sm:10.0"])
    gpu(0)
    assert missing(["cpu"]) is None and "no CUDA GPU" in missing(["cuda"])


@pytest.mark.parametrize("need", ["tpu", "gpus:0", "gpus:two", "sm:9", ""])
def test_unknown_need(make, gpu, need) -> None:
    with pytest.raises(ExperimentError, match="unknown need"):
        make(needs=need)
