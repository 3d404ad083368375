"""The mode of the registry that a core announces in its member row; nodes announce theirs when they register."""

from __future__ import annotations

import logging

import msgspec

from braidmq.base.errors import Unavailable
from braidmq.cluster.membership.members import Members, NotAdmitted, RegistrationRequest
from braidmq.cluster.membership.registry_modes import AT_RUN_TIME, later_note

log = logging.getLogger("braidmq.cluster")


class OwnMode:
    """That of a core that is a member."""

    def __init__(self, members: Members, request: RegistrationRequest) -> None:
        """``request``: the one that made the core a member, with its incarnation."""
        self.trouble = ""  # why the mode is not the one that is set
        self._members = members
        self._request = request

    async def use(self, mode: str) -> None:
        """Announce another mode, if a running node can change to it."""
        now = self._request.mode
        self.trouble = ""
        if mode != now:
            self.trouble = await self._announce(mode) if (now, mode) in AT_RUN_TIME else later_note(mode, now)
        if self.trouble:
            log.warning("registry.mode: %s", self.trouble)

    async def _announce(self, mode: str) -> str:
        request = msgspec.structs.replace(self._request, mode=mode)
        try:
            decision = await self._members.register(request)
        except Unavailable as problem:
            return f"{problem}; set it again"
        if isinstance(decision, NotAdmitted):
            return decision.reason
        self._request = request
        log.info('registry.mode is "%s" from now on', mode)
        return ""
