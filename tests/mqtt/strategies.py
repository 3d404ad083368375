"""Hypothesis strategies for packets: valid ones of each version, and ones with any value in every field."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from braidmq.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeOption,
    Unsuback,
    Unsubscribe,
    Will,
)
from braidmq.mqtt.properties import NO_PROPERTIES, PROPERTIES, WILL, Properties, WireType
from braidmq.mqtt.reasons import REASONS_OF

_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
texts = st.text(_characters, max_size=12)
topics = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=12)
binaries = st.binary(max_size=12)
packet_ids = st.integers(1, 65_535)
qos = st.integers(0, 2)

_VALUES: dict[WireType, st.SearchStrategy[Any]] = {
    WireType.BYTE: st.integers(0, 1),
    WireType.FLAG: st.booleans(),
    WireType.UINT16: st.integers(1, 65_535),
    WireType.UINT32: st.integers(1, 4_294_967_295),
    WireType.VARINT: st.integers(1, 268_435_455),
    WireType.BINARY: binaries,
    WireType.TEXT: texts,
    WireType.TEXT_PAIR: st.tuples(texts, texts),
}


def properties_of(place: int, **always: st.SearchStrategy[Any]) -> st.SearchStrategy[Properties]:
    """Properties that may be in the packet (or in `WILL`), with those in `always` never absent."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for rule in PROPERTIES.values():
        if place not in rule.packets or rule.name == "authentication_data":
            continue
        value = topics if rule.name == "response_topic" else _VALUES[rule.wire_type]
        if rule.name in ("subscription_identifiers", "user_properties"):
            fields[rule.name] = st.lists(value, max_size=3 if place in rule.repeats_in else 1).map(tuple)
        else:
            fields[rule.name] = value
    return st.fixed_dictionaries(always, optional={name: value for name, value in fields.items() if name not in always}).flatmap(
        _with_authentication_data if "authentication_method" in fields else _just_properties
    )


def _just_properties(fields: dict[str, Any]) -> st.SearchStrategy[Properties]:
    return st.just(Properties(**fields))


def _with_authentication_data(fields: dict[str, Any]) -> st.SearchStrategy[Properties]:
    if "authentication_method" not in fields:
        return st.just(Properties(**fields))
    return st.builds(Properties, authentication_data=st.none() | binaries, **{name: st.just(v) for name, v in fields.items()})


def _reasons(packet_type: PacketType) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(REASONS_OF[packet_type]))


def valid_packets(version: int) -> st.SearchStrategy[Packet]:
    """Packets that `version` can say without losing anything."""
    return st.one_of(_connects(version), publishes(version), *(_mqtt_5() if version == 5 else _mqtt_3(version)))


def _properties(version: int, place: int) -> st.SearchStrategy[Properties]:
    return properties_of(place) if version == 5 else st.just(NO_PROPERTIES)


def _connects(version: int) -> st.SearchStrategy[Connect]:
    wills = st.builds(Will, topics, binaries, qos, st.booleans(), _properties(version, WILL))
    connects = st.builds(
        Connect,
        client_id=texts,
        version=st.just(version),
        clean_start=st.booleans(),
        keep_alive=st.integers(0, 65_535),
        user_name=st.none() | texts,
        password=st.none() | binaries,
        will=st.none() | wills,
        properties=_properties(version, PacketType.CONNECT),
        bridge=st.booleans() if version < 5 else st.just(False),
    )
    if version == 5:
        return connects
    return connects.filter(lambda packet: packet.password is None or packet.user_name is not None)


def publishes(version: int) -> st.SearchStrategy[Publish]:
    """PUBLISH packets as a server or a client of `version` may send them."""
    properties = _properties(version, PacketType.PUBLISH)
    kinds = [
        st.builds(Publish, topics, binaries, retain=st.booleans(), properties=properties),
        st.builds(Publish, topics, binaries, st.integers(1, 2), st.booleans(), st.booleans(), packet_ids, properties),
    ]
    if version == 5:
        with_alias = properties_of(PacketType.PUBLISH, topic_alias=st.integers(1, 65_535))
        kinds.append(st.builds(Publish, st.just(""), binaries, properties=with_alias))
    return st.one_of(kinds)


def _mqtt_3(version: int) -> list[st.SearchStrategy[Packet]]:
    options = st.builds(SubscribeOption, texts.filter(bool), qos)
    return [
        st.builds(Connack, st.integers(1, 5)) | st.builds(Connack, st.just(0), st.booleans() if version == 4 else st.just(False)),
        st.builds(Puback, packet_ids),
        st.builds(Pubrec, packet_ids),
        st.builds(Pubrel, packet_ids),
        st.builds(Pubcomp, packet_ids),
        st.builds(Subscribe, packet_ids, st.lists(options, min_size=1, max_size=4)),
        st.builds(Suback, packet_ids, st.lists(st.sampled_from((0, 1, 2, 0x80)), min_size=1, max_size=4)),
        st.builds(Unsubscribe, packet_ids, st.lists(texts.filter(bool), min_size=1, max_size=4)),
        st.builds(Unsuback, packet_ids, st.just([])),
        st.sampled_from((Pingreq(), Pingresp(), Disconnect())),
    ]


