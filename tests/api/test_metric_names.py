"""The table of metrics, the page about it, and what a real node exports must say the same."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from braidmq.api.metric_names import METRICS
from braidmq.testing import Broker

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_lists_every_metric_with_its_type_and_meaning() -> None:
    rows = re.findall(r"^\| `braidmq_(\w+)` \| (\w+) \| (.+) \|$", (DOCS / "metrics.md").read_text(), re.MULTILINE)

    assert {stem: (kind, meaning) for stem, kind, meaning in rows} == {
        stem: (name.kind, name.help) for stem, name in METRICS.items()
    }


def test_a_node_exports_every_metric_of_the_table_and_no_other() -> None:
    with Broker() as broker:
        assert broker.node is not None
        with urllib.request.urlopen(f"http://{broker.node.api_address}/metrics") as answer:
            text = answer.read().decode()

    exported = set(re.findall(r"^braidmq_(?!process_)(\w+) ", text, re.MULTILINE))
    assert exported == METRICS.keys() - {"cert_expiry_at"}, "a node without certificates has everything but their expiry"
    assert "untyped" not in text


def test_the_relabel_rule_gives_the_names_of_existing_dashboards() -> None:
    rule = (DOCS / "prometheus-relabel.yml").read_text()
    pattern = re.search(r"regex: (\S+)", rule)
    replacement = re.search(r"replacement: (\S+)", rule)
    assert pattern is not None
    assert replacement is not None

    renamed = {re.sub(f"^{pattern[1]}$", replacement[1].replace("$1", r"\1"), f"braidmq_{stem}") for stem in METRICS}

    known = {"emqx_connections_count", "emqx_messages_received", "emqx_messages_dropped_no_subscribers", "emqx_client_connected"}
    known |= {"emqx_delivery_dropped_queue_full", "emqx_session_takenover", "emqx_authorization_deny", "emqx_bytes_sent"}
    assert known <= renamed
