"""Sizes for people: binary units, three figures."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MOST = 10**300
"""What more counts as: beyond it, a whole number is no float."""

_DECIMAL = ("", " K", " M", " B", " T")


def binary_bytes(count: float) -> str:
    """Return bytes in binary units.

    >>> binary_bytes(0), binary_bytes(16384), binary_bytes(1342177280)
    ('0 B', '16.0 KiB', '1.25 GiB')
    """
    value = float(min(count, _MOST))
    for unit in _BINARY:
        if value < 1024 or unit == _BINARY[-1]:
            break
        value /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{three_figures(value)} {unit}"


def element_count(count: int) -> str:
    """Return a number of elements.

    >>> element_count(11307321344), element_count(512)
    ('11.3 B', '512')
    """
    value = float(min(count, _MOST))
    for unit in _DECIMAL:
        if value < 1000 or unit == _DECIMAL[-1]:
            break
        value /= 1000
    return str(count) if not unit else f"{three_figures(value)}{unit}"


def three_figures(value: float) -> str:
    """Return three figures: 1.25, 12.5, 125, 1020."""
    if value >= 1e15:
        return f"{value:.3g}"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def percent(part: float, whole: float) -> str:
    """Return a share with as many places as it needs.

    >>> percent(2, 100000), percent(1, 3)
    ('0.002 %', '33 %')
    """
    share = 100 * part / whole if whole else 0.0
    if share == 0 or share >= 10:
        return f"{share:.0f} %"
    return f"{share:.1f} %" if share >= 1 else f"{share:.1g} %"
