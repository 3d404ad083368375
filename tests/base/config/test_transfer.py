"""A configuration that travels to a child process."""

from __future__ import annotations

from braidmq.base.config import sources
from braidmq.base.config.transfer import decode_config, encode_config


def test_a_configuration_arrives_as_it_was_sent() -> None:
    tables = {
        "session": {"queue_wait": "250ms"},
        "mqtt": {"packet_bytes_max": "2MiB"},
        "listeners": {"ws": {"a": {"bind": "127.0.0.1:0", "origins": ["https://a.example"]}}},
    }
    config = sources.from_tables(tables)

    received = decode_config(encode_config(config))

    assert received.settings == config.settings
    assert received.rows() == config.rows()
    assert type(received.settings.session.queue_wait) is type(config.settings.session.queue_wait)
