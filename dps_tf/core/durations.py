"""Lengths of time as words, for messages, terminals and pages alike."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Returns a length of time in its two largest units.

    >>> duration(12.3), duration(754), duration(7260), duration(200_000)
    ('12 s', '12 min 34 s', '2 h 1 min', '2 d 7 h')
    """
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left = round(seconds)
    parts: list[str] = []
    for name, size in units:
        amount, left = divmod(left, size)
        if amount or (parts and len(parts) < 2):
            parts.append(f"{amount} {name}")
    kept = [part for part in parts[:2] if not part.startswith("0 ")]
    return " ".join(kept) or "0 s"
