"""A Chrome trace in the making: what the tests of the profile's tools read."""

import gzip
import json
from pathlib import Path

from utils.profile import Trace, load


class Planted:
    """A Chrome trace in the making; times in µs."""

    def __init__(self, device: str | None = "NVIDIA H200"):
        self.events, self.count = [], 0
        self.device = device

    def add(self, category: str, name: str, begin: float, duration: float, tid: int = 7, **args):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid}
            | {"ts": 1e9 + begin, "dur": duration, "args": args}
        )
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

    def copy(self, asked: float, call: float, begin: float, duration: float, way: str, size: int):
        self.count += 1
        self.add("cuda_runtime", "cudaMemcpyAsync", asked, call, correlation=self.count)
        name, args = f"Memcpy {way} (Pageable -> Device)", {"bytes": size, "stream": 20}
        return self.add("gpu_memcpy", name, begin, duration, tid=20, correlation=self.count, **args)

    def document(self) -> dict:
        return {"deviceProperties": [{"name": self.device}], "traceEvents": self.events}

    def write(self, folder: Path) -> Path:
        path = folder / "planted.json.gz"
        path.write_bytes(gzip.compress(json.dumps(self.document()).encode(), 1))
        return path

    def trace(self, folder: Path) -> Trace:
        return load(self.write(folder))
