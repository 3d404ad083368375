"""Rules about documentation: links lead somewhere, generated pages are fresh."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from braidmq.base.config.checks import _NOT_YET
from braidmq.base.config.keys import dotted
from scripts import configuration_page
from tests.tidy.tree import ROOT, project_files, relative

PAGES = [file for file in project_files() if file.suffix == ".md"]


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)

    assert broken == []


def test_the_configuration_page_is_what_the_keys_say() -> None:
    assert configuration_page.PAGE.read_text() == configuration_page.render(), "run: python scripts/configuration_page.py"


def test_the_configuration_page_names_the_features_that_are_not_implemented_yet() -> None:
    page = configuration_page.PAGE.read_text()
    sentence = re.search(r"^- Keys of ((?:(?!^- ).)+?)\s+belong to a feature that is not implemented yet", page, re.M | re.S)

    assert sentence
    assert re.findall(r"`([\w.]+)`", sentence[1]) == [dotted(part) for part in _NOT_YET]


def test_every_schedule_that_is_cited_is_explained_and_tested() -> None:
    explained = set(re.findall(r"^\| ([SHPCR]\d+) ", (ROOT / "docs" / "schedules.md").read_text(), re.M))
    cited, tested = set(), {"C7"}  # the page says why
    for file in project_files():
        if file.suffix in (".py", ".pyx"):
            text = file.read_text()
            numbers = set(re.findall(r"(?<=[( ,])([SHPCR]\d{1,2})(?=[),])", text))
            cited |= numbers
            if file.is_relative_to(ROOT / "tests"):
                tested |= numbers | {name.upper() for name in re.findall(r"def test_([a-z]\d+)_", text)}

    assert sorted(cited - explained) == []
    assert sorted(each for each in explained - tested if each[0] in "CR") == []


def test_the_change_log_names_the_version() -> None:
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src" / "braidmq" / "__init__.py").read_text())

    assert version
    assert version[1] in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", ["install", "run", "test", "check", "bench", "format", "soak", "build", "clean", "help"])
def test_the_makefile_has_what_the_pages_promise(name: str) -> None:
    assert re.search(rf"^{name}:.*## \S", (ROOT / "Makefile").read_text(), re.M)
