"""The services that the broker provides to its shared groups."""

from __future__ import annotations

from unittest import mock

from braidmq.broker.connection.backlog import BacklogFeeder
from braidmq.broker.shared.cursor import GroupCursor
from tests.support.simulator.world import World


def test_a_clients_turn_wakes_a_bounded_number_of_groups_waiting_for_it() -> None:
    with World() as world:
        world.connect("member")
        session = world.broker.sessions.get("member")
        assert session is not None
        assert session.connection is not None
        groups = [mock.Mock(spec=GroupCursor) for _ in range(150)]
        session.shares = dict.fromkeys(groups)

        backlog = session.connection.context.backlog
        assert isinstance(backlog, BacklogFeeder)
        backlog.give(session.connection)
        woken = sum(group.wake.called for group in groups)
        world.settle()

        assert woken == 64
        assert [group.wake.call_count for group in groups] == [1] * 150
        assert session.shares is None
