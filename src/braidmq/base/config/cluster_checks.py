"""Checks across the keys of a cluster: addresses, the secret, certificates, etcd, and what belongs to which role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from braidmq.base.config.addresses import is_any_host, is_loopback
from braidmq.base.config.cluster_settings import ClusterSettings
from braidmq.base.config.keys import Path, dotted, leaves
from braidmq.base.config.settings import Settings
from braidmq.base.config.single_values import check_address, check_name, check_pair, check_readable, check_target
from braidmq.base.errors import ConfigError

_SAME_HINT: Final = "set the same random text on all nodes of the cluster"
_OF_SEVERAL_CORES: Final = (
    *("etcd", "etcd_username", "etcd_password_file", "etcd_ca_file", "etcd_cert_file", "etcd_key_file"),
    *("initial_cores", "rpc_address"),
)


def check_cluster(settings: Settings, given: Mapping[Path, str]) -> list[str]:
    """Raise ConfigError for an invalid configuration; returns notes for the user. ``given``: keys that are set, by origin."""
    cluster = settings.cluster
    _check_cluster_files(cluster)
    if cluster.home_wait <= cluster.lease:
        hint = "a core that restarts within the lease must not cost a publisher its connection"
        raise ConfigError("cluster.home_wait", f"must be longer than cluster.lease ({cluster.lease:g} s)", hint)
    if settings.node.role == "replicant":
        _check_replicant(settings, given)
        return []
    if cluster.core_nodes:
        raise ConfigError("cluster.core_nodes", "belongs to replicants, and this node is a core", 'set node.role = "replicant"')
    if cluster.rpc_bind:
        address = check_address("cluster.rpc_bind", cluster.rpc_bind)
        if not cluster.secret and not is_loopback(address.host):
            problem = f"is missing, and other machines can reach cluster.rpc_bind ({cluster.rpc_bind})"
            raise ConfigError("cluster.secret", problem, _SAME_HINT)
    if cluster.store == "etcd":
        return _check_several_cores(settings)
    _refuse_several_cores(cluster, given, "belongs to a cluster with several cores", 'set cluster.store = "etcd", or remove it')
    return []


def _refuse_several_cores(cluster: ClusterSettings, given: Mapping[Path, str], problem: str, hint: str) -> None:
    defaults = ClusterSettings()
    for name in _OF_SEVERAL_CORES:
        if ("cluster", name) in given and getattr(cluster, name) != getattr(defaults, name):
            raise ConfigError(f"cluster.{name}", problem, hint)


def _check_several_cores(settings: Settings) -> list[str]:
    cluster = settings.cluster
    notes = check_etcd(cluster)
    if not cluster.rpc_bind:
        raise ConfigError("cluster.rpc_bind", "is empty, and other cores must reach this one", "set an address of this host")
    _check_names(settings.node.name, cluster)
    _check_rpc_address(cluster)
    return notes


def check_etcd(cluster: ClusterSettings) -> list[str]:
    """Raise ConfigError if etcd cannot be reached with these settings; returns notes for the user."""
    if not cluster.etcd:
        raise ConfigError("cluster.etcd", "is empty", 'list the addresses of etcd, such as ["10.0.0.1:2379"]')
    hosts = [check_target("cluster.etcd", each, "10.0.0.1:2379").host for each in cluster.etcd]
    _check_etcd_files(cluster)
    if cluster.etcd_username and not cluster.etcd_ca_file and not all(map(is_loopback, hosts)):
        return ["cluster.etcd_ca_file is empty: the password of etcd travels over the network without TLS"]
    return []


def _check_names(name: str, cluster: ClusterSettings) -> None:
    for each in cluster.initial_cores:
        check_name("cluster.initial_cores", each)
    if len(set(cluster.initial_cores)) < len(cluster.initial_cores):
        raise ConfigError("cluster.initial_cores", "names a core twice", "give each core a name of its own")
    if cluster.initial_cores and name not in cluster.initial_cores:
        raise ConfigError("cluster.initial_cores", f"does not contain this node ({name!r})", "add it, or correct node.name")


def _check_rpc_address(cluster: ClusterSettings) -> None:
    if cluster.rpc_address:
        address = check_target("cluster.rpc_address", cluster.rpc_address, "10.0.0.1:4370")
        if not cluster.secret and not is_loopback(address.host):
            problem = f"is missing, and cluster.rpc_address ({cluster.rpc_address}) is reached from other machines"
            raise ConfigError("cluster.secret", problem, _SAME_HINT)
    elif is_any_host(check_address("cluster.rpc_bind", cluster.rpc_bind).host):
        problem = f"is empty, and cluster.rpc_bind ({cluster.rpc_bind}) names no address that other nodes can connect to"
        raise ConfigError("cluster.rpc_address", problem, "set the address of this host, such as 10.0.0.1:4370")


def _check_etcd_files(cluster: ClusterSettings) -> None:
    if bool(cluster.etcd_username) != bool(cluster.etcd_password_file):
        missing = "etcd_password_file" if cluster.etcd_username else "etcd_username"
        raise ConfigError(f"cluster.{missing}", "is missing; a login needs a user and the file with its password")
    if cluster.etcd_password_file:
        check_readable("cluster.etcd_password_file", cluster.etcd_password_file)
    if bool(cluster.etcd_cert_file) != bool(cluster.etcd_key_file):
        missing = "etcd_key_file" if cluster.etcd_cert_file else "etcd_cert_file"
        raise ConfigError(f"cluster.{missing}", "is missing; etcd verifies this node by a certificate and its key")
    if cluster.etcd_cert_file:
        if not cluster.etcd_ca_file:
            raise ConfigError("cluster.etcd_ca_file", "is missing; a certificate needs TLS, and TLS the CA of etcd")
        check_pair(("cluster", "etcd_cert_file"), cluster.etcd_cert_file, cluster.etcd_key_file, "etcd_key_file")
    if cluster.etcd_ca_file:
        check_readable("cluster.etcd_ca_file", cluster.etcd_ca_file)


def _check_replicant(settings: Settings, given: Mapping[Path, str]) -> None:
    cluster = settings.cluster
    if cluster.store != "embedded":
        raise ConfigError("cluster.store", "belongs to a core: a replicant keeps no tables", "set it on the cores")
    _refuse_several_cores(cluster, given, "belongs to a core: a replicant does not need etcd", "set it on the cores")
    if not cluster.core_nodes:
        hint = 'list the cluster.rpc_bind of its core, such as ["10.0.0.1:4370"]'
        raise ConfigError("cluster.core_nodes", "is empty, and a replicant needs a core", hint)
    for each in cluster.core_nodes:
        address = check_target("cluster.core_nodes", each, "10.0.0.1:4370")
        if not cluster.secret and not is_loopback(address.host):
            raise ConfigError("cluster.secret", f"is missing, and the core {each} is on another machine", _SAME_HINT)
    defaults = {path: value for path, _, value in leaves(Settings())}
    for path, _, value in leaves(settings):
        # Without a database there is nothing to record, to retain or to serve: the core's settings decide.
        if path[0] == "history" and path in given and value != defaults.get(path) and (path[1] != "bind" or value):
            raise ConfigError(
                dotted(path), "belongs to a core: a replicant has no database and keeps no history", "set it on the core"
            )
    if cluster.rpc_bind:
        raise ConfigError("cluster.rpc_bind", "belongs to a core: no node connects to a replicant", "remove it")


def _check_cluster_files(cluster: ClusterSettings) -> None:
    names = ("cert_file", "key_file", "ca_file")
    missing = [name for name in names if not getattr(cluster, name)]
    if len(missing) == len(names):
        return
    if missing:
        raise ConfigError(
            f"cluster.{missing[0]}",
            "is missing; TLS between nodes needs a certificate, its key and the CA of the other nodes",
            "set cert_file, key_file and ca_file, or none of them",
        )
    check_pair(("cluster", "cert_file"), cluster.cert_file, cluster.key_file)
    check_readable("cluster.ca_file", cluster.ca_file)
