"""Decimals as text, a whole column at a time. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def decimal_text(values: pa.Array) -> pa.Array:
    """Return the text of decimals with all digits of their scale, as PostgreSQL prints them. NULL stays NULL."""
    scale = values.type.scale
    # As a decimal without a scale, because Arrow prints small values with an exponent.
    unscaled = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(values), values.buffers(), offset=values.offset, null_count=-1
    )
    digits = pc.cast(unscaled, pa.string())
    if scale == 0:
        return digits
    negative = pc.starts_with(digits, "-")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), width=scale + 1, padding="0")
    whole = pc.utf8_slice_codeunits(padded, 0, -scale)
    sign = pc.if_else(negative, "-", "")
    return pc.binary_join_element_wise(sign, whole, ".", pc.utf8_slice_codeunits(padded, -scale), "")
