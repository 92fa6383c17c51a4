"""Sizes in readable units.

1 GiB is 2**30 bytes and 1 GB is 10**9: memory sizes are counted in the first, link and memory
speeds in the second, as datasheets do.
"""

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
