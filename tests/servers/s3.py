"""An object store that speaks S3: S3Proxy over a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.servers.java import fetched, serving
from tests.servers.ports import free_port

BUCKET: Final = "lake"
REGION: Final = "us-east-1"
_ID, _SECRET = "levada", "only-a-test"

_JAR: Final = """
<dependency org="org.gaul" name="s3proxy" rev="4.1.0" transitive="false">
  <artifact name="s3proxy" type="jar" ext="jar" m:classifier="jar-with-dependencies"/>
</dependency>
"""
_SETTINGS: Final = """
s3proxy.endpoint=http://{address}:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={identity}
s3proxy.credential={credential}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={folder}
"""


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running store with the bucket `BUCKET`."""

    port: int
    secret: str = _SECRET
    buckets: Path = Path()
    """The folder with a folder for each bucket."""
    address: str = "127.0.0.1"

    @property
    def place(self) -> dict[str, str]:
        """The place of the store by Iceberg's names for a catalog. PyIceberg's are the same."""
        return {
            "s3.endpoint": f"http://{self.address}:{self.port}",
            "s3.path-style-access": "true",
            "client.region": REGION,
        }

    @property
    def keys(self) -> dict[str, str]:
        """The keys to it, by the same names."""
        return {"s3.access-key-id": _ID, "s3.secret-access-key": self.secret}

    @property
    def properties(self) -> dict[str, str]:
        """The place of the store, and its keys."""
        return self.place | self.keys

    @property
    def environment(self) -> dict[str, str]:
        """The keys to it, as every client of AWS finds them."""
        return {"AWS_ACCESS_KEY_ID": _ID, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_REGION": REGION}

    def uri(self, path: str) -> str:
        """Return a path in the bucket as Arrow's file systems have it."""
        return f"s3://{BUCKET}/{path}?scheme=http&endpoint_override={self.address}:{self.port}&region={REGION}"


def jars() -> list[Path]:
    """Return S3Proxy's jar, with all that it needs in it."""
    return fetched("s3proxy-4.1.0", _JAR)


@contextmanager
def object_store(
    folder: Path, *, port: int | None = None, secret: str = _SECRET, address: str = "127.0.0.1"
) -> Iterator[ObjectStore]:
    """Run a store over a folder, which has what an earlier one left, that answers to this secret key alone."""
    (folder / "buckets" / BUCKET).mkdir(parents=True, exist_ok=True)
    store = ObjectStore(port or free_port(), secret, folder / "buckets", address)
    settings = folder / "s3proxy.properties"
    settings.write_text(
        _SETTINGS.format(address=address, port=store.port, identity=_ID, credential=secret, folder=folder / "buckets")
    )
    command = ("org.gaul.s3proxy.Main", "--properties", str(settings))
    with serving(folder / "s3proxy.log", store.port, jars(), *command, address=address):
        yield store
