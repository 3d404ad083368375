"""``braidmq ctl cluster init``: moves the tables of a single node, which is stopped, to etcd."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from braidmq.base.config import sources
from braidmq.base.config.cluster_checks import check_etcd
from braidmq.base.config.settings import Settings
from braidmq.base.errors import Unavailable
from braidmq.cli.ctl.app import SHARED
from braidmq.cli.errors import CommandFailed

if TYPE_CHECKING:
    from braidmq.cluster.corestore.contract import CoreStore


@click.command("init")
@click.option("--etcd", help="Addresses of etcd: HOST:PORT[,HOST:PORT...].  [default: cluster.etcd of the configuration]")
@click.option("-c", "--config", "config_file", type=click.Path(path_type=Path), help="The node's configuration file.")
@click.option("--data-dir", help="The node's data directory.  [default: that of the configuration]")
@click.option("--etcd-username", help="User of etcd.")
@click.option("--etcd-password-file", help="File with the user's password.")
@click.option("--etcd-ca-file", help="CA certificates (PEM) that verify etcd; turns TLS on.")
@click.option("--etcd-cert-file", help="Certificate (PEM) to show etcd.")
@click.option("--etcd-key-file", help="Its private key (PEM).")
@click.pass_context
def init(
    context: click.Context, /, etcd: str | None, config_file: Path | None, data_dir: str | None, **given: str | None
) -> None:
    """Move the tables of a single node to etcd: members, registration ids, settings and bans, and a map of its shards.

    The node must be stopped. Afterwards set cluster.store = "etcd" and cluster.etcd, and start it: it is the only core of the
    cluster, and cores cannot be added yet. The command refuses to touch a cluster that exists in etcd. After a crash run it
    again: it continues.
    """
    shared = context.find_root().meta.get(SHARED, {})
    config_file = config_file or (Path(shared["config_file"]) if shared.get("config_file") else None)
    data_dir = data_dir or shared.get("data_dir")
    settings = sources.load(config_file).settings
    cluster = settings.cluster
    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if etcd is not None:
        changed["etcd"] = tuple(etcd.split(","))
    settings = msgspec.structs.replace(settings, cluster=msgspec.structs.replace(cluster, **changed))
    if data_dir:
        settings = msgspec.structs.replace(settings, node=msgspec.structs.replace(settings.node, data_dir=data_dir))
    check_etcd(settings.cluster)
    try:
        click.echo(asyncio.run(_move(settings)))
    except Unavailable as problem:
        raise CommandFailed(f"{problem.detail}; run this command again to continue") from None


async def _move(settings: Settings) -> str:
    from braidmq.access.local import read_bans
    from braidmq.cluster.cores.several_cores import make_store
    from braidmq.cluster.corestore.embedded import EmbeddedCoreStore
    from braidmq.cluster.membership.administration_rows import AdministrationTables
    from braidmq.cluster.membership.moving import move_tables
    from braidmq.cluster.membership.shard_map import deal
    from braidmq.net.proto_v1 import VERSION
    from braidmq.storage.engine.mark import mark_path
    from braidmq.storage.log import DurableLog

    node, data_dir = settings.node, Path(settings.node.data_dir)
    if not mark_path(data_dir / "log").exists():
        raise CommandFailed(f"{data_dir} has no log: a new cluster is created by its first core, with cluster.initial_cores")
    overrides = sources.read_overrides(data_dir)
    kept = {name: sources.shared_override(name, value) for name, value in overrides.items() if sources.is_shared(name)}
    bans = read_bans(data_dir)
    log = await asyncio.to_thread(DurableLog.open, data_dir, settings.history)
    try:
        log.start(asyncio.get_running_loop().call_soon_threadsafe)
        source = EmbeddedCoreStore(log)
        await _check_name(source, node.name)
        await AdministrationTables(source).adopt(kept, bans)
        target = await make_store(settings)
        try:
            moved = await move_tables(source, target, deal(log.log_id, [node.name], log.shards), VERSION)
        finally:
            await target.close()
    finally:
        log.close()
    if moved.is_in_use:
        return f"the cluster {node.cluster} in etcd is that of this node and is in use already; nothing was changed"
    return (
        f"moved {moved.rows} rows of {node.name} to the cluster {node.cluster} in etcd; "
        'now set cluster.store = "etcd" and cluster.etcd in the node\'s configuration, and start it'
    )


async def _check_name(source: CoreStore, name: str) -> None:
    """Raise CommandFailed if the node has run under another name: its configuration is needed."""
    from braidmq.cluster.membership.members import Members
    from braidmq.cluster.protocol.roles import CORE

    names = [each.name for each in await Members(source, lambda: 0).alive() if each.role == CORE]
    if names and name not in names:
        raise CommandFailed(f"the node has run as {', '.join(names)}, and the configuration says {name}: name its file with -c")
