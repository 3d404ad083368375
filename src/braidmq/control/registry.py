"""What operators see of the registry of client ids."""

from __future__ import annotations

from msgspec import Struct


class RegistryChannel(Struct, frozen=True, kw_only=True):
    """A channel of a client id. ``state``: registered, leaving (told to end) or ended lately.

    The version is the time of the connection by the cluster's clock, with its error bound, and three numbers that order equals.
    """

    node: str
    incarnation: int
    channel: int
    state: str
    guard: int
    connected_at_ms: int
    bound_ms: int
    registration: int
    counter: int
    arrival: int


class RegistryEntry(Struct, frozen=True, kw_only=True):
    """What the home of a client id knows of it. ``user``: of a session on a node."""

    client_id: str
    home: str
    term: int
    waiting: int
    user: str | None
    channels: list[RegistryChannel]


class RegistryStats(Struct, frozen=True, kw_only=True):
    """The registry of one core since its start. ``outcomes``: of claims. ``takeovers``: their number by the time they took, up to
    these seconds.
    """

    core: str
    term: int
    clients: int
    waiting: int
    outcomes: dict[str, int]
    restarts: int
    probes: int
    fenced: int
    takeovers: list[tuple[float | None, int]]
    sweeps: int
    swept: int
    found: int


class RegistryReport(Struct, frozen=True, kw_only=True):
    """The registries of all cores, and why others do not answer."""

    cores: list[RegistryStats]
    silent: dict[str, str]


class SweepResult(Struct, frozen=True, kw_only=True):
    """A sweep of one core's registry. ``is_complete``: every connected node has answered in time."""

    core: str
    is_complete: bool
    removed: int
    found: int


class SweepReport(Struct, frozen=True, kw_only=True):
    """The sweeps of all cores, and why others do not answer."""

    cores: list[SweepResult]
    silent: dict[str, str]
