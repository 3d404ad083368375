"""The parts of the broker: none knows the whole, and none keeps settings that may change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

BROKER = ROOT / "src" / "braidmq" / "broker"
WHOLE = {"braidmq.broker.assembly", "braidmq.broker.broker"}
PARTS = sorted(path for path in BROKER.rglob("*.py") if path.stem not in ("assembly", "broker"))


def kept_by_constructors(tree: ast.Module) -> Iterator[ast.Assign]:
    """Every assignment to an attribute within a constructor."""
    for method in ast.walk(tree):
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            for node in ast.walk(method):
                if isinstance(node, ast.Assign) and any(isinstance(target, ast.Attribute) for target in node.targets):
                    yield node


def is_live(node: ast.AST) -> bool:
    """Whether it reads the settings in force, as ``live.now`` or ``self._live.now``."""
    if not (isinstance(node, ast.Attribute) and node.attr == "now"):
        return False
    holder = node.value
    name = holder.attr if isinstance(holder, ast.Attribute) else holder.id if isinstance(holder, ast.Name) else ""
    return name in ("live", "_live")


def imported(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported, for type checkers alone or not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


@pytest.mark.parametrize("path", PARTS, ids=lambda path: str(path.relative_to(BROKER)))
def test_no_part_knows_the_broker(path: Path) -> None:
    known = WHOLE.intersection(imported(ast.parse(path.read_text())))

    assert not known, "take what is needed as constructor arguments"


@pytest.mark.parametrize("path", PARTS, ids=lambda path: str(path.relative_to(BROKER)))
def test_no_part_keeps_settings_that_may_change(path: Path) -> None:
    stale = [
        node.lineno
        for node in kept_by_constructors(ast.parse(path.read_text()))
        if any(is_live(each) for each in ast.walk(node.value))
    ]

    assert not stale, "read `live.now` when it is needed, or keep what a `reconfigure` renews"
