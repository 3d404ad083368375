"""Three cores, each with a member of etcd, and two replicants, all on machines of their own, in a network that can be parted."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from braidmq.cluster.corestore.etcd.program import EtcdAddresses, etcd_command, etcd_version, find_etcd
from tests.scenarios.cluster.cluster import SECRET, NodeProcess
from tests.support.etcd import EtcdMember
from tests.support.machines import Machines

CORES = (1, 2, 3)
REPLICANTS = (4, 5)
_MQTT, _RPC, _CLIENTS, _PEERS, _HEALTH = 1883, 4370, 2379, 2380, 2381


class CoresOnMachines:
    """A context manager. The machines have the numbers 1 to 5; etcd and the cores are on the first three."""

    def __init__(self, folder: Path, **cluster: object) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.machines = Machines(len(CORES) + len(REPLICANTS))
        self._shared: Mapping[str, object] = {"secret": SECRET, **cluster}
        self._etcd: list[EtcdMember] = []
        self.nodes: dict[int, NodeProcess] = {}

    @property
    def replicants(self) -> list[NodeProcess]:
        """The nodes for clients."""
        return [self.nodes[machine] for machine in REPLICANTS]

    def __enter__(self) -> CoresOnMachines:
        try:
            self._stack.enter_context(self.machines)
            self._start_etcd()
            for number in CORES:
                self.nodes[number] = self._node(f"core{number}", number, self._core_table(number))
            addresses = [f"{self.machines.address(number)}:{_RPC}" for number in CORES]
            for machine in REPLICANTS:
                table = {**self._shared, "core_nodes": addresses}
                self.nodes[machine] = self._node(f"r{machine}", machine, table, role="replicant")
            for node in self.nodes.values():
                node.launch()
            for node in self.nodes.values():
                node.process.await_port()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _node(self, name: str, machine: int, cluster: Mapping[str, object], **node: object) -> NodeProcess:
        tables = {"node": node, "cluster": cluster}
        host, within = self.machines.address(machine), self.machines.within(machine)
        return NodeProcess(self._folder, name, tables, _MQTT, host=host, within=within)

    def _core_table(self, number: int) -> Mapping[str, object]:
        address = f"{self.machines.address(number)}:{_RPC}"
        return {
            **self._shared,
            "store": "etcd",
            "etcd": [f"{self.machines.address(each)}:{_CLIENTS}" for each in CORES],
            "initial_cores": [f"core{each}" for each in CORES],
            "rpc_bind": address,
            "rpc_address": address,
        }

    def _start_etcd(self) -> None:
        program = find_etcd()
        assert program is not None
        version = etcd_version(program)
        hosts = {f"e{number}": self.machines.address(number) for number in CORES}
        addresses = {name: EtcdAddresses(f"{host}:{_CLIENTS}", f"{host}:{_PEERS}") for name, host in hosts.items()}
        for number, (name, host) in zip(CORES, hosts.items(), strict=True):
            health = f"{host}:{_HEALTH}"
            command = etcd_command(program, version, name, self._folder / name, addresses)
            command += [f"--listen-metrics-urls=http://{health}", "--log-level=error", "--election-timeout=500"]
            member = EtcdMember(
                [*self.machines.within(number), *command, "--heartbeat-interval=50"],
                addresses[name].clients,
                health,
                self._folder / name,
                self._folder / f"{name}.txt",
            )
            self._etcd.append(member)
            member.launch()
        for member in self._etcd:
            member.wait_until_up()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(subprocess.SubprocessError):
            self.machines.heal()
        for node in self.nodes.values():
            node.close()
        for member in self._etcd:
            member.kill()
        self._stack.close()
