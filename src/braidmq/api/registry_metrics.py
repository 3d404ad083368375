"""The metrics of the registry of client ids."""

from __future__ import annotations

from typing import Final

from braidmq.api.metric_name import MetricName, counter, gauge

REGISTRY_METRICS: Final[dict[str, MetricName]] = {
    "registry_clients_count": gauge(
        "Client ids in this core's registry, those that ended lately included.", "cluster.registered", is_summed=False
    ),
    "registry_claims_waiting_count": gauge(
        "Claims that wait for the older channel of their client id.", "cluster.claims_waiting", is_summed=False
    ),
    "registry_happy_endings": counter("Claims that were registered as the newest of their client id.", "cluster.happy_endings"),
    "registry_happy_fails": counter("Claims that found a newer connection when they arrived.", "cluster.happy_fails"),
    "registry_expensive_fails": counter(
        "Claims that a newer connection has overtaken before they were granted.", "cluster.expensive_fails"
    ),
    "registry_restarts": counter("Restarts of claims whose predecessor had changed.", "cluster.restarts"),
    "registry_aborts": counter("Claims rejected because they were restarted too often.", "cluster.aborts"),
    "registry_claims_late": counter("Claims that arrived after their deadline.", "cluster.late"),
    "registry_claims_full": counter("Claims rejected because too many wait.", "cluster.full"),
    "registry_claims_misdated": counter(
        "Claims of an earlier term, or with a time that no clock of the cluster shows yet.", "cluster.misdated"
    ),
    "registry_claims_outdated": counter(
        "CONNECTs on this node rejected without a claim, because it has claimed for a newer connection.", "cluster.outdated"
    ),
    "registry_probes": counter("Nodes asked whether they are there, before a takeover.", "cluster.probes"),
    "registry_takeovers": counter("Grants of client ids that another channel had.", "cluster.takeovers"),
    "registry_takeovers_seconds": counter("The time that these took, from claim to grant, in total.", "cluster.takeovers_s"),
    "registry_takeovers_within_10ms": counter("Those that took at most 10 ms.", "cluster.takeovers_10ms"),
    "registry_takeovers_within_100ms": counter("Those that took at most 100 ms.", "cluster.takeovers_100ms"),
    "registry_takeovers_within_1s": counter("Those that took at most a second.", "cluster.takeovers_1s"),
    "registry_swept": counter("Entries that the sweep has removed, because their nodes did not know them.", "cluster.swept"),
    "registry_found": counter("Channels that the sweep has found on nodes, and that the registry lacked.", "cluster.found"),
}
