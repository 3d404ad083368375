"""The keys of clusters; `settings.py` has all others, and says what a key is."""

from __future__ import annotations

from typing import Annotated, Literal

from braidmq.base.config.tables import Table, key
from braidmq.base.units import Seconds


class ClusterSettings(Table, frozen=True):
    """How the nodes of a cluster find and authenticate each other."""

    store: Annotated[
        Literal["embedded", "etcd"],
        key("where the cluster keeps its tables; `etcd`: it has several cores", restart=True, per_node=True),
    ] = "embedded"
    etcd: Annotated[tuple[str, ...], key("addresses of etcd", restart=True, per_node=True)] = ("127.0.0.1:2379",)
    etcd_username: Annotated[str, key("user of etcd; empty: no login", restart=True, per_node=True)] = ""
    etcd_password_file: Annotated[str, key("file with its password", restart=True, per_node=True)] = ""
    etcd_ca_file: Annotated[str, key("CA certificates (PEM) that verify etcd; empty: no TLS", restart=True, per_node=True)] = ""
    etcd_cert_file: Annotated[
        str, key("certificate (PEM) that this node shows etcd; empty: none", restart=True, per_node=True)
    ] = ""
    etcd_key_file: Annotated[str, key("its private key (PEM)", restart=True, per_node=True)] = ""
    initial_cores: Annotated[
        tuple[str, ...],
        key("names of all cores of a cluster with several cores, fixed when it is created", restart=True, per_node=True),
    ] = ()
    rpc_address: Annotated[
        str, key("address by which other nodes reach `rpc_bind`; empty: that of `rpc_bind`", restart=True, per_node=True)
    ] = ""
    rpc_bind: Annotated[
        str,
        key("address on which replicants on other hosts reach this core; empty: they cannot join", restart=True, per_node=True),
    ] = ""
    core_nodes: Annotated[tuple[str, ...], key("for a replicant: addresses of its core nodes", restart=True, per_node=True)] = ()
    secret: Annotated[
        str,
        key(
            "secret shared by the nodes; required unless `rpc_bind` is a loopback address",
            restart=True,
            secret=True,
            per_node=True,
        ),
    ] = ""
    cert_file: Annotated[
        str, key("certificate chain (PEM) for TLS between nodes; empty: no TLS", restart=True, per_node=True)
    ] = ""
    key_file: Annotated[str, key("its private key (PEM)", restart=True, per_node=True)] = ""
    ca_file: Annotated[
        str, key("CA certificates (PEM) that verify the certificates of other nodes", restart=True, per_node=True)
    ] = ""
    lease: Annotated[
        Seconds, key("how long a replicant without a connection to its core counts as alive", least=1, most=3600, restart=True)
    ] = Seconds(10)
    home_wait: Annotated[
        Seconds, key("how long publishers and new clients wait for a core that is away; longer than `lease`", least=1, most=3600)
    ] = Seconds(15)
    server_reference: Annotated[
        str, key("Server Reference in the DISCONNECT to MQTT 5 clients of a drained node; empty: none")
    ] = ""
    switchover_entries_max: Annotated[
        int,
        key(
            "maximum entries of the replication log that a node lacks when its core begins to send it new ones directly", least=1
        ),
    ] = 1000


class RegistrySettings(Table, frozen=True):
    """How the owner of a client id is decided."""

    mode: Annotated[
        Literal["linear", "both", "eventual"],
        key(
            "`linear`: the home of a client id decides who owns it; `eventual`, for comparison: a node first takes a lock and "
            "ends the channels that it finds in replicated rows; `both`: as `linear`, and those rows are written, for the time "
            "of a change from one to the other. Running nodes change from `linear` to `both`, and then to `eventual`; any other "
            "change needs a restart",
        ),
    ] = "linear"
    wait: Annotated[
        Seconds,
        key(
            "how long a new connection waits for the node that has its client id: for an answer and for the release together",
            least=0.1,
            most=60,
            restart=True,
        ),
    ] = Seconds(1)
    version_property: Annotated[
        str,
        key(
            "user property in which clients state when they have connected, in ms since 1970; it counts from a minute before the "
            "connection's own time up to now; empty: none"
        ),
    ] = ""
    lock: Annotated[
        Literal["local", "leader", "quorum", "all"],
        key("`eventual`: who gives out locks: the node itself, one core, more than half of the cores, or all", restart=True),
    ] = "quorum"
    lock_timeout: Annotated[
        Seconds, key("`eventual`: how long a lock is held at most, should its node be stuck", least=1, most=3600, restart=True)
    ] = Seconds(30)
