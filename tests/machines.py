"""Machines as the facts of utils.diagnosis describe them."""

from dataclasses import replace

from utils.diagnosis import HEALTHY

(H100,) = HEALTHY.torch_gpus
V100 = ("Tesla V100-SXM2-32GB", (7, 0))
# The same machine, but torch can use nothing: the starting point of most faults.
BLIND = replace(HEALTHY, torch_gpus=(), torch_error="no CUDA-capable device is detected")
NO_DRIVER = replace(
    BLIND, kernel_driver=None, driver_cuda=None, driver_version=None, driver_gpus=()
)
