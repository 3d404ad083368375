"""Values of durable sessions, made up by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from braidmq.broker.ports import RELEASED, SENT, CursorRow, InFlight, SessionRow, SubscriptionRow
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import Properties

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
positions = st.integers(0, 2**56 - 1)
times = st.floats(0, 4e9)
packet_ids = st.integers(1, 65_535)

inflights = st.builds(
    InFlight,
    packet_ids,
    st.integers(0, 2),
    st.sampled_from((SENT, RELEASED)),
    st.booleans(),
    st.integers(0, 4095),
    positions,
    st.just(b"") | st.binary(max_size=40),
)
cursors = st.builds(
    CursorRow,
    st.lists(positions, max_size=5).map(tuple),
    st.lists(inflights, max_size=6).map(tuple),
)
wills = st.builds(
    Will,
    texts,
    st.binary(max_size=40),
    st.integers(0, 2),
    st.booleans(),
    st.builds(
        Properties,
        payload_format_indicator=st.none() | st.integers(0, 1),
        message_expiry_interval=st.none() | st.integers(0, 2**32 - 1),
        content_type=st.none() | texts,
        correlation_data=st.none() | st.binary(max_size=200),
        will_delay_interval=st.none() | st.integers(0, 2**32 - 1),
        user_properties=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    ),
)


def session_rows(client_id: str) -> st.SearchStrategy[SessionRow]:
    """Rows of this client's session."""
    expiries = st.integers(0, 2**32 - 1)
    guards = st.integers(0, 2**64 - 1)
    return st.builds(SessionRow, st.just(client_id), st.none() | texts, expiries, st.booleans(), times, times, guards)


@st.composite
def subscription_rows(draw: st.DrawFn, written: st.SearchStrategy[str] = texts) -> SubscriptionRow:
    """Rows of subscriptions with one of these filters."""
    shards = draw(st.integers(0, 4))
    places = st.lists(positions, min_size=shards, max_size=shards).map(tuple)
    return SubscriptionRow(
        draw(written),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.binary(max_size=5)),
        draw(places),
        draw(st.none() | places),
    )
