"""Rules about code that no linter knows: docstrings, layers of Cython files, words, skips, dependencies."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, SOURCES, project_files, relative

PYTHON = [file for file in project_files() if file.suffix == ".py"]
OURS = [file for file in PYTHON if file.is_relative_to(SOURCES)]
# No layer above is imported; import-linter sees .py files, this list serves the .pyx and .pxd files.
LAYERS = [
    *("cli", "testing", "node", "operations", "metrics", "api", "history", "hooks", "spark", "cluster"),
    *("storage", "broker", "access", "net", "client", "control", "mqtt", "lane", "flight", "base"),
]
# Parts that an extra of the distribution belongs to; everything else runs without it.
OPTIONAL = {"flight", "history", "spark"}
ASYNCIO_CALLBACKS = {*dir(asyncio.Protocol), *dir(asyncio.BufferedProtocol)}
# distribution -> module, where the names differ
MODULES = {"argon2-cffi": "argon2", "grpcio": "grpc", "prometheus-client": "prometheus_client", "tomli-w": "tomli_w"}


def public_definitions(file: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """The public classes and functions of a module, and the public methods that promise something of their own."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef) and not has_promises_from_above(node):
                for member in node.body:
                    if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) or member.name.startswith("_"):
                        continue
                    if not is_declared_elsewhere(member):
                        yield f"{node.name}.{member.name}", member


def has_promises_from_above(node: ast.ClassDef) -> bool:
    """True if what the methods do may be said by a class that this one extends."""
    plain = {"Protocol", "Generic", "ABC", "Struct", "NamedTuple", "Enum", "IntEnum", "StrEnum", "Exception"}
    return any(ast.unparse(base).partition("[")[0].rpartition(".")[2] not in plain for base in node.bases)


def is_declared_elsewhere(member: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True for asyncio's callbacks, for attributes that a Protocol declares, and for setters and overloads."""
    decorators = {ast.unparse(each).rpartition(".")[2] for each in member.decorator_list}
    is_attribute = "property" in decorators and ast.unparse(member.body[-1]) == "..."
    return member.name in ASYNCIO_CALLBACKS or is_attribute or bool(decorators & {"setter", "override", "overload"})


@pytest.mark.parametrize("file", OURS, ids=relative)
def test_everything_public_says_what_it_promises(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text())), "the module has no docstring"
    assert [name for name, node in public_definitions(file) if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("file", OURS, ids=relative)
def test_nothing_reads_data_in_a_form_that_can_run_code(file: Path) -> None:
    """Nodes and strangers send bytes; none of them may be unpickled."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}

    assert {name.partition(".")[0] for name in names} & {"cloudpickle", "dill", "marshal", "pickle", "shelve"} == set()


@pytest.mark.parametrize("file", OURS, ids=relative)
def test_modules_postpone_annotations(file: Path) -> None:
    body = ast.parse(file.read_text()).body
    imports_anything = any(isinstance(node, ast.Import | ast.ImportFrom) for node in body)

    assert not imports_anything or "from __future__ import annotations" in file.read_text()


def test_cython_files_import_from_lower_layers_only() -> None:
    above = {
        (relative(file), layer)
        for file in project_files()
        if file.suffix in {".pyx", ".pxd"} and file.is_relative_to(SOURCES)
        for layer in re.findall(r"(?:from|import|cimport)\s+braidmq\.(\w+)", file.read_text())
        if LAYERS.index(layer) < LAYERS.index(file.relative_to(SOURCES).parts[0])
    }

    assert above == set()


def test_the_lane_and_the_protocol_do_no_io_in_cython_either() -> None:
    forbidden = re.compile(
        r"^\s*(?:from|import|cimport)\s+(asyncio|socket|ssl|threading|selectors|logging|subprocess|uvloop)\b", re.M
    )

    hits = {relative(file): forbidden.findall(file.read_text()) for file in project_files() if file.suffix in {".pyx", ".pxd"}}

    assert {file: found for file, found in hits.items() if found} == {}


def test_each_compiled_module_has_a_form_that_runs_uncompiled() -> None:
    assert [relative(file) for file in SOURCES.rglob("*.pyx") if not file.with_suffix(".py").exists()] == []


def test_no_work_is_left_for_later_in_the_code() -> None:
    words = re.compile(r"\b({})\b".format("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"])))
    code = [file for file in project_files() if file.suffix in {".py", ".pyx", ".pxd", ".c"}]

    assert [relative(file) for file in code if words.search(file.read_text())] == []


def test_missing_programs_are_declared_by_mark_so_that_ci_can_refuse_them() -> None:
    calls = re.compile(r"pytest\.skip\(|mark\.skip\b|mark\.skipif|importorskip|mark\.xfail")
    # Policy lives in conftest files; the conformance tests may be pointed at another broker, which lacks some listeners.
    exempt = {"conftest.py", Path(__file__).name}
    tests = [file for file in PYTHON if file.is_relative_to(ROOT / "tests") and file.name not in exempt]
    tests = [file for file in tests if not file.is_relative_to(ROOT / "tests" / "conformance")]

    assert [relative(file) for file in tests if calls.search(file.read_text())] == []


def test_names_of_tests_are_sentences() -> None:
    short = {
        f"{relative(file)}::{node.name}"
        for file in PYTHON
        if file.is_relative_to(ROOT / "tests") and file.name.startswith("test_")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_") and node.name.count("_") < 3
    }

    assert short == set()


def test_test_files_of_one_folder_mirror_a_layer_or_a_kind_of_test() -> None:
    kinds = {
        "benchmarks",
        "clients",
        "conformance",
        "contracts",
        "durability",
        "scenarios",
        "soak",
        "support",
        "tidy",
    }
    folders = {file.relative_to(ROOT / "tests").parts[0] for file in PYTHON if file.is_relative_to(ROOT / "tests")} - {
        "conftest.py"
    }

    assert folders - kinds - set(LAYERS) - {"test_metrics.py", "test_testing.py"} == set()


def test_folders_of_tests_are_folders_of_the_source() -> None:
    folders = {file.parent.relative_to(ROOT / "tests") for file in PYTHON if file.is_relative_to(ROOT / "tests")}
    mirrored = {folder for folder in folders if folder.parts and folder.parts[0] in LAYERS}

    assert {folder.as_posix() for folder in mirrored if not (SOURCES / folder).is_dir()} == set()


def test_test_files_import_nothing_from_each_other() -> None:
    imports = re.compile(r"^from tests\.(?:\w+\.)*test_\w+ import|^import tests\.(?:\w+\.)*test_", re.M)

    assert [relative(file) for file in PYTHON if imports.search(file.read_text())] == []


def third_party_imports(files: list[Path]) -> set[str]:
    """Top-level names of modules that are neither Python's nor ours."""
    found: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"braidmq", "cython"}


def is_optional(file: Path) -> bool:
    """Whether a file belongs to a part that an extra is for, or is a test fixture for those who have pytest."""
    return file.relative_to(SOURCES).parts[0] in {*OPTIONAL, "testing.py"}


def names_of(requirements: list[str]) -> set[str]:
    """The modules that requirements bring."""
    names = {re.split(r"[<>=!~\[; ]", each)[0] for each in requirements}
    return {MODULES.get(name, name) for name in names}


def test_the_package_declares_exactly_the_dependencies_it_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = names_of(project["dependencies"])
    extra = names_of([each for extra in project["optional-dependencies"].values() for each in extra])

    assert third_party_imports([file for file in OURS if not is_optional(file)]) == needed
    assert third_party_imports([file for file in OURS if file.relative_to(SOURCES).parts[0] in OPTIONAL]) <= needed | extra
