"""``braidmq passwd``: the users of a password file. Passwords come from a prompt or standard input, never from arguments."""

from __future__ import annotations

import sys

import click

from braidmq.access import files, hashes, passwords, scram
from braidmq.base.errors import ConfigError, UsageError
from braidmq.cli.errors import CommandFailed

_PASSWORD_BYTES_MAX = 65_535  # the limit of an MQTT CONNECT


@click.command("passwd")
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("user")
@click.option("-D", "--delete", is_flag=True, help="Delete the user.")
@click.option("--scram", "with_scram", is_flag=True, help="Also write keys for SCRAM-SHA-256.")
@click.option(
    "--scram-rounds",
    type=click.IntRange(scram.ROUNDS_MIN, scram.ROUNDS_MAX),
    default=scram.ROUNDS_MIN,
    show_default=True,
    help="Hash rounds that each SCRAM login costs the client.",
)
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from the first line of standard input.")
def passwd(file: str, user: str, delete: bool, with_scram: bool, scram_rounds: int, from_stdin: bool) -> None:
    """Set or change the password of USER in FILE, which is created if it does not exist.

    A running node notices the change by itself. Existing SCRAM keys of the user are replaced together with the password.
    """
    known = _read(file, must_exist=delete)
    if delete:
        if not passwords.delete_user(file, user):
            raise CommandFailed(f"there is no user {user!r} in {file}")
        click.echo(f"deleted {user} from {file}")
        return
    has_keys = known is not None and known.scram_keys(user) is not None
    try:
        passwords.check_user_name(user)
        password = _ask(from_stdin)
        keys = scram.make_keys(password, scram_rounds) if with_scram or has_keys else None
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    passwords.set_password(file, user, hashes.make(password.encode()), keys)
    click.echo(f"{file}: {user} has a new password{' and SCRAM keys' if keys else ''}")


def _read(file: str, *, must_exist: bool) -> passwords.Users | None:
    """The users in the file, None if it does not exist; raises CommandFailed if the broker would reject the file."""
    try:
        text, _ = files.read_text(file)
    except FileNotFoundError:
        if must_exist:
            raise
        return None
    except UnicodeDecodeError:
        raise CommandFailed(f"{file} is not a password file: it is not valid UTF-8") from None
    try:
        return passwords.parse(text)
    except ConfigError as problem:
        raise CommandFailed(f"{file}: {problem.detail}; nothing was changed") from None


def _ask(from_stdin: bool) -> str:
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt="Repeat the password", err=True)
    if not password:
        raise ValueError("the password must not be empty")
    try:
        size = len(password.encode())
    except UnicodeEncodeError:
        raise ValueError("the password is not UTF-8") from None
    if size > _PASSWORD_BYTES_MAX:
        raise ValueError("the password must not be longer than 65535 bytes, the limit of MQTT")
    return password
