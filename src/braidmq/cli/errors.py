"""How a command fails: one line on standard error, and an exit status; that of ``mosquitto_pub`` if it has one."""

from __future__ import annotations

from typing import Final

from braidmq.client.errors import ClientError

EXIT_USAGE: Final = 2
EXIT_TIMEOUT: Final = 27
EXIT_INTERRUPTED: Final = 130  # the status that a shell reports after Ctrl-C


class CommandFailed(ClientError):
    """Ends the program with a sentence and an exit status."""
