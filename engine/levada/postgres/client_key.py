"""The client certificate of a connection. libpq refuses a key that others can read, as the files of a Secret are."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from levada.errors import LoginFailed
from levada.printable import unreadable_reason
from levada.private import process_folder, replace_file

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
"""The keys of a Secret of type kubernetes.io/tls."""


def certificate_parameters(folder: Path) -> dict[str, str]:
    """Return libpq's parameters for the certificate in the folder of a Secret, whose key is copied for this process.

    Raise LoginFailed ``credentials_unreadable``.
    """
    try:
        content = (folder / KEY).read_bytes()
    except OSError as error:
        raise LoginFailed(
            "credentials_unreadable",
            f"key {KEY} of Secret {folder.name} is unreadable: {unreadable_reason(error)}",
            hint=f"give Secret {folder.name} the keys {CERTIFICATE} and {KEY}, in PEM",
        ) from None
    private = _folder() / hashlib.sha256(content).hexdigest()
    if not private.exists():
        replace_file(private, content)
    return {"sslcert": str(folder / CERTIFICATE), "sslkey": str(private)}


@cache
def _folder() -> Path:
    return process_folder("levada-tls")
