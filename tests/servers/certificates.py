"""A certificate authority, and the certificates that it signs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


@dataclass
class Authority:
    """Signs certificates for names."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def certificate(self) -> bytes:
        """Return the authority's own certificate, in PEM."""
        return self._sign("test authority", self.key.public_key(), authority=True)

    def write(self, folder: Path, common: str) -> None:
        """Write a certificate and its key as the files tls.crt and tls.key."""
        key = ec.generate_private_key(ec.SECP256R1())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tls.crt").write_bytes(self._sign(common, key.public_key()))
        pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (folder / "tls.key").write_bytes(key.private_bytes(*pem))

    def _sign(self, common: str, key: ec.EllipticCurvePublicKey, *, authority: bool = False) -> bytes:
        now = datetime.now(UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(_name(common))
            .issuer_name(_name("test authority"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        )
        return built.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
