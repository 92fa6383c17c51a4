"""Datasheet figures of common GPUs, with their sources.

All arithmetic figures are *dense*: datasheets since 2020 often print twice the number, reached only
with 2:4 structured sparsity. Tensor-core figures are for accumulation in float32, as PyTorch's
matmuls do; on GeForce cards that is half of the rate with float16 accumulation.
"""

from dataclasses import dataclass

DATASHEET = "https://www.nvidia.com/en-us/data-center/"
T4 = (
    "NVIDIA T4 datasheet and Turing architecture whitepaper (WP-09183-001), "
    "https://www.nvidia.com/en-us/data-center/tesla-t4/"
)
V100 = "NVIDIA V100 datasheet, https://www.nvidia.com/en-us/data-center/v100/"
A10 = f"NVIDIA A10 datasheet, {DATASHEET}products/a10-gpu/"
A100 = f"NVIDIA A100 datasheet, {DATASHEET}a100/"
GA102 = (
    "NVIDIA Ampere GA102 architecture whitepaper, "
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
)
ADA = (
    "NVIDIA Ada GPU architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/"
    "nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
)
L4 = f"NVIDIA L4 datasheet, {DATASHEET}l4/"
L40S = f"NVIDIA L40S datasheet, {DATASHEET}l40s/"
HOPPER = (
    "NVIDIA H100 Tensor Core GPU architecture whitepaper, "
    "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"
)
H200 = f"NVIDIA H200 datasheet, {DATASHEET}h200/"
HGX = f"NVIDIA HGX B200 (eight GPUs) and DGX B200 datasheets, {DATASHEET}hgx/"
RTX_BLACKWELL = (
    "NVIDIA RTX Blackwell GPU architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/"
    "nvidia-rtx-blackwell-gpu-architecture.pdf"
)
RTX_PRO = (
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition datasheet and RTX Blackwell PRO "
    "architecture whitepaper, https://www.nvidia.com/en-us/products/workstations/"
    "professional-desktop-gpus/rtx-pro-6000/"
)


@dataclass(frozen=True)
class GPU:
    """What the datasheet of one card says.

    Attributes
    ----------
    name : str
        Short name, for tables and plots.
    reported : tuple of str
        Exactly what ``torch.cuda.get_device_name()`` answers for this card.
    capability : tuple of int
        Compute capability.
    sms, boost_mhz : int
        Streaming multiprocessors, and the clock at which ``fp32`` is quoted; tensor-core peaks may
        be quoted at another (H100 SXM: 1830 MHz). For the B200, which has neither in its
        datasheet, from reviews and from ``fp32``.
    memory_gb : int
        Capacity. What datasheets call a GB of memory capacity is 2**30 bytes.
    bandwidth : float
        Of the card's own memory, in GB/s (10**9 bytes).
    fp32 : float
        TFLOP/s of the CUDA cores in float32.
    tf32, fp16, bf16, fp8 : float or None
        Dense tensor-core TFLOP/s with float32 accumulation; None if the card lacks the format.
    pcie : tuple of int
        Generation and lanes of the link to the host.
    nvlink : float or None
        GB/s to other GPUs, all links, **both directions added**, as datasheets count.
    watts : int
        Highest board power.
    source : str
        Document and address.
    """

    name: str
    reported: tuple[str, ...]
    capability: tuple[int, int]
    sms: int
    boost_mhz: int
    memory_gb: int
    bandwidth: float
    fp32: float
    tf32: float | None
    fp16: float
    bf16: float | None
    fp8: float | None
    pcie: tuple[int, int]
    nvlink: float | None
    watts: int
    source: str

    @property
    def cuda_cores(self) -> int:
        """Number of float32 units: 128 a multiprocessor, but 64 before 8.6 (Volta to A100)."""
        return self.sms * (64 if self.capability < (8, 6) else 128)

    @property
    def half(self) -> float:
        """Dense tensor-core TFLOP/s in bfloat16, or in float16 where the card has no bfloat16."""
        return self.bf16 or self.fp16

    @property
    def ridge(self) -> float:
        """FLOP per byte of memory traffic at which 16-bit arithmetic takes as long as the memory.

        ``half / bandwidth``; work with fewer operations a byte is limited by the memory.
        """
        return self.half * 1e12 / (self.bandwidth * 1e9)


