"""The objects of a list: cut out as the bytes arrive, whatever is in them."""

from __future__ import annotations

import json
import random
from typing import Any

from levada_operator.kube.items import ItemScanner, Unread, identify, parse_items, parse_object


def odd() -> dict[str, Any]:
    """Return an object with brackets and quotes in its texts, and names of others in all places but its own."""
    return {
        "metadata": {
            "annotations": {"name": "victim", "namespace": "bank", "q": 'a"]}{\\'},
            "labels": {},
            "name": "mine",
            "namespace": "data",
            "ownerReferences": [{"name": "z", "namespace": "bank"}],
        },
        "spec": {"a": [1, {"b": {}}, [], {}], "name": "no", "metadata": {"namespace": "bank"}},
    }


def pieces(text: bytes, seed: int) -> list[bytes]:
    """Return the text in pieces that end anywhere."""
    order, found, at = random.Random(seed), [], 0
    while at < len(text):
        size = order.choice([1, 2, 3, 7, 50, 1000])
        found.append(text[at : at + size])
        at += size
    return found


LIST = {"apiVersion": "v1", "items": [odd(), {}, odd()], "kind": "L", "metadata": {"continue": "c", "more": {"a": []}}}


def test_objects_are_cut_out_wherever_the_pieces_end() -> None:
    """Each object is the one that a parser of the whole list finds, and so is the rest of the list."""
    for separators in ((",", ":"), (", ", ": ")):
        text = json.dumps(LIST, separators=separators).encode()
        for seed in range(60):
            rest: list[bytes] = []
            found = list(parse_items(pieces(text, seed), rest))
            assert [body for body, _ in (f for f in found if not isinstance(f, Unread))] == LIST["items"]
            assert json.loads(rest[0]) == {**LIST, "items": []}


def test_object_that_is_not_read_is_named() -> None:
    """One that is too large or too deep has its own namespace and name, which no text in it can forge."""
    text = json.dumps(LIST, separators=(",", ":")).encode()
    for seed in range(60):
        scanner = ItemScanner(most=100)
        found = [f for piece in pieces(text, seed) for f in scanner.feed(piece)]
        assert [(f.namespace, f.name) for f in found if isinstance(f, Unread)] == [("data", "mine")] * 2
        assert found[1] == b"{}"
    deep = json.dumps(odd())[:-1].encode() + b',"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert parse_object(deep, 1 << 30) == "it is nested too deeply"
    assert identify(deep, "deep") == Unread("data", "mine", "deep")
    rest: list[bytes] = []
    (unread, (body, _)) = parse_items([b'{"metadata":{},"items":[' + deep + b",{}]}"], rest)
    assert isinstance(unread, Unread)
    assert (unread.name, body) == ("mine", {})


def test_text_that_expands_is_not_parsed() -> None:
    """A megabyte of empty lists would take twenty."""
    assert parse_object(b'{"a":[' + b"[]," * 400_000 + b"[]]}", 16 << 20) == "it would take more than 16 MiB of memory"
    assert isinstance(parse_object(b'{"a":"' + b"x" * 1_000_000 + b'"}'), dict)
