"""Modules that know each other: which do is listed, and the list gets no longer without a reason."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.tidy.tree import SOURCES, project_files

# (importing module, module that it knows for its types alone, and that needs it): two things that refer to each other.
MUTUAL = {
    # A connection hands itself to the handlers of its packets; a session has a connection, which has a session.
    ("broker.connection.context", "broker.connection.connection"),
    ("broker.session.session", "broker.connection.connection"),
    # The store of retained messages implements a port whose searches yield them.
    ("broker.session.ports", "broker.messages.retained"),
    # A shared group and its cursor are one thing in two files.
    ("broker.shared.cursor", "broker.shared.group"),
    ("broker.shared.ports", "broker.shared.cursor"),
    ("broker.shared.unrecorded", "broker.shared.group"),
    # The structures of the lane: a flow has an outlet, which names flows; a route has subscriptions, which have flows.
    ("lane.path.outlet", "lane.flows.flow"),
    ("lane.path.state", "lane.flows.group_flow"),
    ("lane.path.state", "lane.flows.log_flow"),
    ("lane.path.state", "lane.flows.session_queue"),
    ("lane.path.state", "lane.path.writer"),
    ("lane.routing.subscription", "lane.flows.flow"),
}


def modules() -> dict[str, ast.Module]:
    """Every Python module of the project by its name below ``braidmq``."""
    files = [file for file in project_files() if file.suffix == ".py" and file.is_relative_to(SOURCES)]
    names = (".".join(file.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__") for file in files)
    return {name: ast.parse(file.read_text()) for name, file in zip(names, files, strict=True)}


def imported(body: list[ast.stmt], known: dict[str, ast.Module]) -> Iterator[str]:
    """The project's modules that these statements import."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("braidmq"):
            package = (statement.module or "").removeprefix("braidmq").removeprefix(".")
            for each in statement.names:
                below = f"{package}.{each.name}".removeprefix(".")
                yield below if below in known else package


def is_for_types(statement: ast.stmt) -> bool:
    """Whether a statement of a module holds imports that only type checkers see."""
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def test_two_modules_know_each_other_only_if_they_are_listed() -> None:
    known = modules()
    needs = {name: set(imported(tree.body, known)) for name, tree in known.items()}
    for_types: dict[str, set[str]] = defaultdict(set)
    for name, tree in known.items():
        for statement in filter(is_for_types, tree.body):
            assert isinstance(statement, ast.If)
            for_types[name].update(imported(statement.body, known))

    def reaches(start: str, wanted: str) -> bool:
        seen, to_see = {start}, [start]
        while to_see:
            to_see += (new := needs.get(to_see.pop(), set()) - seen)
            seen |= new
        return wanted in seen

    mutual = {(name, other) for name, others in for_types.items() for other in others if reaches(other, name)}

    assert mutual == MUTUAL
