"""Datasheet figures of common GPUs, with their sources.

All arithmetic figures are *dense*: datasheets since 2020 often print twice the number, reached only
with 2:4 structured sparsity. Tensor-core figures are for accumulation in float32, as PyTorch's
matmuls do; on GeForce cards that is half of the rate with float16 accumulation.
"""

from dataclasses import dataclass

DATASHEET = "https://www.nvidia.com/en-us/data-center/"
T4_SOURCE = (
    "NVIDIA T4 datasheet and Turing architecture whitepaper (WP-09183-001), "
    "https://www.nvidia.com/en-us/data-center/tesla-t4/"
)
V100_SOURCE = "NVIDIA V100 datasheet, https://www.nvidia.com/en-us/data-center/v100/"
A10_SOURCE = f"NVIDIA A10 datasheet, {DATASHEET}products/a10-gpu/"
A100_SOURCE = f"NVIDIA A100 datasheet, {DATASHEET}a100/"
GA102_SOURCE = (
    "NVIDIA Ampere GA102 architecture whitepaper, "
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
)
ADA_SOURCE = (
    "NVIDIA Ada GPU architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/"
    "nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
)
L4_SOURCE = f"NVIDIA L4 datasheet, {DATASHEET}l4/"
L40S_SOURCE = f"NVIDIA L40S datasheet, {DATASHEET}l40s/"
HOPPER_SOURCE = (
    "NVIDIA H100 Tensor Core GPU architecture whitepaper, "
    "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"
)
H200_SOURCE = f"NVIDIA H200 datasheet, {DATASHEET}h200/"
HGX_SOURCE = f"NVIDIA HGX B200 (eight GPUs) and DGX B200 datasheets, {DATASHEET}hgx/"
RTX_BLACKWELL_SOURCE = (
    "NVIDIA RTX Blackwell GPU architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/"
    "nvidia-rtx-blackwell-gpu-architecture.pdf"
)
RTX_PRO_SOURCE = (
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition datasheet and RTX Blackwell PRO "
    "architecture whitepaper, https://www.nvidia.com/en-us/products/workstations/"
    "professional-desktop-gpus/rtx-pro-6000/"
)


