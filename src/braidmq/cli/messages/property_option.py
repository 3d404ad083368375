"""The option ``-D COMMAND IDENTIFIER VALUE`` of the Mosquitto clients: MQTT 5 properties for any packet they send."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import click

from braidmq.cli.errors import CommandFailed
from braidmq.mqtt.packets import PacketType
from braidmq.mqtt.properties import PROPERTIES, WILL, Properties, PropertyRule, WireType

COMMANDS: Final[dict[str, int]] = {
    "connect": PacketType.CONNECT,
    "publish": PacketType.PUBLISH,
    "will": WILL,
    "subscribe": PacketType.SUBSCRIBE,
    "unsubscribe": PacketType.UNSUBSCRIBE,
    "disconnect": PacketType.DISCONNECT,
}
# Mosquitto uses the names of the specification; a plural name of ours holds several values.
_SINGULAR: Final = {"user_properties": "user-property", "subscription_identifiers": "subscription-identifier"}
_RULES: Final[dict[str, PropertyRule]] = {
    _SINGULAR.get(rule.name, rule.name.replace("_", "-")): rule for rule in PROPERTIES.values()
}
_WIDTHS: Final = {WireType.BYTE: 8, WireType.FLAG: 1, WireType.UINT16: 16, WireType.UINT32: 32, WireType.VARINT: 28}
_SEPARATOR: Final = "\0"  # cannot be part of an argument


class CommandWithProperties(click.Command):
    """A command whose ``-D`` takes three arguments, or four for ``user-property``, which click does not support."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the arguments of each ``-D`` into one before click sees them."""
        valued = {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.count
            for name in parameter.opts
        }
        joined: list[str] = []
        rest = list(args)
        while rest:
            arg = rest.pop(0)
            joined.append(arg)
            if arg in ("-D", "--property"):
                count = 4 if rest[1:2] == ["user-property"] else 3
                joined.append(_SEPARATOR.join(rest[:count]))
                del rest[:count]
            elif rest and _takes_next(arg, valued):
                joined.append(rest.pop(0))
        return super().parse_args(ctx, joined)


def _takes_next(arg: str, valued: set[str]) -> bool:
    """Whether the next argument is the value of this one, and so not an option."""
    if arg.startswith("--"):
        return arg in valued
    if not arg.startswith("-"):
        return False
    # In a group such as -rq, the first letter that takes a value gets the rest, or else the next argument.
    taking = [at for at, letter in enumerate(arg) if f"-{letter}" in valued]
    return bool(taking) and taking[0] == len(arg) - 1


def parse_properties(options: Sequence[str]) -> dict[str, Properties]:
    """The properties of each command from all ``-D`` options; raises CommandFailed."""
    collected: dict[str, dict[str, Any]] = defaultdict(dict)
    for option in options:
        command, *rest = option.split(_SEPARATOR)
        if command not in COMMANDS:
            raise CommandFailed(f"-D {command}: the command must be one of {', '.join(COMMANDS)}")
        if len(rest) < 2 or (rest[0] == "user-property" and len(rest) < 3):
            raise CommandFailed(f"-D {command} {' '.join(rest)}: a value is missing")
        _collect(collected[command], command, *rest)
    return {command: Properties(**values) for command, values in collected.items()}


def _collect(values: dict[str, Any], command: str, identifier: str, *texts: str) -> None:
    where = f"-D {command} {identifier}"
    rule = _RULES.get(identifier)
    if rule is None or COMMANDS[command] not in rule.packets:
        allowed = ", ".join(name for name, each in _RULES.items() if COMMANDS[command] in each.packets)
        raise CommandFailed(f"{where}: not a property of {command}, which has {allowed}")
    if rule.wire_type is WireType.TEXT_PAIR:
        values[rule.name] = (*values.get(rule.name, ()), texts)
        return
    if rule.name in values:
        raise CommandFailed(f"{where}: given twice")
    value = _read(rule, texts[0], where)
    values[rule.name] = (value,) if rule.name in _SINGULAR else value


def _read(rule: PropertyRule, text: str, where: str) -> object:
    if rule.wire_type is WireType.TEXT:
        return text
    if rule.wire_type is WireType.BINARY:
        return text.encode("utf-8", "surrogateescape")
    lowest = rule.lowest or 0
    highest = 2 ** _WIDTHS[rule.wire_type] - 1 if rule.highest is None else rule.highest
    if not (text.isascii() and text.isdecimal() and lowest <= int(text) <= highest):
        raise CommandFailed(f"{where}: must be a number from {lowest} to {highest}, not {text!r}")
    return bool(int(text)) if rule.wire_type is WireType.FLAG else int(text)
