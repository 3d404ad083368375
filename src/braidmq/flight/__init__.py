"""History over Arrow Flight: the protocol and the client. Needs `pyarrow`; independent of the server.

with braidmq.flight.connect("localhost:8815", user="ann", password="...") as history:
    frame = history.read("plant/+/temp", since="-24h", columns=["topic", "payload", "store_timestamp"]).read_pandas()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.flight.client import HistoryClient

__all__ = ["connect"]


def connect(
    servers: str | Sequence[str] = "localhost:8815",
    *,
    user: str = "",
    password: str = "",
    token: str = "",
    reader: str = "",
    tls: bool = False,
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
    server_name: str = "",
    call_s: float = 30.0,
    retry_s: float = 10.0,
) -> HistoryClient:
    """A client of one or several history services; it connects on first use. Raises UsageError for invalid options."""
    # Imported on demand: the node imports this package without pyarrow.
    from braidmq.flight.access import Access
    from braidmq.flight.client import HistoryClient

    access = Access(
        user=user,
        password=password,
        token=token,
        reader=reader,
        tls=tls,
        ca_file=ca_file,
        cert_file=cert_file,
        key_file=key_file,
        server_name=server_name,
    )
    return HistoryClient(servers, access, call_s=call_s, retry_s=retry_s)
