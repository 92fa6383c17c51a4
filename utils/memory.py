"""Sizes in readable units, and what a device holds.

1 GiB is 2**30 bytes and 1 GB is 10**9: memory sizes are counted in the first, link and memory
speeds in the second, as datasheets do.
"""

import torch

KIB, MIB, GIB = 2**10, 2**20, 2**30


def format_bytes(count: float) -> str:
    """Return a number of bytes in binary units, with three significant digits.

    >>> format_bytes(20 * 2**20)
    '20 MiB'
    """
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= scale:
            value = count / scale
            # .3g would print 1000 to 1023 of a unit, and what rounds to 1000, as 1e+03
            return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:.0f} {unit}"
    return f"{count:.0f} B"


def tensor_bytes(*tensors: torch.Tensor) -> int:
    """Return the bytes that ``tensors`` address, storage shared between them counted once."""
    storages = [t.untyped_storage() for t in tensors]
    # Tensors on the meta device all have the address 0; tell them apart by their storage objects.
    return sum({s.data_ptr() or -s._cdata: s.nbytes() for s in storages}.values())


def allocated(device: torch.device | str) -> dict[str, int]:
    """Return what this process holds on ``device``, in bytes.

    Returns
    -------
    dict
        ``allocated`` (live tensors), ``reserved`` (taken from the driver by the caching
        allocator), ``peak`` (highest ``allocated``), and ``free`` and ``total`` of the whole card,
        which count other processes too.

    Raises
    ------
    ValueError
        If ``device`` is not a CUDA device.
    """
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"{device} keeps no such counters; give a CUDA device")
    free, total = torch.cuda.mem_get_info(device)
    return {
        "allocated": torch.cuda.memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "peak": torch.cuda.max_memory_allocated(device),
        "free": free,
        "total": total,
    }