def _mqtt_5() -> list[st.SearchStrategy[Packet]]:
    options = st.builds(SubscribeOption, texts.filter(bool), qos, st.booleans(), st.booleans(), st.integers(0, 2))
    p = PacketType
    subacks = st.lists(_reasons(p.SUBACK), min_size=1, max_size=4)
    unsubacks = st.lists(_reasons(p.UNSUBACK), min_size=1, max_size=4)
    return [
        st.builds(Connack, st.just(0), st.booleans(), properties_of(p.CONNACK)),
        st.builds(Connack, _reasons(p.CONNACK), st.just(False), properties_of(p.CONNACK)),
        st.builds(Puback, packet_ids, _reasons(p.PUBACK), properties_of(p.PUBACK)),
        st.builds(Pubrec, packet_ids, _reasons(p.PUBREC), properties_of(p.PUBREC)),
        st.builds(Pubrel, packet_ids, _reasons(p.PUBREL), properties_of(p.PUBREL)),
        st.builds(Pubcomp, packet_ids, _reasons(p.PUBCOMP), properties_of(p.PUBCOMP)),
        st.builds(Subscribe, packet_ids, st.lists(options, min_size=1, max_size=4), properties_of(p.SUBSCRIBE)),
        st.builds(Suback, packet_ids, subacks, properties_of(p.SUBACK)),
        st.builds(Unsubscribe, packet_ids, st.lists(texts.filter(bool), min_size=1, max_size=4), properties_of(p.UNSUBSCRIBE)),
        st.builds(Unsuback, packet_ids, unsubacks, properties_of(p.UNSUBACK)),
        st.builds(Disconnect, _reasons(p.DISCONNECT), properties_of(p.DISCONNECT)),
        st.builds(Auth, _reasons(p.AUTH), properties_of(p.AUTH, authentication_method=texts)),
        st.sampled_from((Pingreq(), Pingresp())),
    ]


def _wild_properties() -> st.SearchStrategy[Properties]:
    any_int, any_text = st.integers(-2, 2**33), st.text(max_size=4)
    values: dict[WireType, st.SearchStrategy[Any]] = {
        WireType.BYTE: any_int,
        WireType.FLAG: st.booleans(),
        WireType.UINT16: any_int,
        WireType.UINT32: any_int,
        WireType.VARINT: any_int,
        WireType.BINARY: st.sampled_from((b"", b"x", bytes(70_000))),
        WireType.TEXT: any_text,
        WireType.TEXT_PAIR: st.tuples(any_text, any_text),
    }
    fields = {
        rule.name: st.lists(values[rule.wire_type], max_size=2).map(tuple)
        if rule.name in ("subscription_identifiers", "user_properties")
        else values[rule.wire_type]
        for rule in PROPERTIES.values()
    }
    some_fields = st.lists(st.sampled_from(sorted(fields)), max_size=2, unique=True)
    return some_fields.flatmap(lambda names: st.builds(Properties, **{name: fields[name] for name in names}))


def wild_packets() -> st.SearchStrategy[Packet]:
    """Packets of the right Python types, whose values may break any rule."""
    text = st.text(max_size=4) | st.sampled_from(("", "+", "a/#", "\0", "\ud800", "x" * 70_000))
    data = st.sampled_from((b"", b"x", bytes(70_000)))
    number = st.integers(-1, 4) | st.sampled_from((255, 256, 65_535, 65_536))
    reason = st.integers(-1, 257)
    flag = st.booleans()
    properties = st.just(NO_PROPERTIES) | _wild_properties()
    will = st.none() | st.builds(Will, text, data, number, flag, properties)
    option = st.builds(SubscribeOption, text, number, flag, flag, number)
    return st.one_of(
        st.builds(Connect, text, st.integers(2, 6), flag, number, st.none() | text, st.none() | data, will, properties, flag),
        st.builds(Connack, reason, flag, properties),
        st.builds(Publish, text, data, number, flag, flag, st.none() | number, properties),
        *(st.builds(packet, number, reason, properties) for packet in (Puback, Pubrec, Pubrel, Pubcomp)),
        st.builds(Subscribe, number, st.lists(option, max_size=2), properties),
        st.builds(Suback, number, st.lists(reason, max_size=2), properties),
        st.builds(Unsubscribe, number, st.lists(text, max_size=2), properties),
        st.builds(Unsuback, number, st.lists(reason, max_size=2), properties),
        st.builds(Disconnect, reason, properties),
        st.builds(Auth, reason, properties),
    )
