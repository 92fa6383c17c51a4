"""Machines as the facts of utils.diagnosis describe them."""

from dataclasses import replace

from utils.diagnosis import Facts

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
H100 = ("NVIDIA H100 80GB HBM3", (9, 0))
V100 = ("Tesla V100-SXM2-32GB", (7, 0))
HEALTHY = Facts(
    pci_gpus=1,
    kernel_driver="580.65.06",
    driver_cuda=(13, 0),
    driver_version="580.65.06",
    driver_gpus=(H100,),
    wheel="2.11.0+cu130",
    wheel_cuda="13.0",
    wheel_archs=ARCHS,
    torch_gpus=(H100,),
)
# The same machine, but torch can use nothing: the starting point of most faults.
BLIND = replace(HEALTHY, torch_gpus=(), torch_error="no CUDA-capable device is detected")
NO_DRIVER = replace(
    BLIND, kernel_driver=None, driver_cuda=None, driver_version=None, driver_gpus=()
)
