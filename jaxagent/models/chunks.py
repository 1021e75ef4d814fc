"""Equal chunks of a length, for what is computed a part at a time."""

from __future__ import annotations


def largest_divisor(number: int, *, at_most: int) -> int:
    """The size of the largest equal chunks of `number` that are at most so long."""
    return next(size for size in range(min(number, at_most), 0, -1) if number % size == 0)
