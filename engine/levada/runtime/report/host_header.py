"""The check of the Host header, against web pages whose own name resolves to this machine (DNS rebinding). Pure."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from levada.errors import NeedsOperator


def foreign_host(host: str, local_address: str) -> NeedsOperator | None:
    """Return the error ``host_refused`` of a request over loopback that names a foreign host. None: it is admitted.

    ``host`` is the value of the Host header, and ``local_address`` the address at which the connection arrived. A
    browser on this machine sends the name of the site whose script makes the request. A site cannot own ``localhost``
    or an IP address. Requests through ``kubectl port-forward`` arrive over loopback too. Other requests are admitted,
    because the names of a cluster's services are not known here.
    """
    if not is_loopback(local_address) or not host or _is_local(host):
        return None
    return NeedsOperator(
        "host_refused",
        "a request over loopback must name localhost or an IP address as its host",
        hint="open the page at http://127.0.0.1:PORT/, with the port that levada run prints",
    )


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return True for an address of this machine's loopback, also as IPv6 writes an address of IPv4."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
