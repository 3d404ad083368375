"""A broker with users and rules, whose files a test can change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from braidmq.access import hashes
from braidmq.testing import Broker
from tests.support.clients.wire import Wire
from tests.support.stage import ErrorLog, Stage

PASSWORD = b"secret"
_HASH = hashes.make(PASSWORD)  # one for all: making it is slow on purpose


class Guarded:
    """A running broker, its password file and its ACL file."""

    def __init__(self, start: Callable[..., Stage], folder: Path, users: list[str], rules: str, **tables: Any) -> None:
        self._passwords, self._rules = folder / "passwords", folder / "rules"
        self.write_users(users)
        self.write_rules(rules)
        access = {"password_file": str(self._passwords), "acl_file": str(self._rules)}
        self.stage = start(access=access, **tables)

    def write_users(self, users: list[str]) -> None:
        """These users, with the same password."""
        self._write(self._passwords, "".join(f"{user}:{_HASH}\n" for user in users))

    def write_rules(self, rules: str) -> None:
        """These rules, one a line."""
        self._write(self._rules, rules)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        file.chmod(0o600)

    def reload(self, **overrides: object) -> list[str]:
        """What SIGHUP does; the keys that need a restart. ``mqtt__receive_maximum=5`` changes a setting."""
        node = self.stage.broker.node
        assert node is not None
        changed = node.config.with_overrides({name.replace("__", "."): value for name, value in overrides.items()})
        restart = self.stage.broker.run(node.reload(changed))
        assert isinstance(restart, list)
        return restart

    def have_users(self, is_so: bool) -> None:
        """Use the password file from now on, or none: then no client has a user name."""
        self.reload(access__password_file=str(self._passwords) if is_so else "")

    def connect(self, user: str, client_id: str | None = None, **fields: Any) -> Wire:
        """A client that has logged in."""
        return self.stage.connect(client_id, user_name=user, password=PASSWORD, **fields)


@contextmanager
def running(folder: Path, users: list[str], rules: str, **tables: Any) -> Iterator[Guarded]:
    """A guarded broker whose data outlives it: the next one in the same folder goes on with them."""
    with ErrorLog().listening() as errors, ExitStack() as stack:

        def start(**settings: Any) -> Stage:
            return Stage(stack.enter_context(Broker(**settings)), errors)

        guarded = Guarded(start, folder, users, rules, node={"data_dir": str(folder / "data")}, **tables)
        yield guarded
        guarded.stage.close()
