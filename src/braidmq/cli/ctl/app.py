"""Shared by the commands of ``ctl``: finding the node, tables or JSON output, and paged lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click
import msgspec

from braidmq.base.errors import Unavailable, UsageError
from braidmq.cli.ctl.show import show_json, show_table
from braidmq.cli.errors import CommandFailed
from braidmq.control.client import ControlClient
from braidmq.control.contract import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, SOCKET_NAME, TOKEN_NAME, Page

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Parameters = ParamSpec("Parameters")
Item = TypeVar("Item")

_OPTIONS: Final = (
    click.option("--data-dir", envvar="BRAIDMQ_NODE__DATA_DIR", help="The node's data directory.  [default: data]"),
    click.option(
        "-c",
        "--config",
        "config_file",
        type=click.Path(),
        help="The node's configuration file, which contains the data directory.",
    ),
    click.option("--api", "api_url", help="Connect to http://HOST:PORT instead of the Unix socket."),
    click.option("--token-file", type=click.Path(), help="The token for --api.  [default: ctl.token in the data directory]"),
    click.option("--json", "json_wanted", is_flag=True, help="Print JSON."),
)
SHARED: Final = __name__  # the key under which options given after a group are stored
_NAMES: Final = ("data_dir", "config_file", "api_url", "token_file", "json_wanted")


class Ctl(msgspec.Struct):
    """The connection and output settings of a command."""

    node: ControlClient
    json_wanted: bool


def with_node_options(command: Decorated) -> Decorated:
    """Add the options that locate the node to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def node_group(name: str, help_line: str) -> click.Group:
    """A group of commands that accepts the options that locate the node."""

    @click.pass_context
    def keep(context: click.Context, /, **given: Any) -> None:
        context.find_root().meta[SHARED] = given

    return click.group(name, help=help_line)(with_node_options(keep))


def node_command(group: click.Group | None, name: str) -> Callable[[Callable[Concatenate[Ctl, Parameters], None]], click.Command]:
    """A command that receives a ``Ctl`` built from its own options and those of its group (None: no group)."""

    def decorate(function: Callable[Concatenate[Ctl, Parameters], None]) -> click.Command:
        @click.pass_context
        def run(context: click.Context, /, **given: Any) -> None:
            own = {name: given.pop(name) for name in _NAMES}
            shared = context.find_root().meta.get(SHARED, {})
            chosen = {name: own[name] or shared.get(name) for name in _NAMES}
            ctl = Ctl(_client(chosen), bool(chosen["json_wanted"]))
            try:
                function(ctl, **given)  # type: ignore[call-arg]
            except (Unavailable, UsageError) as error:
                # Raised by the client. The command line was valid, so this is not a usage error.
                raise CommandFailed(error.detail) from None

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        made = with_node_options(run)
        return click.command(name)(made) if group is None else group.command(name)(made)

    return decorate


def _client(chosen: dict[str, Any]) -> ControlClient:
    data_dir = Path(chosen["data_dir"] or _configured_data_dir(chosen["config_file"]))
    if not chosen["api_url"]:
        return ControlClient(socket_path=data_dir / SOCKET_NAME)
    if not chosen["api_url"].startswith(("http://", "https://")):
        raise click.UsageError("--api takes a URL such as http://127.0.0.1:18083")
    token_file = Path(chosen["token_file"] or data_dir / TOKEN_NAME)
    try:
        token = token_file.read_text().strip()
    except OSError as error:
        if chosen["token_file"]:
            raise CommandFailed(f"{token_file}: {error.strerror}") from None
        token = ""  # the node reports it if one is needed
    return ControlClient(url=chosen["api_url"], token=token)


def _configured_data_dir(config_file: str | None) -> str:
    if not config_file:
        return "data"
    from braidmq.base.config import sources as config

    return config.load(Path(config_file)).settings.node.data_dir


def paged(command: Decorated) -> Decorated:
    """Add the paging options to a command that lists entries."""
    command = click.option("--all", "everything", is_flag=True, help="Show all entries.")(command)
    command = click.option(
        "--limit",
        type=click.IntRange(1, PAGE_LIMIT_MAX),
        default=PAGE_LIMIT_DEFAULT,
        show_default=True,
        help="Maximum number of entries to show.",
    )(command)
    return click.option("--contains", help="Show only entries whose name contains this text.")(command)


def show_list(
    ctl: Ctl,
    path: str,
    item_type: type[Item],
    columns: Sequence[str],
    row: Callable[[Item], Sequence[object]],
    *,
    everything: bool,
    **parameters: object,
) -> None:
    """Fetch one page, or all of them, and show them."""
    items, more = [], ""
    silent: dict[str, str] = {}
    for page in _pages(ctl.node, path, Page[item_type], everything, parameters):  # type: ignore[valid-type]
        items += page.items
        more = page.cursor
        silent |= page.silent
    if ctl.json_wanted:
        show_json(msgspec.json.encode(Page(items, more, silent)))
        return
    show_table(columns, map(row, items), nothing=f"no {path.strip('/')}")
    for name, reason in silent.items():
        click.echo(f"{name} is missing: {reason}", err=True)
    if more:
        click.echo(f"... more entries exist: use --all, or --contains and --limit (at most {PAGE_LIMIT_MAX})", err=True)


def _pages(
    node: ControlClient, path: str, type_: type[Page[Item]], everything: bool, parameters: dict[str, Any]
) -> Iterator[Page[Item]]:
    if everything:
        parameters = {**parameters, "limit": PAGE_LIMIT_MAX}
    page = node.get(path, type_, **parameters)
    yield page
    while everything and page.cursor:
        page = node.get(path, type_, **parameters, cursor=page.cursor)
        yield page
