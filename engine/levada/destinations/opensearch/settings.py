"""The manifest's section ``spec.destination.opensearch``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from levada.spec.model import Change, StrictInt, setting
from levada.spec.section import DestinationSettings
from levada.spec.source import SecretRef
from levada.values import TableMode

_URL = r"^https?://[^\s/@?#]+$"
_PREFIX = r"^([a-z0-9][a-z0-9_.-]*)?$"


class Settings(DestinationSettings):
    """Documents in an OpenSearch cluster."""

    urls: list[Annotated[str, Field(pattern=_URL, max_length=2048)]] = setting(
        Change.RESTART, min_length=1, max_length=32
    )
    """The addresses of the cluster's nodes, such as https://search.example:9200, without user and path. A node that
    does not answer is passed over. The certificate of an https address is verified.
    """
    prefix: Annotated[str, Field(pattern=_PREFIX, max_length=64)] = setting(Change.RESYNC, "")
    """The beginning of the names of all aliases and indices. The alias of a table is the prefix, its schema, a dot and
    its name. Levada's own index is the prefix and levada-state.
    """
    mode: TableMode = setting(Change.RESYNC, TableMode.UPSERT)
    """Upsert: an index has one document per row. Changelog: it has one document per change."""
    shards: StrictInt = setting(Change.RESTART, 1, ge=1, le=1024)
    """The number of primary shards of an index. A change applies to the indices of later copies."""
    replicas: StrictInt = setting(Change.RESTART, 1, ge=0, le=32)
    """The number of replicas of each shard. A change applies to the indices of later copies. 0: a lost disk loses
    documents, and only a resync writes them again.
    """
    credentials_secret_ref: SecretRef | None = setting(Change.RESTART, None)
    """A Secret with the keys username and password for basic authentication, and ca.crt with the certificate authority
    in PEM. Each is optional. A changed key needs no restart.
    """
