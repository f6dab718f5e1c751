"""The Secret of a destination's manifest, as a mounted folder with a file for each key."""

from __future__ import annotations

from pathlib import Path

import pytest

from levada.destinations.credentials import read_credentials
from levada.errors import LoginFailed


def test_a_key_is_the_text_of_a_file(tmp_path: Path) -> None:
    """Without the line break at its end, and without the folders and links of Kubernetes."""
    (tmp_path / "..data").mkdir()
    (tmp_path / "s3.region").write_bytes(b"eu-west-1\r\n")
    assert read_credentials(tmp_path) == {"s3.region": "eu-west-1"}


def test_a_file_of_windows_is_text(tmp_path: Path) -> None:
    """A byte order mark at its begin is no part of the key. It cannot be seen in a message of a failed login."""
    (tmp_path / "password").write_bytes(b"\xef\xbb\xbfhunter2\r\n")
    assert read_credentials(tmp_path) == {"password": "hunter2"}


def test_a_secret_that_cannot_be_read(tmp_path: Path) -> None:
    """The error names the Secret, and its key if one is at fault. A mount that is gone is no other error."""
    with pytest.raises(LoginFailed, match="Secret absent is unreadable: No such file or directory") as gone:
        read_credentials(tmp_path / "absent")
    assert gone.value.code == "credentials_unreadable"
    (tmp_path / "password").write_bytes(b"\xff")
    with pytest.raises(LoginFailed, match=r"key password of Secret .* is unreadable: it is not UTF-8 text"):
        read_credentials(tmp_path)