# fmt: off
GPUS = (
    GPU("V100", ("Tesla V100-SXM2-32GB",), (7, 0), 80, 1530, 32, 900,
        15.7, None, 125, None, None, (3, 16), 300, 300, V100),
    GPU("T4", ("Tesla T4",), (7, 5), 40, 1590, 16, 320,
        8.1, None, 65, None, None, (3, 16), None, 70, T4),
    GPU("A100 40GB", ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"), (8, 0), 108, 1410, 40, 1555,
        19.5, 156, 312, 312, None, (4, 16), 600, 400, A100),
    GPU("A100 80GB", ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"), (8, 0), 108, 1410, 80, 2039,
        19.5, 156, 312, 312, None, (4, 16), 600, 400, A100),
    GPU("A10", ("NVIDIA A10",), (8, 6), 72, 1695, 24, 600,
        31.2, 62.5, 125, 125, None, (4, 16), None, 150, A10),
    GPU("RTX 3090", ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"), (8, 6), 82, 1695, 24, 936,
        35.6, 35.6, 71, 71, None, (4, 16), 112.5, 350, GA102),
    GPU("L4", ("NVIDIA L4",), (8, 9), 58, 2040, 24, 300,
        30.3, 60, 121, 121, 242.5, (4, 16), None, 72, L4),
    GPU("L40S", ("NVIDIA L40S",), (8, 9), 142, 2520, 48, 864,
        91.6, 183, 362, 362, 733, (4, 16), None, 350, L40S),
    GPU("RTX 4090", ("NVIDIA GeForce RTX 4090",), (8, 9), 128, 2520, 24, 1008,
        82.6, 82.6, 165.2, 165.2, 330.3, (4, 16), None, 450, ADA),
    GPU("H100 PCIe", ("NVIDIA H100 PCIe",), (9, 0), 114, 1755, 80, 2039,
        51.2, 378, 756, 756, 1513, (5, 16), 600, 350, HOPPER),
    GPU("H100 SXM", ("NVIDIA H100 80GB HBM3",), (9, 0), 132, 1980, 80, 3350,
        66.9, 494.7, 989.4, 989.4, 1978.9, (5, 16), 900, 700, HOPPER),
    GPU("H200 SXM", ("NVIDIA H200",), (9, 0), 132, 1980, 141, 4800,
        66.9, 494.7, 989.4, 989.4, 1978.9, (5, 16), 900, 700, H200),
    GPU("B200", ("NVIDIA B200",), (10, 0), 148, 1980, 180, 8000,
        75, 1125, 2250, 2250, 4500, (5, 16), 1800, 1000, HGX),
    GPU("RTX 5090", ("NVIDIA GeForce RTX 5090",), (12, 0), 170, 2407, 32, 1792,
        104.8, 104.8, 209.5, 209.5, 419, (5, 16), None, 575, RTX_BLACKWELL),
    GPU("RTX PRO 6000", ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",), (12, 0),
        188, 2617, 96, 1792, 126, 251.9, 503.8, 503.8, 1007.6, (5, 16), None, 600, RTX_PRO),
)
# fmt: on


def lookup(name: str) -> GPU | None:
    """Return the entry for what ``torch.cuda.get_device_name()`` answered; None if not listed.

    Only exact names match. "NVIDIA GeForce RTX 4090 Laptop GPU", "… 4090 D", "NVIDIA H100 NVL" and
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb" are other hardware than the names they begin with.
    """
    for gpu in GPUS:
        if name.strip() in gpu.reported:
            return gpu
    return None


def pcie_gb_per_s(generation: int, lanes: int = 16) -> float:
    r"""Return what a PCI Express link carries in one direction, in GB/s, before packet headers.

    One lane moves one bit a transfer. Of what it moves, the line code leaves 8 bits in 10
    (generations 1 and 2) or 128 in 130 (3 to 5):

    .. math:: B = \text{GT/s} \times \text{lanes} \times \text{code} / 8

    Parameters
    ----------
    generation : int
        1 to 5. From 6 on, links send fixed-size units with error correction; not covered.
    lanes : int
        1, 2, 4, 8 or 16.

    Raises
    ------
    ValueError
        If there is no such link.

    Notes
    -----
    Line rates and codes: PCI-SIG, PCI Express Base Specification 5.0, and
    https://pcisig.com/faq. Datasheets print both directions together: 128 GB/s for 5.0 x16.
    """
    rates = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0}
    if generation not in rates or lanes not in (1, 2, 4, 8, 16):
        raise ValueError(f"no PCIe {generation}.0 x{lanes}: generations 1 to 5, lanes 1 to 16")
    code = 8 / 10 if generation <= 2 else 128 / 130
    return rates[generation] * lanes * code / 8
