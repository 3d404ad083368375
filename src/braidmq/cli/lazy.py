"""Groups that import a command only when it is used, so that no command slows down or breaks another."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

import click

# `module:command`, and the help line of the command.
Entry = tuple[str, str]


class LazyGroup(click.Group):
    """Has the names and help lines of its commands; imports a command only to run it."""

    def __init__(
        self,
        *arguments: object,
        entries: Mapping[str, Entry],
        when_missing: Callable[[str], str],
        unlisted: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        """`when_missing` returns the error message for a module that is not installed.

        `unlisted`: commands that the help does not show, as `module:command`.
        """
        super().__init__(*arguments, **more)  # type: ignore[arg-type]
        self._entries = entries
        self._when_missing = when_missing
        self._modules = {name: module for name, (module, _) in entries.items()} | dict(unlisted or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        module, _, attribute = self._modules[cmd_name].partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise click.ClickException(self._when_missing(error.name or "")) from None
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._entries.items()])
