"""Messages for a shared group that its cursor does not cover: those that are not recorded, and QoS 0.

They go to one member at once, and are dropped if no member accepts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.broker.shared.ports import GroupServices
from braidmq.lane.flows.lent_flow import LentFlow
from braidmq.lane.path.message import Message
from braidmq.lane.routing.delivery_rules import copy_qos, copy_retain

if TYPE_CHECKING:
    from braidmq.broker.shared.group import Group


def pass_on(group: Group, message: Message, services: GroupServices) -> None:
    """Deliver the message to the best member of the group, as an unrecorded one."""
    state = services.state
    member = group.choose(message)
    if member is None:
        if message.qos:
            state.counters.dropped_queue_full += 1
        else:
            state.counters.dropped_absent += 1
        state.drop("queue_full" if message.qos else "absent", group.key[0], message.topic)
        return
    original = message.unrecorded() if message.timestamp else message
    is_asked = services.asks_hooks and not isinstance(member.flow, LentFlow)  # a node asks its own hooks
    given = services.ask_hooks(original, member.flow.client_id) if is_asked else original
    if given is not None:
        member.flow.deliver(given, member, copy_qos(given, member), copy_retain(given, member))
