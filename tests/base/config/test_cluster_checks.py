"""What must hold between the keys of a cluster: addresses, the secret, certificates, and what a replicant has no use for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from braidmq.base.config import sources as config
from braidmq.base.errors import ConfigError
from tests.support.certificates import Authority

REPLICANT = {"role": "replicant", "name": "r1"}


def load(**tables: Any) -> config.Config:
    return config.from_tables({"listeners": {"tcp": {"x": {"bind": "127.0.0.1:0"}}}, **tables})


def refusal(**tables: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(**tables)
    return caught.value


@pytest.mark.parametrize("bind", ["0.0.0.0:4370", ":4370", "192.0.2.1:4370", "core.example:4370"])
def test_a_core_that_other_machines_reach_needs_a_secret(bind: str) -> None:
    problem = refusal(cluster={"rpc_bind": bind})

    assert problem.key == "cluster.secret"
    assert bind in problem.detail
    assert load(cluster={"rpc_bind": bind, "secret": "s" * 20}).settings.cluster.rpc_bind == bind


@pytest.mark.parametrize("bind", ["127.0.0.1:4370", "[::1]:4370", "localhost:4370"])
def test_a_core_on_loopback_needs_no_secret(bind: str) -> None:
    assert load(cluster={"rpc_bind": bind}).notes == []


def test_a_core_has_no_port_for_nodes_unless_it_is_given_one() -> None:
    assert load().settings.cluster.rpc_bind == ""


def test_the_port_for_nodes_must_be_a_port_of_its_own() -> None:
    problem = refusal(cluster={"rpc_bind": "127.0.0.1:5000"}, api={"bind": "127.0.0.1:5000"})

    assert problem.key == "cluster.rpc_bind"
    assert "taken by api.bind" in problem.detail


def test_a_core_has_no_core_nodes() -> None:
    assert refusal(cluster={"core_nodes": ["127.0.0.1:4370"]}).key == "cluster.core_nodes"


def test_a_replicant_needs_a_core() -> None:
    assert refusal(node=REPLICANT).key == "cluster.core_nodes"


@pytest.mark.parametrize("address", ["core", ":4370", "127.0.0.1:0", "10.0.0.1"])
def test_a_core_node_has_a_host_and_a_port(address: str) -> None:
    problem = refusal(node=REPLICANT, cluster={"core_nodes": [address], "secret": "s"})

    assert problem.key == "cluster.core_nodes"
    assert address in problem.detail


def test_a_replicant_of_a_core_on_another_machine_needs_the_secret() -> None:
    assert refusal(node=REPLICANT, cluster={"core_nodes": ["10.0.0.1:4370"]}).key == "cluster.secret"
    assert load(node=REPLICANT, cluster={"core_nodes": ["10.0.0.1:4370"], "secret": "s"}).notes == []


@pytest.mark.parametrize(
    ("key", "value"), [("topics", ["plant/#"]), ("retention", "1d"), ("shards", 8), ("layout", "hashed"), ("bind", "127.0.0.1:1")]
)
def test_a_replicant_refuses_keys_that_need_a_database(key: str, value: object) -> None:
    problem = refusal(node=REPLICANT, cluster={"core_nodes": ["127.0.0.1:4370"]}, history={key: value})

    assert problem.key == f"history.{key}"
    assert "no database" in problem.detail


def test_a_replicant_may_say_that_it_has_no_history_service() -> None:
    assert load(node=REPLICANT, cluster={"core_nodes": ["127.0.0.1:4370"]}, history={"bind": ""}).notes == []


def test_no_node_connects_to_a_replicant() -> None:
    tables = {"core_nodes": ["127.0.0.1:4370"], "rpc_bind": "127.0.0.1:4371"}

    assert refusal(node=REPLICANT, cluster=tables).key == "cluster.rpc_bind"


def test_publishers_wait_longer_than_a_lease() -> None:
    assert refusal(cluster={"lease": "15s", "home_wait": "15s"}).key == "cluster.home_wait"


@pytest.mark.parametrize("missing", ["cert_file", "key_file", "ca_file"])
def test_tls_between_nodes_needs_all_its_files(tmp_path: Path, missing: str) -> None:
    files = tls_files(tmp_path)

    problem = refusal(cluster={name: file for name, file in files.items() if name != missing})

    assert problem.key == f"cluster.{missing}"
    assert load(cluster=files).notes == []


def test_a_ca_that_does_not_exist_is_named(tmp_path: Path) -> None:
    problem = refusal(cluster={**tls_files(tmp_path), "ca_file": str(tmp_path / "nowhere.pem")})

    assert problem.key == "cluster.ca_file"
    assert "nowhere.pem" in problem.detail


def tls_files(folder: Path) -> dict[str, str]:
    authority = Authority(folder)
    pair = authority.server("node.example")
    return {"cert_file": pair.cert_file, "key_file": pair.key_file, "ca_file": authority.cert_file}


# -- several cores -----------------------------------------------------------------------------------------------------

CORE = {"name": "core1"}
SEVERAL = {"store": "etcd", "etcd": ["127.0.0.1:2379"], "rpc_bind": "127.0.0.1:4370", "initial_cores": ["core1", "core2"]}


def refused_key(**cluster: Any) -> str:
    return refusal(node=CORE, cluster={**SEVERAL, **cluster}).key


def test_one_of_several_cores_needs_etcd_and_an_address() -> None:
    loaded = load(node=CORE, cluster=SEVERAL)

    assert loaded.settings.cluster.store == "etcd"
    assert loaded.notes == []


@pytest.mark.parametrize("etcd", [[], ["etcd"], [":2379"], ["127.0.0.1:0"]])
def test_etcd_is_reached_at_hosts_and_ports(etcd: list[str]) -> None:
    assert refused_key(etcd=etcd) == "cluster.etcd"


def test_other_cores_must_reach_this_one() -> None:
    assert refused_key(rpc_bind="") == "cluster.rpc_bind"
    assert refused_key(rpc_bind="0.0.0.0:4370", secret="s" * 20) == "cluster.rpc_address"
    assert refused_key(rpc_bind=":4370", secret="s" * 20) == "cluster.rpc_address"
    assert refused_key(rpc_address="10.0.0.1") == "cluster.rpc_address"

    loaded = load(node=CORE, cluster={**SEVERAL, "rpc_bind": ":4370", "rpc_address": "10.0.0.1:4370", "secret": "s" * 20})

    assert loaded.settings.cluster.rpc_address == "10.0.0.1:4370"


def test_an_address_that_other_machines_reach_needs_a_secret() -> None:
    assert refused_key(rpc_address="10.0.0.1:4370") == "cluster.secret"


def test_the_cores_of_a_new_cluster_are_named_once_and_contain_this_one() -> None:
    assert (
        "does not contain this node ('core1')"
        in refusal(node=CORE, cluster={**SEVERAL, "initial_cores": ["core2", "core3"]}).detail
    )
    assert refused_key(initial_cores=["core1", "core2", "core1"]) == "cluster.initial_cores"
    assert refused_key(initial_cores=["core1", "core/2"]) == "cluster.initial_cores"


@pytest.mark.parametrize(
    ("key", "value"),
    [("etcd", ["10.0.0.1:2379"]), ("initial_cores", ["core1"]), ("rpc_address", "10.0.0.1:4370"), ("etcd_username", "u")],
)
@pytest.mark.parametrize("node", [CORE, REPLICANT])
def test_keys_of_several_cores_need_the_store_of_several_cores(node: dict[str, str], key: str, value: object) -> None:
    cores = {"core_nodes": ["127.0.0.1:4370"]} if node is REPLICANT else {}

    assert refusal(node=node, cluster={key: value, **cores}).key == f"cluster.{key}"


def test_a_replicant_has_no_use_for_etcd() -> None:
    assert refusal(node=REPLICANT, cluster={"store": "etcd", "core_nodes": ["127.0.0.1:4370"]}).key == "cluster.store"


def test_a_login_at_etcd_needs_a_user_and_a_file_that_can_be_read(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")

    assert refused_key(etcd_username="braidmq") == "cluster.etcd_password_file"
    assert refused_key(etcd_password_file=str(password)) == "cluster.etcd_username"
    assert refused_key(etcd_username="braidmq", etcd_password_file=str(tmp_path / "none")) == "cluster.etcd_password_file"
    assert load(node=CORE, cluster={**SEVERAL, "etcd_username": "b", "etcd_password_file": str(password)}).notes == []


def test_a_password_that_travels_without_tls_is_noted(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    login = {"etcd": ["10.0.0.1:2379"], "etcd_username": "braidmq", "etcd_password_file": str(password)}

    [note] = load(node=CORE, cluster={**SEVERAL, **login}).notes

    assert note.startswith("cluster.etcd_ca_file is empty")


def test_the_certificate_for_etcd_needs_its_key_and_the_ca_of_etcd(tmp_path: Path) -> None:
    files = tls_files(tmp_path)
    cert, key, ca = ({f"etcd_{name}": files[name]} for name in ("cert_file", "key_file", "ca_file"))

    assert refused_key(**cert, **ca) == "cluster.etcd_key_file"
    assert refused_key(**key, **ca) == "cluster.etcd_cert_file"
    assert refused_key(**cert, **key) == "cluster.etcd_ca_file"
    assert refused_key(etcd_ca_file=str(tmp_path / "nowhere.pem")) == "cluster.etcd_ca_file"
    assert refused_key(**ca, etcd_cert_file=files["cert_file"], etcd_key_file=files["ca_file"]) == "cluster.etcd_cert_file"
    assert load(node=CORE, cluster={**SEVERAL, **cert, **key, **ca}).notes == []
