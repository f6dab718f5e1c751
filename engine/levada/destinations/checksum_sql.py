"""The checksums of a table's rows in PostgreSQL's SQL, as `levada.destinations.verification` defines them. Pure.

They are for the source, and for a destination in PostgreSQL. The statements rely on the session's settings in
`levada.postgres.connection`, which are also those of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from levada.copy.plan import BlockRange
from levada.copy.range_reader import in_blocks, quote_table
from levada.destinations.key_ranges import key_terms, key_texts, range_conditions
from levada.destinations.verification import SAMPLE_PARTS, Comparison, is_framed_by_length
from levada.pgoutput.copybinary import may_be_unconvertible, text_expression
from levada.pgoutput.encoding import UnconvertibleTexts
from levada.schema import Column, ColumnType, Kind, resolve_type
from levada.schema.masking import has_text_mask, is_null_mask
from levada.schema.types import NUMERIC_OID, Notation, is_builtin
from levada.values import OnUnrepresentable, quote_identifier

_JOIN_ARGUMENTS: Final = 64
"""PostgreSQL's functions take at most 100 arguments."""
_ELEMENT: Final = "_levada_element"
_INDEX: Final = "_levada_index"
"""Names of an array's elements and their positions, which no column of a table has."""
_PLACE: Final = "place"
_REAL_ARRAY: Final = 1021
_ODD_NUMERICS: Final = "('NaN', 'Infinity', '-Infinity')"
_LAST: Final = {
    Kind.TIMESTAMP: "294247-01-10 04:00:54.775806",
    Kind.TIMESTAMPTZ: "294247-01-10 04:00:54.775806+00",
}
"""The last moments that are stored. PostgreSQL has later ones, see `levada.pgoutput.temporal.timestamp_us`."""


