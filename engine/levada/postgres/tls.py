"""Settings of a connection in a manifest, as libpq's parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from levada.spec.source import SessionAttrs, TlsMode

SSL_MODES: Final[Mapping[TlsMode, str]] = {
    TlsMode.DISABLE: "disable",
    TlsMode.REQUIRE: "require",
    TlsMode.VERIFY_CA: "verify-ca",
    TlsMode.VERIFY_FULL: "verify-full",
}
SESSION_ATTRS: Final[Mapping[SessionAttrs, str]] = {
    SessionAttrs.ANY: "any",
    SessionAttrs.READ_WRITE: "read-write",
    SessionAttrs.READ_ONLY: "read-only",
    SessionAttrs.PRIMARY: "primary",
    SessionAttrs.STANDBY: "standby",
}
_TRUSTED_CERTIFICATES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/cert.pem",  # macOS
)


def trusted_certificates(mode: TlsMode) -> Path | None:
    """Return the file of the machine's certificate authorities, or None if the mode verifies no certificate."""
    if mode not in (TlsMode.VERIFY_CA, TlsMode.VERIFY_FULL):
        return None
    # libpq alone looks only into the home folder. Its "system" is a path compiled into OpenSSL, which may not exist.
    for file in filter(
        None, (os.environ.get("PGSSLROOTCERT"), os.environ.get("SSL_CERT_FILE"), *_TRUSTED_CERTIFICATES)
    ):
        if Path(file).is_file():
            return Path(file)
    return None
