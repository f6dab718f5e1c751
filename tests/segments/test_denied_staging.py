"""A staging area that denies access to this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.servers.s3 import BUCKET, ObjectStore

from levada.errors import AccessDenied
from levada.segments.staging import Staging

CALLS: dict[str, Callable[[Staging], object]] = {
    "probe": lambda staging: staging.probe(),
    "read": lambda staging: staging.read("shop/owner"),
    "list": lambda staging: staging.list("shop"),
    "remove": lambda staging: staging.remove("shop/owner"),
    "create": lambda staging: staging.create("shop/owner", b"{}"),
    "output": lambda staging: staging.output("shop/segment").close(),
}


@contextmanager
def without_privileges(folder: Path) -> Iterator[None]:
    """Let this process be one that may not enter the folder, also if it is root's."""
    folder.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o700)


@pytest.mark.sampled
@pytest.mark.parametrize("call", CALLS)
def test_a_folder_of_another_user(tmp_path: Path, call: str) -> None:
    """Each operation names itself and the folder. The hint is what the process needs."""
    folder = tmp_path / "staging"
    staging = Staging.open(str(folder))
    staging.create("shop/owner", b"{}")
    with without_privileges(folder), pytest.raises(AccessDenied) as denied:
        CALLS[call](staging)
    assert_denied(denied.value, str(folder))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("key", ["s3.access-key-id", "s3.secret-access-key"])
def test_keys_that_the_object_store_refuses(s3: ObjectStore, call: str, key: str) -> None:
    """They are reported as such, and not as a store that is away."""
    uri = f"s3://{BUCKET}/staging"
    staging = Staging.open(uri, properties=s3.properties | {key: "wrong"})
    with pytest.raises(AccessDenied) as denied:
        CALLS[call](staging)
    assert_denied(denied.value, uri)


def assert_denied(error: AccessDenied, uri: str) -> None:
    """Check the code, the place and the hint. A running engine tries again."""
    assert (error.code, error.retried) == ("staging_denied", True)
    assert error.message.startswith("staging: cannot ")
    assert uri in error.message
    assert "spec.staging" in error.hint
