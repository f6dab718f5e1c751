"""The binary format of numeric, decoded to Arrow decimals with Horner's rule over whole columns of base-10000 digits.

The layout is that of ``numeric_send``: four 16-bit integers (number of digits, weight of the first digit as a power of
10000, sign, display scale), then the digits. Zeros at both ends are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from levada.pgoutput.wire import Bools, Decoded, Ints, Refused, RowError, Values, bitmap
from levada.schema import ColumnType

Words: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"

_NEGATIVE: Final = 0x4000
_SPECIALS: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_HEADER: Final = 8
_BASE: Final = 10_000
_INT64_PRECISION: Final = 15
"""Up to this precision no intermediate result exceeds 64 bits. The first group may have up to three extra digits."""
_LIMBS: Final = 4
_LIMB_BITS: Final = 32


def decode_numeric(values: Values, column: ColumnType) -> Decoded:
    """Decode a column of numerics. A value that exceeds the precision and scale is refused, as NaN is."""
    count, weight, sign = (values.read(">i2", 2 * k).astype(np.int64) for k in range(3))
    if values.valid is not None:
        count, weight, sign = (np.where(values.valid, n, 0) for n in (count, weight, sign))
    sign &= 0xFFFF
    groups = -(-column.scale // 4)
    fits = (count == 0) | ((count - 1 - weight <= groups) & (4 * weight < column.precision - column.scale))
    wrong_size = values.only_valid(values.length != _HEADER + 2 * count)
    _require((count >= 0) & ~wrong_size)
    excess = ~fits
    # A value that is too large for its type must not exceed the bits of the sums either.
    count = count if fits.all() else np.where(fits, count, 0)
    top = int(weight.max(initial=0, where=count > 0))
    steps = _steps(values, count, weight, top, groups, groups * 4 - column.scale, excess)
    horner = _in_64_bits if column.precision <= _INT64_PRECISION else _in_128_bits
    low, high = horner(len(values), steps, 10**column.precision, excess)
    negative = sign == _NEGATIVE
    words = np.empty((len(values), 2), np.uint64)
    words[:, 0] = np.where(negative, ~low + np.uint64(1), low)
    words[:, 1] = np.where(negative, ~high + (low == 0), high)
    refused = (sign > _NEGATIVE) | excess
    valid = values.where(~refused).valid if refused.any() else values.valid
    validity = None if valid is None else bitmap(valid)
    array = pa.Array.from_buffers(column.arrow, len(values), [validity, pa.py_buffer(words)])
    return Decoded(array, _refused(values, sign, refused))


def _refused(values: Values, sign: Ints, refused: Bools) -> Refused | None:
    rows = np.flatnonzero(refused)
    if not len(rows):
        return None
    unknown = (sign[rows] > _NEGATIVE) & ~np.isin(sign[rows], list(_SPECIALS))
    if unknown.any():
        raise RowError(int(rows[unknown.argmax()]), "an invalid numeric")
    signs = sign[rows].tolist()
    return Refused(rows, [_SPECIALS.get(s) or _text(values, r) for r, s in zip(rows.tolist(), signs, strict=True)])


def _text(values: Values, row: int) -> str:
    """Return PostgreSQL's text of one value. Values that do not fit are expected to be rare."""
    start, size = int(values.start[row]), int(values.length[row])
    words = np.frombuffer(values.buffer.bytes[start : start + size].tobytes(), ">i2").astype(int).tolist()
    (_, weight, sign, scale), groups = words[:4], "".join(f"{group:04}" for group in words[4:])
    # Of the text, because Python refuses to write an integer of so many digits.
    point = 4 * (weight + 1)
    whole = groups[: max(point, 0)].ljust(point, "0").lstrip("0") or "0"
    rest = ("0" * -point + groups[max(point, 0) :]).ljust(scale, "0")[: max(scale, 0)]
    return ("-" if sign == _NEGATIVE else "") + whole + (f".{rest}" if rest else "")


def _require(good: Bools) -> None:
    if not good.all():
        raise RowError(int(good.argmin()), "an invalid numeric")


def _steps(
    values: Values, count: Ints, weight: Ints, top: int, groups: int, left_out: int, excess: Bools
) -> Iterator[tuple[int, Ints]]:
    """Yield the steps of Horner's rule from the highest power of 10000: a factor, and the digits to add.

    Only ``4 - left_out`` decimal digits of the last group belong to the scale. If the others are not zero, the row is
    marked in ``excess``.
    """
    first = values.start + _HEADER
    for power in range(top, -groups - 1, -1):
        place = weight - power
        there = (place >= 0) & (place < count)
        digits = np.where(there, values.buffer.int2(np.where(there, first + 2 * place, first)), 0)
        _require((digits >= 0) & (digits < _BASE))
        if power > -groups or not left_out:
            yield _BASE, digits
        else:
            unit = 10**left_out
            excess |= digits % unit != 0
            yield _BASE // unit, digits // unit


def _in_64_bits(size: int, steps: Iterable[tuple[int, Ints]], limit: int, excess: Bools) -> tuple[Words, Words]:
    """Compute the total. A row that reaches ``limit`` is marked in ``excess``."""
    total = np.zeros(size, np.int64)
    for factor, digits in steps:
        total = total * factor + digits
    excess |= total >= limit
    return total.view(np.uint64), np.zeros(size, np.uint64)


def _in_128_bits(size: int, steps: Iterable[tuple[int, Ints]], limit: int, excess: Bools) -> tuple[Words, Words]:
    """Compute the total in limbs, lowest first. Each is in 64 bits, so that its product with a factor fits.

    A row that reaches ``limit`` is marked in ``excess``.
    """
    limbs = [np.zeros(size, np.uint64) for _ in range(_LIMBS)]
    mask, shift = np.uint64((1 << _LIMB_BITS) - 1), np.uint64(_LIMB_BITS)
    for factor, digits in steps:
        carry = digits.astype(np.uint64)
        for k, limb in enumerate(limbs):
            total = limb * np.uint64(factor) + carry
            limbs[k], carry = total & mask, total >> shift
        excess |= carry != 0
    low, high = limbs[0] | limbs[1] << shift, limbs[2] | limbs[3] << shift
    limit_low, limit_high = np.uint64(limit & ((1 << 64) - 1)), np.uint64(limit >> 64)
    excess |= (high > limit_high) | ((high == limit_high) & (low >= limit_low))
    return low, high
