"""The configuration of a running node: shows it, changes values at run time and stores the changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from braidmq.base import logs
from braidmq.base.config import sources as config
from braidmq.base.config.keys import dotted, find_key, parse_path
from braidmq.base.config.settings import Settings
from braidmq.base.config.sources import Config
from braidmq.base.errors import ConfigError
from braidmq.control.contract import ConfValue, Origin

_LATER = "takes effect after a restart"

_Overrides = dict[str, object]  # values set at run time, by key


class ConfiguredNode(Protocol):
    """The node, as operations on its configuration see it."""

    @property
    def settings(self) -> Settings: ...
    @property
    def config(self) -> Config: ...

    async def reload(self, config: Config) -> list[str]:
        """Apply a changed configuration; returns the keys that need a restart."""
        ...


class NodeConfiguration:
    """Shows and changes the configuration of a node; changes are made one at a time."""

    def __init__(self, node: ConfiguredNode) -> None:
        self._node = node
        self._changing = asyncio.Lock()

    def show(self, prefix: str) -> list[ConfValue]:
        """The current configuration, or the part of it under a table or key. Raises ConfigError if there is no such part."""
        found = [
            ConfValue(key=key, value=value, origin=cast(Origin, origin))
            for key, value, origin in self._node.config.rows()
            if not prefix or key == prefix or key.startswith(f"{prefix}.")
        ]
        if prefix and not found:
            raise ConfigError(prefix, "no such key or table", "`conf show` without a name lists all")
        return found

    async def set(self, key: str, text: str) -> ConfValue:
        """Set a value at run time and store it; raises ConfigError, and then nothing has changed."""
        name, value = config.parse_override(key, text)
        return await self._change(name, lambda overrides: {**overrides, name: value})

    async def unset(self, key: str) -> ConfValue:
        """Remove a value set at run time; returns the resulting value."""
        path = parse_path(key)
        find_key(path, "run time")
        name = dotted(path)
        return await self._change(name, lambda overrides: {each: overrides[each] for each in overrides if each != name})

    async def use_shared(self, settings: Mapping[str, object]) -> None:
        """Use the settings of the cluster in place of those set here. Raises ConfigError, and then nothing has changed."""
        data_dir = self._node.settings.node.data_dir
        async with self._changing:
            overrides = compose(await asyncio.to_thread(config.read_overrides, data_dir), settings)
            if not self._node.config.has_overrides(overrides):
                await self._use(overrides)

    def check_shared(self, settings: Mapping[str, object]) -> None:
        """Raise ConfigError if the cluster cannot have these settings, as far as this node can tell."""
        local = {dotted(path): value for path, value in self._node.config.sources.get(config.RUN_TIME, {}).items()}
        self._node.config.with_overrides(compose(local, settings))

    async def _change(self, name: str, change: Callable[[_Overrides], _Overrides]) -> ConfValue:
        data_dir = self._node.settings.node.data_dir
        async with self._changing:
            restart = await self._use(change(await asyncio.to_thread(config.read_overrides, data_dir)))
        return self.value(name, is_later=name in restart)

    async def _use(self, overrides: _Overrides) -> list[str]:
        """Store these run-time values and apply them; the keys that need a restart."""
        node = self._node
        before = node.settings
        changed = node.config.with_overrides(overrides)
        await asyncio.to_thread(config.write_overrides, before.node.data_dir, overrides)
        restart = await node.reload(changed)
        _apply_log(before, changed.settings)
        return restart

    def value(self, name: str, *, is_later: bool = False) -> ConfValue:
        """A key as it is now. ``is_later``: its value was changed, and takes effect after a restart."""
        row = next((row for row in self._node.config.rows() if row[0] == name), (name, "not given", config.DEFAULT))
        return ConfValue(key=name, value=row[1], origin=cast(Origin, row[2]), note=_LATER if is_later else "")


def compose(local: Mapping[str, object], shared: Mapping[str, object]) -> _Overrides:
    """Run-time values of a node of a cluster: those of the cluster, and older ones of keys that belong to the node alone."""
    return {**{name: value for name, value in local.items() if not config.is_shared(name)}, **shared}


def _apply_log(before: Settings, after: Settings) -> None:
    if (before.log.format, before.log.lines_per_s_max) != (after.log.format, after.log.lines_per_s_max):
        logs.set_up(after.log.level, after.log.format, after.log.lines_per_s_max)
    elif before.log.level != after.log.level:
        logs.set_level(after.log.level)