@dataclass(frozen=True, slots=True)
class ChecksumSql:
    """Builds the statements for one table.

    ``policy`` is the pipeline's. Under ``Null``, a value that the destination's type cannot hold has no text, because
    the destination has NULL. ``utf8`` is False for a database with another encoding, whose texts are converted.
    ``unconvertible`` are those that became NULL, of which a key has none.
    """

    comparison: Comparison
    row_filter: str | None
    policy: OnUnrepresentable
    utf8: bool = True
    unconvertible: UnconvertibleTexts | None = None

    def chunks(self, part: BlockRange) -> str:
        """Return the statement for the checksums of a range by chunk."""
        return (
            f"SELECT key_hash % {self.comparison.chunks}, count(*), sum({self._compared()})"
            f" FROM ({self._hashed(part)}) AS hashed GROUP BY 1"
        )

    def rows(self, part: BlockRange, chunks: Sequence[int]) -> str:
        """Return the statement for the checksums of a range by key, of the rows in some chunks."""
        wanted = ", ".join(map(str, chunks))
        return self._by_key(part, f" WHERE key_hash % {self.comparison.chunks} IN ({wanted})")

    def last_key(self, parts: Sequence[BlockRange], rows: int) -> str:
        """Return the statement for the key of the last of the first ``rows`` rows of the comparison's range of keys.

        It has no row if there are fewer.
        """
        key = self.comparison.key
        texts = ", ".join(f"{text} AS t{i}" for i, text in enumerate(key_texts(key)))
        terms = ", ".join(f"{term} AS o{i}" for i, term in enumerate(key_terms(key, utf8=self.utf8)))
        of_parts = (f"SELECT {texts}, {terms} FROM ONLY {quote_table(p.leaf)}{self._where(p, None)}" for p in parts)
        keys = " UNION ALL ".join(of_parts)
        names, order = (", ".join(f"{name}{i}" for i in range(len(key))) for name in "to")
        return f"SELECT {names} FROM ({keys}) AS keys ORDER BY {order} OFFSET {rows - 1} LIMIT 1"

    def _by_key(self, part: BlockRange, where: str, places: str | None = None) -> str:
        digests = "".join(f", sum({self._hash(f'f{i}')})" for i in range(len(self.comparison.columns)))
        return (
            f"SELECT key_hash, min(shown), count(*), sum({self._compared()}){digests}"
            f" FROM ({self._hashed(part, places)}) AS hashed{where} GROUP BY key_hash"
        )

    def digests(self, part: BlockRange, chunks: Sequence[int] | None) -> str:
        """Return the statement for the hashes of each row's key and values, with its ctid, in some or all chunks."""
        wanted = ", ".join(map(str, chunks or ()))
        where = "" if chunks is None else f" WHERE key_hash % {self.comparison.chunks} IN ({wanted})"
        return f"SELECT key_hash, {self._compared()}, {_PLACE} FROM ({self._hashed(part)}) AS hashed{where}"

    def rows_at(self, part: BlockRange, places: str) -> str:
        """Return the statement of `rows` for the rows of a range with these places, see `at_places`."""
        return self._by_key(part, "", places)

    def unmasked(self, part: BlockRange, shown: Sequence[Column], places: str | None) -> str:
        """Return the statement for the framed values of a range's rows, the texts of ``shown``, and the ctids.

        The values of masked columns are their texts in clear, without a frame. ``places`` is that of `rows_at`.
        """
        frames = ", ".join(
            f"c{i}" if has_text_mask(c) else self._framed(c, f"c{i}") for i, c in enumerate(self.comparison.columns)
        )
        texts = [f"{self._canonical(c)} AS c{i}" for i, c in enumerate(self.comparison.columns)]
        texts += [f"{self._shown(c)} AS s{i}" for i, c in enumerate(shown)]
        names = "".join(f", s{i}" for i in range(len(shown)))
        leaf, where = quote_table(part.leaf), self._where(part, places)
        inner = f"SELECT {', '.join(texts)}, ctid AS {_PLACE} FROM ONLY {leaf}{where}"
        return f"SELECT {frames}{names}, {_PLACE} FROM ({inner} OFFSET 0) AS canonical"

    def values(self, part: BlockRange, hashes: Sequence[int]) -> str:
        """Return the statement for the values of the rows of a range whose keys have these hashes."""
        conditions = " AND ".join([*self._conditions(part), self.of_keys(hashes)])
        texts = ", ".join(map(self._shown, self.comparison.columns))
        return f"SELECT {self._key_hash}, {texts} FROM ONLY {quote_table(part.leaf)} WHERE {conditions}"

    def of_keys(self, hashes: Sequence[int]) -> str:
        """Return the condition of the rows whose key has one of these hashes."""
        return f"{self._key_hash} = ANY ('{{{','.join(map(str, hashes))}}}'::bigint[])"

    @property
    def _key_hash(self) -> str:
        return self._hash(self._joined([self._framed(c, self._canonical(c)) for c in self.comparison.identity]))

    def _conditions(self, part: BlockRange) -> list[str]:
        comparison = self.comparison
        chosen = range_conditions(comparison.key, comparison.between, utf8=self.utf8)
        return [*in_blocks(part), *chosen, *([f"({self.row_filter})"] if self.row_filter is not None else [])]

    def _compared(self) -> str:
        """Return the hash that a row adds to a checksum: that of the row in the sample, and else that of its key."""
        comparison, row = self.comparison, self._hash(self._joined([f"f{i}" for i in range(self._width)]))
        if not comparison.key or comparison.sample >= SAMPLE_PARTS:
            return row
        part = f"(key_hash / {comparison.chunks} + {comparison.offset}) % {SAMPLE_PARTS}"
        return f"CASE WHEN {part} < {comparison.sample} THEN {row} ELSE key_hash END"

    @property
    def _width(self) -> int:
        return len(self.comparison.columns)

    def _hashed(self, part: BlockRange, places: str | None = None) -> str:
        """Return a query for the framed columns, the hash of the key, and the key as text."""
        at = {c.attnum: i for i, c in enumerate(self.comparison.columns)}
        key = self._hash(self._joined([f"f{at[c.attnum]}" for c in self.comparison.identity]))
        # OFFSET 0 keeps PostgreSQL from merging the queries, which would compute each expression several times.
        return f"SELECT *, {key} AS key_hash FROM ({self._frames(part, places)} OFFSET 0) AS framed OFFSET 0"

    def _frames(self, part: BlockRange, places: str | None) -> str:
        columns = self.comparison.columns
        texts = ", ".join(f"{self._canonical(c)} AS c{i}" for i, c in enumerate(columns))
        frames = ", ".join(f"{self._framed(c, f'c{i}')} AS f{i}" for i, c in enumerate(columns))
        shown = ", ".join(shown_text(c) for c in self.comparison.key)
        inner = (
            f"SELECT {texts}, json_build_array({shown})::text AS shown, ctid AS {_PLACE}"
            f" FROM ONLY {quote_table(part.leaf)}{self._where(part, places)}"
        )
        return f"SELECT {frames}, shown, {_PLACE} FROM ({inner} OFFSET 0) AS canonical"

    def _where(self, part: BlockRange, places: str | None) -> str:
        conditions = self._conditions(part) + ([] if places is None else [at_places(places)])
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _canonical(self, column: Column) -> str:
        if is_null_mask(column):
            return "NULL::text"
        return self._converted(column, self._text(quote_identifier(column.name), column.type, column))

    def _shown(self, column: Column) -> str:
        return self._converted(column, shown_text(column))

    def _converted(self, column: Column, value: str) -> str:
        """Return the SQL of a value, which is NULL if its text cannot be converted to UTF-8."""
        if self.unconvertible is None or column in self.comparison.key or not may_be_unconvertible(column):
            return value
        return self.unconvertible.without(text_expression(column), value)

    def _framed(self, column: Column, text: str) -> str:
        return self._frame(text, column.type)

    def _frame(self, text: str, kind: ColumnType) -> str:
        if not is_framed_by_length(kind):
            return f"coalesce({text} || '|', '~|')"
        size = f"octet_length({text})" if self.utf8 else f"octet_length(convert_to({text}, 'UTF8'))"
        return f"coalesce({size}::text || ':' || {text} || '|', '~|')"

    def _hash(self, text: str) -> str:
        hashed = text if self.utf8 else f"convert_to({text}, 'UTF8')"
        return f"('x' || left(md5({hashed}), 15))::bit(60)::bigint"

    def _joined(self, texts: Sequence[str]) -> str:
        if len(texts) <= _JOIN_ARGUMENTS:
            return texts[0] if len(texts) == 1 else f"concat({', '.join(texts)})"
        steps = range(0, len(texts), _JOIN_ARGUMENTS)
        return self._joined([self._joined(texts[i : i + _JOIN_ARGUMENTS]) for i in steps])

    def _text(self, value: str, kind: ColumnType, column: Column, *, element: bool = False) -> str:
        """Return the canonical text of a value, or of an ``element`` of the column's arrays."""
        match kind.kind:
            case Kind.FLOAT4 | Kind.FLOAT8:
                return f"CASE WHEN {value} = 'NaN' THEN 'nan' ELSE encode(float8send({value}::float8), 'hex') END"
            case Kind.DECIMAL:
                text = f"round({value}, {kind.scale})::text"
                if not element and (column.type_oid != NUMERIC_OID or kind != resolve_type(NUMERIC_OID, column.typmod)):
                    return self._decimal(value, kind, text)
            case Kind.BYTEA:
                return (
                    f"md5(decode({text_expression(column)}, 'hex'))"
                    if kind.notation is Notation.EWKB
                    else f"md5({value})"
                )
            case Kind.DATE:
                text = f"CASE WHEN NOT isfinite({value}) THEN 'infinite' ELSE ({value} - '1970-01-01'::date)::text END"
            case Kind.TIME:
                text = f"to_char({value}, 'HH24:MI:SS.US')"
            case Kind.TIMESTAMP:
                text = f"encode(timestamp_send({value}), 'hex')"
            case Kind.TIMESTAMPTZ:
                text = f"encode(timestamptz_send({value}), 'hex')"
            case Kind.ARRAY:
                return self._array(value, kind, column)
            case Kind.RANGE:
                return self._range(value, kind, column)
            case Kind.TEXT:
                return (
                    f"CASE WHEN {value} IS DISTINCT FROM NULL THEN concat({value}) END"
                    if element
                    else (f"{text_expression(column)}::text")
                )
            case _:
                return f"{value}::text"
        return self._represented(value, kind, text)

    def _decimal(self, value: str, kind: ColumnType, text: str) -> str:
        """Return the text of a numeric whose digits its type at the source does not limit to those of ``kind``.

        A value that the destination cannot hold keeps all of its digits, unless the destination has NULL.
        """
        whole = kind.precision - kind.scale
        # NaN and infinity are beyond any number.
        fits = f"abs({value}) < '1e{whole}'::numeric AND round({value}, {kind.scale}) = {value}"
        other = "NULL" if self.policy is OnUnrepresentable.NULL else f"{value}::text"
        return f"CASE WHEN {fits} THEN {text} ELSE {other} END"

    def _represented(self, value: str, kind: ColumnType, text: str) -> str:
        """Return ``text``, or no text for a value that the destination has as NULL."""
        odd = unrepresentable(value, kind)
        return (
            text
            if odd is None or self.policy is not OnUnrepresentable.NULL
            else f"CASE WHEN {odd} THEN NULL ELSE {text} END"
        )

    def _range(self, value: str, kind: ColumnType, column: Column) -> str:
        assert kind.element is not None
        bounds = [f"lower({value})", f"upper({value})"]
        lower, upper = (self._frame(self._text(b, kind.element, column, element=True), kind.element) for b in bounds)
        first = f"CASE WHEN lower_inc({value}) THEN '[' ELSE '(' END"
        last = f"CASE WHEN upper_inc({value}) THEN ']' ELSE ')' END"
        text = f"CASE WHEN isempty({value}) THEN 'empty' ELSE {first} || {lower} || {upper} || {last} END"
        odd = [o for b in bounds if (o := unrepresentable(b, kind.element)) is not None]
        null = " OR ".join([f"{value} IS NULL", *(odd if self.policy is OnUnrepresentable.NULL else [])])
        return f"CASE WHEN {null} THEN NULL ELSE {text} END"

    def _multirange(self, value: str, element: ColumnType, column: Column) -> str:
        assert element.element is not None
        framed = self._frame(self._range(_ELEMENT, element, column), element)
        elements = f"unnest({value}) WITH ORDINALITY AS u({_ELEMENT}, {_INDEX})"
        text = f"'[' || coalesce((SELECT string_agg({framed}, '' ORDER BY {_INDEX}) FROM {elements}), '') || ']'"
        odd = [o for b in ("lower", "upper") if (o := unrepresentable(f"{b}({_ELEMENT})", element.element)) is not None]
        null = f"{value} IS NULL"
        if odd and self.policy is OnUnrepresentable.NULL:
            null += f" OR EXISTS (SELECT FROM {elements} WHERE {' OR '.join(odd)})"
        return f"CASE WHEN {null} THEN NULL ELSE {text} END"

    def _array(self, value: str, kind: ColumnType, column: Column) -> str:
        assert kind.element is not None
        if kind.notation is Notation.MULTIRANGE:
            return self._multirange(value, kind.element, column)
        if kind.notation is not Notation.PLAIN:
            # The cast of pgvector, which a destination's column of type real[] takes too.
            value, column = f"({value}::real[])", replace(column, type_oid=_REAL_ARRAY)
        if kind.depth > 1:
            return self._nested_array(value, kind, column)
        element = f"{value}[{_INDEX}]" if _is_subscripted(column) else _ELEMENT
        framed = self._frame(self._text(element, kind.element, column, element=True), kind.element)
        if _is_subscripted(column):
            elements = f"generate_subscripts({value}, 1) AS u({_INDEX})"
        else:
            elements = f"unnest({value}) WITH ORDINALITY AS u({_ELEMENT}, {_INDEX})"
        text = f"'[' || coalesce((SELECT string_agg({framed}, '' ORDER BY {_INDEX}) FROM {elements}), '') || ']'"
        odd = f"array_ndims({value}) > 1 OR array_lower({value}, 1) <> 1"
        inner = unrepresentable(element, kind.element)
        return self._whole_array(value, text, odd, None if inner is None else f"SELECT FROM {elements} WHERE {inner}")

    def _nested_array(self, value: str, kind: ColumnType, column: Column) -> str:
        """Return the text of lists in lists. The position at each depth has a name of its own."""
        indexes = [f"{_INDEX}{i}" for i in range(1, kind.depth + 1)]
        element = value + "".join(f"[{i}]" for i in indexes)
        text, level = self._text(element, kind.scalar, column, element=True), kind.scalar
        loops = [f"generate_subscripts({value}, {d}) AS u{d}({index})" for d, index in enumerate(indexes, 1)]
        for index, loop in zip(reversed(indexes), reversed(loops), strict=True):
            framed = self._frame(text, level)
            text = f"('[' || coalesce((SELECT string_agg({framed}, '' ORDER BY {index}) FROM {loop}), '') || ']')"
            level = ColumnType(Kind.ARRAY, element=level)
        lower = "".join(f" OR array_lower({value}, {d}) <> 1" for d in range(1, kind.depth + 1))
        inner = unrepresentable(element, kind.scalar)
        odd = f"array_ndims({value}) <> {kind.depth}{lower}"
        found = None if inner is None else f"SELECT FROM {', '.join(loops)} WHERE {inner}"
        return self._whole_array(value, text, odd, found)

    def _whole_array(self, value: str, text: str, odd: str, odd_elements: str | None) -> str:
        """Return ``text``, or another one for an array that a list cannot hold.

        Without the policy Null, it keeps a text that no list has. ``odd_elements`` selects from its elements those that
        their type cannot hold.
        """
        whole = "NULL" if self.policy is OnUnrepresentable.NULL else f"concat({value})"
        if odd_elements is not None and self.policy is OnUnrepresentable.NULL:
            odd += f" OR EXISTS ({odd_elements})"
        return f"CASE WHEN {value} IS NULL THEN NULL WHEN {odd} THEN {whole} ELSE {text} END"