@dataclass(frozen=True, kw_only=True)
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
    int8 : float or None
        Dense tensor-core TOP/s for 8-bit integers, accumulated in 32 bits.
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
    int8: float | None
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
    GPU(
        name="V100", capability=(7, 0), reported=("Tesla V100-SXM2-32GB",),
        sms=80, boost_mhz=1530, memory_gb=32, bandwidth=900,
        fp32=15.7, tf32=None, fp16=125, bf16=None, fp8=None, int8=None,
        pcie=(3, 16), nvlink=300, watts=300, source=V100_SOURCE,
    ),
    GPU(
        name="T4", capability=(7, 5), reported=("Tesla T4",),
        sms=40, boost_mhz=1590, memory_gb=16, bandwidth=320,
        fp32=8.1, tf32=None, fp16=65, bf16=None, fp8=None, int8=130,
        pcie=(3, 16), nvlink=None, watts=70, source=T4_SOURCE,
    ),
    GPU(
        name="A100 40GB", capability=(8, 0), reported=("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        sms=108, boost_mhz=1410, memory_gb=40, bandwidth=1555,
        fp32=19.5, tf32=156, fp16=312, bf16=312, fp8=None, int8=624,
        pcie=(4, 16), nvlink=600, watts=400, source=A100_SOURCE,
    ),
    GPU(
        name="A100 80GB", capability=(8, 0), reported=("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        sms=108, boost_mhz=1410, memory_gb=80, bandwidth=2039,
        fp32=19.5, tf32=156, fp16=312, bf16=312, fp8=None, int8=624,
        pcie=(4, 16), nvlink=600, watts=400, source=A100_SOURCE,
    ),
    GPU(
        name="A10", capability=(8, 6), reported=("NVIDIA A10",),
        sms=72, boost_mhz=1695, memory_gb=24, bandwidth=600,
        fp32=31.2, tf32=62.5, fp16=125, bf16=125, fp8=None, int8=250,
        pcie=(4, 16), nvlink=None, watts=150, source=A10_SOURCE,
    ),
    GPU(
        name="RTX 3090", capability=(8, 6),
        reported=("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        sms=82, boost_mhz=1695, memory_gb=24, bandwidth=936,
        fp32=35.6, tf32=35.6, fp16=71, bf16=71, fp8=None, int8=284,
        pcie=(4, 16), nvlink=112.5, watts=350, source=GA102_SOURCE,
    ),
    GPU(
        name="L4", capability=(8, 9), reported=("NVIDIA L4",),
        sms=58, boost_mhz=2040, memory_gb=24, bandwidth=300,
        fp32=30.3, tf32=60, fp16=121, bf16=121, fp8=242.5, int8=242.5,
        pcie=(4, 16), nvlink=None, watts=72, source=L4_SOURCE,
    ),
    GPU(
        name="L40S", capability=(8, 9), reported=("NVIDIA L40S",),
        sms=142, boost_mhz=2520, memory_gb=48, bandwidth=864,
        fp32=91.6, tf32=183, fp16=362, bf16=362, fp8=733, int8=733,
        pcie=(4, 16), nvlink=None, watts=350, source=L40S_SOURCE,
    ),
    GPU(
        name="RTX 4090", capability=(8, 9), reported=("NVIDIA GeForce RTX 4090",),
        sms=128, boost_mhz=2520, memory_gb=24, bandwidth=1008,
        fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3, int8=660.6,
        pcie=(4, 16), nvlink=None, watts=450, source=ADA_SOURCE,
    ),
    GPU(
        name="H100 PCIe", capability=(9, 0), reported=("NVIDIA H100 PCIe",),
        sms=114, boost_mhz=1755, memory_gb=80, bandwidth=2039,
        fp32=51.2, tf32=378, fp16=756, bf16=756, fp8=1513, int8=1513,
        pcie=(5, 16), nvlink=600, watts=350, source=HOPPER_SOURCE,
    ),
    GPU(
        name="H100 SXM", capability=(9, 0), reported=("NVIDIA H100 80GB HBM3",),
        sms=132, boost_mhz=1980, memory_gb=80, bandwidth=3350,
        fp32=66.9, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9, int8=1978.9,
        pcie=(5, 16), nvlink=900, watts=700, source=HOPPER_SOURCE,
    ),
    GPU(
        name="H200 SXM", capability=(9, 0), reported=("NVIDIA H200",),
        sms=132, boost_mhz=1980, memory_gb=141, bandwidth=4800,
        fp32=66.9, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9, int8=1978.9,
        pcie=(5, 16), nvlink=900, watts=700, source=H200_SOURCE,
    ),
    GPU(
        name="B200", capability=(10, 0), reported=("NVIDIA B200",),
        sms=148, boost_mhz=1980, memory_gb=180, bandwidth=8000,
        fp32=75, tf32=1125, fp16=2250, bf16=2250, fp8=4500, int8=4500,
        pcie=(5, 16), nvlink=1800, watts=1000, source=HGX_SOURCE,
    ),
    GPU(
        name="RTX 5090", capability=(12, 0), reported=("NVIDIA GeForce RTX 5090",),
        sms=170, boost_mhz=2407, memory_gb=32, bandwidth=1792,
        fp32=104.8, tf32=104.8, fp16=209.5, bf16=209.5, fp8=419, int8=838,
        pcie=(5, 16), nvlink=None, watts=575, source=RTX_BLACKWELL_SOURCE,
    ),
    GPU(
        name="RTX PRO 6000", capability=(12, 0),
        reported=("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
        sms=188, boost_mhz=2617, memory_gb=96, bandwidth=1792,
        fp32=126, tf32=251.9, fp16=503.8, bf16=503.8, fp8=1007.6, int8=1007.6,
        pcie=(5, 16), nvlink=None, watts=600, source=RTX_PRO_SOURCE,
    ),
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
