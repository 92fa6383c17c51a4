"""A Chrome trace in the making: what the tests of the profile's tools read."""

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from utils.bounds.verdict import Diagnosis, diagnose, warnings_about
from utils.gpus import lookup
from utils.profile import Trace, load

H200, T4 = lookup("NVIDIA H200"), lookup("Tesla T4")


class Planted:
    """A Chrome trace in the making; times in µs, ``end`` is that of the last work of the GPU."""

    def __init__(self, device: str | None = "NVIDIA H200"):
        self.events, self.count, self.end = [], 0, 10.0
        self.device = device

    def add(self, category: str, name: str, begin: float, duration: float, tid: int = 7, **args):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid}
            | {"ts": 1e9 + begin, "dur": duration, "args": args}
        )
        if tid == 20:
            self.end = begin + duration
        return self

    def step(self, begin: float, duration: float, name: str = "step"):
        return self.add("user_annotation", name, begin, duration)

    def call(self, name: str, begin: float, duration: float, tid: int = 7):
        self.count += 1
        return self.add("cuda_runtime", name, begin, duration, tid, correlation=self.count)

    def kernel(
        self, asked: float, begin: float, duration: float, name="kernel", op="aten::mul", **shapes
    ):
        """An operator that launches a kernel; without ``op``, a launch from elsewhere."""
        self.count += 1
        link = {"correlation": self.count}
        if op:
            shapes = {"Input Dims": [[1]], "Input type": ["float"]} | shapes
            self.add("cpu_op", op, asked, 5, **{"External id": self.count}, **shapes)
            link["External id"] = self.count
        self.add("cuda_runtime", "cudaLaunchKernel", asked + 1, 3, correlation=self.count)
        return self.add("kernel", name, begin, duration, tid=20, stream=20, **link)

    def elementwise(self, asked: float, of_roof: float, elements: int = 2**27):
        """A kernel right after the last one, that reads and writes at part of the bandwidth."""
        took = 2 * elements * 4 / (H200.bandwidth * 1e3) / of_roof
        shapes = {"Input Dims": [[elements]], "Input type": ["float"]}
        return self.kernel(asked, self.end, took, **shapes)

    def product(self, asked: float, of_roof: float, kind: str, peak: float, name: str = "gemm"):
        """A product of two 4096 x 4096 matrices right after the last kernel, at part of a peak."""
        took = 2 * 4096**3 / (peak * 1e6) / of_roof
        shapes = {"Input Dims": [[4096, 4096]] * 2, "Input type": [kind] * 2}
        return self.kernel(asked, self.end, took, name, "aten::mm", **shapes)

    def graph(self, *begins: float, duration: float = 2.0):
        """Kernels that one call launches."""
        self.add("cuda_runtime", "cudaGraphLaunch", 5, 10, correlation=99)
        for begin in begins:
            self.add("kernel", "tiny", begin, duration, tid=20, correlation=99, stream=20)
        return self

    def copy(self, asked: float, call: float, begin: float, duration: float, way: str, size: int):
        self.count += 1
        self.add("cuda_runtime", "cudaMemcpyAsync", asked, call, correlation=self.count)
        name, args = f"Memcpy {way} (Pageable -> Device)", {"bytes": size, "stream": 20}
        return self.add("gpu_memcpy", name, begin, duration, tid=20, correlation=self.count, **args)

    def without(self, *categories: str):
        self.events = [event for event in self.events if event["cat"] not in categories]
        return self

    def document(self) -> dict:
        return {"deviceProperties": [{"name": self.device}], "traceEvents": self.events}

    def write(self, folder: Path) -> Path:
        path = folder / "planted.json.gz"
        path.write_bytes(gzip.compress(json.dumps(self.document()).encode(), 1))
        return path

    def trace(self) -> Trace:
        with TemporaryDirectory() as folder:
            return load(self.write(Path(folder)))

    def diagnosis(self, **options) -> Diagnosis:
        return diagnose(self.trace(), **options)


def host_bound() -> Planted:
    """Two steps of 1 ms with short kernels: the event with number 1 is an operator."""
    planted = Planted()
    for begin in (0, 1_000):
        planted.step(begin, 990)
        for at in range(begin, begin + 900, 30):
            planted.kernel(at + 5, at + 12, 3)
    return planted


def expect(found: Diagnosis, bound: str, *says: str, **known: Any) -> Diagnosis:
    """Check a bound, what is said, and of the evidence what is ``known``, by owner or by field."""
    seen = found.evidence
    said = "\n".join([str(found), found.next, *warnings_about(seen)])
    assert found.bound == bound, found
    for text in says:
        assert text in said, said
    for name, value in known.items():
        of = seen.shares.get(name.replace("_", " "), getattr(seen, name, None))
        assert of == pytest.approx(value, rel=0.006, abs=0.002), name
    return found
