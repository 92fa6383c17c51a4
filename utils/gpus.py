"""Datasheet figures of common GPUs, with their sources, read from ``book/gpus.json``.

All arithmetic figures are *dense*: datasheets since 2020 often print twice the number, reached only
with 2:4 structured sparsity. Tensor-core figures are for accumulation in float32, as PyTorch's
matmuls do; on GeForce cards that is half of the rate with float16 accumulation.
"""

import json
from dataclasses import dataclass
from pathlib import Path


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


def _read() -> tuple[GPU, ...]:
    """The cards of ``book/gpus.json``, in its order."""
    file = Path(__file__).resolve().parent.parent / "book" / "gpus.json"
    cards = json.loads(file.read_text(encoding="utf-8"))
    return tuple(
        GPU(**{key: tuple(v) if isinstance(v, list) else v for key, v in card.items()})
        for card in cards
    )


GPUS = _read()


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
