"""The objects of a list, one at a time, as their bytes arrive.

A list may be larger than the memory, and one object in it may be too large or too deep to be parsed. Each object is
therefore cut out by its brackets, without recursion, and parsed alone. The namespace and the name of one that cannot be
parsed are known nonetheless.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from levada_operator.sizes import parsed_size

MAX_OBJECT: Final = 1 << 20
"""Bytes of an object that is parsed. etcd stores objects of up to 1.5 MiB."""
MAX_PARSED: Final = 16 << 20
"""Bytes that an object may take once it is parsed."""
_MAX_REST: Final = 1 << 16
"""Bytes of a list apart from its objects."""

# A text, complete or cut off by the end, or a bracket. Within an object's fields also a whole flat mapping.
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|(?P<cut>\\?\Z))|[{}\[\]]', re.DOTALL)
_DEEP_TOKEN: Final = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|(?P<cut>\\?\Z))|\{[^{}\[\]"\\]*(?:"[^"\\]*"[^{}\[\]"\\]*)*\}|[{}\[\]]', re.DOTALL
)
_TEXT_END: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*(?P<end>"|\\?\Z)', re.DOTALL)
_PLACE: Final = (b'"name"', b'"namespace"')
_PIECE: Final = 1 << 14
_ITEMS: Final = b'{"items":['
_LIST_LEVEL: Final = 2
"""The depth of the array of objects, which is in the list's own mapping."""


@dataclass(frozen=True, slots=True)
class Unread:
    """An object that was not parsed, and why."""

    namespace: str
    name: str
    reason: str


class ItemScanner:
    """Cuts the objects out of a list's bytes. Each byte is kept until its object ends, within limits."""

    def __init__(self, most: int = MAX_OBJECT) -> None:
        self._most = most
        self._depth = 0
        self._in_list = False
        self._rest = bytearray()
        self._item: bytearray | None = None
        self._size = 0
        self._pending = b""
        self._in_text = False
        self._names: dict[bytes, str] = {}
        self._in_metadata = False
        self._key = b""

    def feed(self, data: bytes) -> Iterator[bytes | Unread]:
        """Yield each object that ends within the data: its bytes, or what is known of one that is too large."""
        buffer = self._pending + data
        at = self._end_text(buffer) if self._in_text else 0
        while not self._in_text:
            deep = self._depth > _LIST_LEVEL + 1
            token = (_DEEP_TOKEN if deep else _TOKEN).search(buffer, at)
            if token is None or token["cut"] is not None:
                stop = len(buffer) if token is None else token.start()
                self._keep(buffer[at:stop])
                self._pending = buffer[stop:]
                if token is not None and self._depth > _LIST_LEVEL + 2:
                    self._end_text(self._pending, 1)
                return
            text = token[0]
            if text[:1] == b'"' and token.end() == len(buffer):
                # Whether it is a key is known by the next byte.
                self._keep(buffer[at : token.start()])
                self._pending = buffer[token.start() :]
                return
            if (found := self._take(buffer, at, token)) is not None:
                yield found
            at = token.end()

    def _end_text(self, buffer: bytes, begin: int = 0) -> int:
        """Keep a text's bytes up to its end, which may not have arrived. Return where the text ends."""
        found = _TEXT_END.match(buffer, begin)
        assert found is not None  # It matches anything.
        self._in_text = found["end"] != b'"'
        stop = found.start("end") if self._in_text else found.end()
        self._keep(buffer[:stop])
        self._pending = buffer[stop:] if self._in_text else b""
        return stop

    @property
    def rest(self) -> bytes:
        """The list without its objects, once all is fed."""
        return bytes(self._rest) + self._pending

    def _take(self, buffer: bytes, at: int, token: re.Match[bytes]) -> bytes | Unread | None:
        text, relative = token[0], self._depth - _LIST_LEVEL
        if text[:1] == b'"':
            self._keep(buffer[at : token.end()])
            self._name(text, buffer[token.end() : token.end() + 1] == b":", relative)
        elif text in (b"{", b"["):
            if relative == -1:
                self._in_list = text == b"["
            if relative == 0 and self._in_list and text == b"{":
                self._keep(buffer[at : token.start()])
                self._item, self._size, self._names = bytearray(), 0, {}
                at = token.start()
            elif relative == 1:
                self._in_metadata = self._key == b'"metadata"'
            self._keep(buffer[at : token.end()])
            self._depth += 1
        elif text in (b"}", b"]"):
            self._keep(buffer[at : token.end()])
            self._depth -= 1
            if relative == 1 and self._item is not None:
                return self._end()
        else:
            self._keep(buffer[at : token.end()])
        return None

    def _name(self, text: bytes, is_key: bool, relative: int) -> None:
        """Note the namespace and the name: texts in the mapping ``metadata`` of an object."""
        if is_key and relative in (1, 2):
            self._key = text
        elif relative == 2 and self._in_metadata and self._key in _PLACE:
            self._names[self._key] = text[1:-1].decode(errors="replace")

    def _keep(self, data: bytes) -> None:
        if self._item is None:
            if self._in_list and self._depth == _LIST_LEVEL:
                # The commas between objects.
                data = data.lstrip(b", \r\n\t")
            if len(self._rest) + len(data) <= _MAX_REST:
                self._rest += data
        else:
            self._size += len(data)
            if self._size <= self._most:
                self._item += data
            else:
                self._item.clear()

    def _end(self) -> bytes | Unread:
        item, self._item = self._item or bytearray(), None
        if self._size <= self._most:
            return bytes(item)
        return self.unread(f"it has more than {self._most >> 10} KiB")

    @property
    def is_named(self) -> bool:
        """True once the namespace and the name of the last object are known."""
        return len(self._names) == len(_PLACE)

    def unread(self, reason: str) -> Unread:
        """Return what is known of the last object."""
        return Unread(self._names.get(b'"namespace"', ""), self._names.get(b'"name"', ""), reason)


def parse_object(data: bytes, most: int = MAX_PARSED) -> dict[str, Any] | str:
    """Return the parsed object, or why it is not parsed. ``most`` are the bytes that it may take in memory."""
    if len(data) > most or parsed_size(data) > most:
        return f"it would take more than {most >> 20} MiB of memory"
    try:
        body = json.loads(data)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError:
        return "it is no JSON"
    return body if isinstance(body, dict) else "it is no object"


def parse_items(chunks: Iterable[bytes], rest: list[bytes]) -> Iterator[tuple[dict[str, Any], int] | Unread]:
    """Yield each object of a list with its parsed size, or what is known of one that is not parsed.

    Afterwards ``rest`` has the list without its objects.
    """
    scanner = ItemScanner()
    for chunk in chunks:
        for found in scanner.feed(chunk):
            if isinstance(found, Unread):
                yield found
                continue
            body = parse_object(found)
            yield scanner.unread(body) if isinstance(body, str) else (body, parsed_size(found))
    rest.append(scanner.rest)


def identify(text: bytes, reason: str) -> Unread:
    """Return what is known of an object that is not parsed, from its bytes as far as they are known.

    Its metadata comes first. The rest, of which a megabyte takes most of a second, is not looked at.
    """
    scanner = ItemScanner(most=0)
    for at in range(0, len(text), _PIECE):
        piece = text[at : at + _PIECE]
        if scanner.is_named or any(scanner.feed(piece if at else _ITEMS + piece)):
            break
    return scanner.unread(reason)
