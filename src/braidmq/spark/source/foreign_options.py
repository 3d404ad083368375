"""Options of other sources and sinks, with the braidmq options that replace them.

A query moved from Kafka by changing only the format would otherwise read from another start, without a limit or as another user,
with only a warning. So these options are rejected, and the message names ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SECURITY: Final = "use user and password, or token; and tls, tls.caFile, tls.certFile, tls.keyFile"
_NO_KAFKA: Final = "braidmq is not a Kafka client: use servers, user, password, token, tls.* and timeout; remove this one"

# By lower-case name. A name that ends with a dot matches all names that begin with it.
READ: Final[Mapping[str, str]] = {
    "subscribe": 'use topicFilter, or load("plant/#")',
    "subscribepattern": "use topicFilter: + stands for one level of a topic, # for all that follow",
    "assign": "use topicFilter; all shards are read, and startingOffsets may have a position for each of them",
    "topic": 'use topicFilter, or load("plant/#")',
    "topics": 'use topicFilter with a JSON list such as ["a/#", "b/+"]',
    "topicspattern": "use topicFilter: + stands for one level of a topic, # for all that follow",
    "kafka.bootstrap.servers": "use servers with the address of the history service, host:8815",
    "bootstrap.servers": "use servers with the address of the history service, host:8815",
    "brokerurl": "use servers with the address of the history service, host:8815",
    "kafka.group.id": "use readerName; the broker shows the lag under this name",
    "group.id": "use readerName; the broker shows the lag under this name",
    "groupidprefix": "use readerName; the broker shows the lag under this name",
    "clientid": "use readerName, which is the client id in access rules",
    "username": "use user",
    "kafka.security.": _SECURITY,
    "kafka.sasl.": _SECURITY,
    "kafka.ssl.": _SECURITY,
    "kafka.": _NO_KAFKA,
    "startingoffsetsbytimestamp": "use startingTimestamp, which is one moment for all shards",
    "startingoffsetsbytimestampstrategy": "use startingTimestamp; a future time means now",
    "endingoffsetsbytimestamp": "use endingTimestamp, which is one moment for all shards",
    "startingversion": "use startingOffsets or startingTimestamp",
    "maxoffsetspertrigger": "use maxRowsPerTrigger",
    "maxfilespertrigger": "use maxRowsPerTrigger or maxBytesPerTrigger",
    "minoffsetspertrigger": "use minRowsPerTrigger, with maxTriggerDelay",
    "maxrecordsperpartition": "use maxRowsPerPartition or maxBytesPerPartition",
    "includeheaders": "use the column user_properties, which is always included; the option columns selects others",
    "kafkaconsumer.polltimeoutms": "use timeout",
    "fetchoffset.": "use retryTimeout",
}
WRITE: Final[Mapping[str, str]] = {
    "topic": "give each row a column topic, such as lit('plant/7') AS topic",
    "kafka.bootstrap.servers": "use servers with the address of the MQTT broker, mqtt://host:1883",
    "bootstrap.servers": "use servers with the address of the MQTT broker, mqtt://host:1883",
    "brokerurl": "use servers with the address of the MQTT broker, mqtt://host:1883",
    "username": "use user",
    "kafka.security.": _SECURITY,
    "kafka.sasl.": _SECURITY,
    "kafka.ssl.": _SECURITY,
    "kafka.": _NO_KAFKA,
    "includeheaders": "give each row a column user_properties",
}


def remedy_for(name: str, table: Mapping[str, str]) -> str | None:
    """What to use instead of an option, by its lower-case name; None if it is not in the table."""
    found = table.get(name)
    if found is not None:
        return found
    return next((remedy for prefix, remedy in table.items() if prefix.endswith(".") and name.startswith(prefix)), None)
