"""A token ends with the lines of the password file that it was made for: nothing that replaces them brings it back."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import pyarrow.flight as flight
import pytest

from braidmq.access import hashes, passwords, scram
from braidmq.base.errors import UsageError
from braidmq.control.history import TokenRequest
from braidmq.history.node_side.tokens import KEY_NAME
from braidmq.operations import NodeOperations
from braidmq.testing import Broker
from tests.support.clients.wire import unique

SERVED = {"bind": "127.0.0.1:0", "anonymous": "none"}


class Served:
    """A node with a history service for the users of a password file."""

    def __init__(self, folder: Path) -> None:
        self.passwords = str(folder / "passwords")
        self._data_dir = folder / "data"
        self.broker: Broker

    @contextmanager
    def running(self) -> Iterator[Served]:
        """Serve, on the same data each time."""
        node = {"data_dir": str(self._data_dir)}
        with Broker(history=SERVED, access={"password_file": self.passwords}, node=node) as self.broker:
            yield self

    def set_password(self, user: str, password: bytes = b"secret", *, with_scram: bool = False) -> None:
        """What `braidmq passwd` does."""
        keys = scram.make_keys(password.decode()) if with_scram else None
        passwords.set_password(self.passwords, user, hashes.make(password), keys)

    def reload(self) -> None:
        """Let the node read the password file."""
        assert self.broker.node is not None
        self.broker.run(self.broker.node.access.reload())

    def make_token(self, user: str) -> str:
        """What `braidmq ctl token` prints."""
        assert self.broker.node is not None
        made = self.broker.run(NodeOperations(self.broker.node).history.token(TokenRequest(user, 60.0)))
        return str(made.token)

    def takes(self, token: str) -> bool:
        """Whether a reader with this token is let in."""
        with flight.connect(f"grpc://127.0.0.1:{self.broker.history_port}") as client:
            shown = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())])
            try:
                client.get_flight_info(flight.FlightDescriptor.for_path("#"), shown)
            except flight.FlightUnauthenticatedError:
                return False
            return True

    def shake_hands(self, user: str, password: str) -> str:
        """The token that a handshake gives."""
        with flight.connect(f"grpc://127.0.0.1:{self.broker.history_port}") as client:
            _, header = client.authenticate_basic_token(user, password)
            return str(header.decode().removeprefix("Bearer "))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One node for all tests, each of which has a user of its own."""
    served = Served(tmp_path_factory.mktemp("served"))
    served.set_password("somebody")
    with served.running():
        yield served


@pytest.fixture
def user(served: Served) -> str:
    """A user whom the node knows."""
    name = unique("user")
    served.set_password(name)
    served.reload()
    return name


def change_password(served: Served, user: str) -> None:
    """Another password."""
    served.set_password(user, b"another")


def set_the_same_password_again(served: Served, user: str) -> None:
    """The same password with another salt."""
    served.set_password(user)


def add_scram_keys(served: Served, user: str) -> None:
    """A second line for the user."""
    with open(served.passwords, "a") as file:
        file.write(f"{user}:{scram.format_keys(scram.make_keys('secret'))}\n")


def make_the_user_anew(served: Served, user: str) -> None:
    """Another person may have the name now."""
    passwords.delete_user(served.passwords, user)
    served.reload()
    served.set_password(user)


CHANGES = (change_password, set_the_same_password_again, add_scram_keys, make_the_user_anew)


@pytest.mark.row(57)
@pytest.mark.parametrize("change", CHANGES)
def test_a_token_ends_when_the_lines_of_its_user_change(served: Served, user: str, change: Callable[[Served, str], None]) -> None:
    of_operator, of_handshake = served.make_token(user), served.shake_hands(user, "secret")
    assert served.takes(of_operator)
    assert served.takes(of_handshake)

    change(served, user)
    served.reload()

    assert not served.takes(of_operator)
    assert not served.takes(of_handshake)
    assert served.takes(served.make_token(user))


@pytest.mark.row(57)
def test_a_token_outlives_restarts_and_changes_of_other_users(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.set_password("ann", with_scram=True)
    with served.running():
        token = served.make_token("ann")
        served.set_password("bob")
        served.reload()
        assert served.takes(token)

    with served.running():
        assert served.takes(token)


@pytest.mark.row(57)
def test_tokens_from_before_they_were_bound_to_a_line_are_refused(served: Served, user: str) -> None:
    key = (served.broker.data_dir / KEY_NAME).read_bytes()
    body = bytes([1]) + (1 << 40).to_bytes(8, "big") + user.encode()
    parts = (body, hmac.digest(key, body, "sha256"))

    assert not served.takes(".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts))


def use_old_hash(served: Served, user: str) -> None:
    """Give the user a hash that the next login replaces."""
    old = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    passwords.set_password(served.passwords, user, old, None)
    served.reload()


@pytest.mark.row(57)
def test_a_token_of_a_login_that_replaces_an_old_hash_is_good_for_the_new_one(served: Served, user: str) -> None:
    use_old_hash(served, user)

    token = served.shake_hands(user, "secret")
    assert served.broker.node is not None
    served.broker.run(served.broker.node.access._authenticator._finish_upgrades())
    served.reload()

    assert f"{user}:$argon2id$" in Path(served.passwords).read_text()
    assert served.takes(token)


@pytest.mark.row(57)
def test_no_token_is_made_for_a_hash_that_the_next_login_replaces(served: Served, user: str) -> None:
    use_old_hash(served, user)

    with pytest.raises(UsageError, match=f"log in once as '{user}'"):
        served.make_token(user)
