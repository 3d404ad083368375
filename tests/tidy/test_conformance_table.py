"""docs/conformance.md tells the truth: all statements are there, and each that concerns a server has its test or its reason."""

from __future__ import annotations

from scripts import conformance_table

STATEMENTS = conformance_table.load_statements()


def test_the_page_is_what_the_tests_say() -> None:
    page = conformance_table.PAGE.read_text(encoding="utf-8")

    assert page == conformance_table.render(), "out of date; run `python scripts/conformance_table.py`"


def test_every_statement_has_a_test_or_a_reason() -> None:
    shown = conformance_table.tests_by_statement()

    assert [key for key, statement in STATEMENTS.items() if key not in shown and not statement.remark] == []


def test_only_statements_that_exist_are_shown() -> None:
    assert set(conformance_table.tests_by_statement()) <= set(STATEMENTS)


def test_the_lists_are_complete() -> None:
    # 251 and 141 are the numbers of statements in the appendices of the two standards.
    counts = {name: sum(each.specification == name for each in STATEMENTS.values()) for name in conformance_table.SPECIFICATIONS}

    assert counts == {"5.0": 251, "3.1.1": 141}
    assert {each.binds for each in STATEMENTS.values()} == {"S", "C", "B"}


def test_every_conformance_test_shows_something() -> None:
    shown = {(test.file, test.name) for tests in conformance_table.tests_by_statement().values() for test in tests}
    written = {
        (file.name, line.split("(")[0].removeprefix("def "))
        for file in conformance_table.TESTS.glob("test_*.py")
        for line in file.read_text().splitlines()
        if line.startswith("def test_")
    }

    assert written - shown == set()