def read_result(text: bytes | bytearray, layout: pa.Schema) -> pa.Table:
    """Return the result of a statement as a table. ``text`` is the CSV of ``COPY (...) TO STDOUT (FORMAT csv)``."""
    if not text:
        return layout.empty_table()
    return pcsv.read_csv(
        pa.BufferReader(bytes(text)),
        pcsv.ReadOptions(column_names=layout.names, block_size=max(len(text), 1 << 20)),
        pcsv.ParseOptions(newlines_in_values=True),
        pcsv.ConvertOptions(
            column_types=layout, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


def unrepresentable(value: str, kind: ColumnType) -> str | None:
    """Return the condition of values that the type's Arrow type cannot hold. None if it holds all."""
    if kind.kind in _LAST:
        return f"(NOT isfinite({value}) OR {value} > '{_LAST[kind.kind]}')"
    if kind.kind is Kind.DATE:
        return f"NOT isfinite({value})"
    if kind.kind is Kind.DECIMAL:
        return f"{value}::text IN {_ODD_NUMERICS}"
    return f"{value} = '24:00'" if kind.kind is Kind.TIME else None


def joined_places(places: pa.ChunkedArray | pa.Array) -> str:
    """Return the ctids of some rows, as a literal of an array."""
    values = places.combine_chunks() if isinstance(places, pa.ChunkedArray) else places
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return '{"' + str(pc.binary_join(whole, '","')[0].as_py()) + '"}'


def at_places(places: str) -> str:
    """Return the condition of the rows with these ctids, see `joined_places`."""
    return f"ctid = ANY ('{places}'::tid[])"


def shown_text(column: Column) -> str:
    """Return the expression of a value as a person reads it. NULL has no text."""
    if is_null_mask(column):
        return "NULL::text"
    name = quote_identifier(column.name)
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN concat({name}) END"


def _is_subscripted(column: Column) -> bool:
    """Return True for an array whose elements may be composite. ``unnest`` splits those into columns."""
    return not is_builtin(column.type_oid)
