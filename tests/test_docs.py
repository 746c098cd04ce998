"""The contents of the documentation. Its examples are doctests, which pytest collects by itself (see setup.cfg)."""

import ast
import csv
import re
from pathlib import Path

import nbformat
import pytest
from rich.text import Text

import detrand
from tests import backends, start_page
from tests.support.classifier_migrations import NAMES

REPOSITORY = Path(__file__).parent.parent
PAGES = [REPOSITORY / "README.rst", *sorted((REPOSITORY / "docs").glob("*.rst"))]
BLOCK = re.compile(r"^\.\. code-block:: (\w+)\n\n((?:(?:    .*)?\n)+)", re.MULTILINE)


def blocks(page, language):
    return [body for found, body in BLOCK.findall(page.read_text()) if found == language]


def test_readme_begins_with_the_two_commands():
    assert blocks(PAGES[0], "shell")[0].split("\n")[:2] == [
        "    pip install '.[examples]' && python -m detrand validate examples/inception_v3.py",
        "    pip install '.[test]' && python -m pytest",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_is_a_doctest(page):
    """A line of a block that is no input begins its output: the first line of each paragraph is input."""
    for body in blocks(page, "python"):
        for paragraph in re.split(r"\n\s*\n", body.strip("\n")):
            assert paragraph.startswith("    >>> "), f"pytest does not run this:\n{paragraph}"


def test_the_table_of_frameworks_has_all_checks_of_training_and_no_failure():
    text = (REPOSITORY / "docs" / "backends_table.txt").read_text()
    header, *rows = [re.findall("- (.*)", row) for row in text.split("    * ")[1:]]
    assert header == ["check", *backends.BACKEND_OF]
    assert [row[0].strip("`") for row in rows] == [*NAMES, "training-steps"]
    assert not re.search("failed|^ *-$", text, re.MULTILINE)


@pytest.mark.parametrize("name", detrand.__all__)
def test_every_public_name_is_documented(name):
    directive = rf"^\.\. auto\w+:: (detrand\.)?{name}$"
    reference = (REPOSITORY / "docs" / "api.rst").read_text()
    assert re.search(directive, reference, re.MULTILINE) or hasattr(detrand.errors, name)


def without_times_and_versions(text):
    return re.sub(r"\d+\.\d s\b|(?<=ULPs; ).+", "", text)


def test_the_start_page_shows_what_the_command_prints():
    output = Text.from_ansi(start_page.printed(start_page.START)).plain
    assert without_times_and_versions((start_page.START / "failed.txt").read_text().rstrip()) == (
        without_times_and_versions(output.rstrip())
    )


@pytest.mark.slow
def test_the_fix_of_the_start_page_makes_all_checks_pass(tmp_path):
    page, file = (REPOSITORY / "docs" / "start.rst").read_text(), (start_page.START / "digits.py").read_text()
    [(fixed, faulty)] = re.findall(r"write ``(.+)`` in place of ``(.+)``", page)
    assert file.count(faulty) == 1
    (tmp_path / "digits.py").write_text(file.replace(faulty, fixed))
    output = Text.from_ansi(start_page.printed(tmp_path)).plain
    assert blocks(REPOSITORY / "docs" / "start.rst", "text") == [f"    {output.rstrip().splitlines()[-1]}\n\n"]


@pytest.mark.slow
def test_the_notebook_shows_what_its_cells_print():
    shown = nbformat.read(start_page.NOTEBOOK, as_version=4)
    outputs = [cell.outputs for cell in shown.cells if cell.cell_type == "code"]
    assert "what to do" in str(outputs) and "passed" in str(outputs[-1])
    assert start_page.executed(shown) == shown


def test_the_index_for_coding_agents_links_pages_that_exist():
    linked = re.findall(r"\]\((\w+)\.html\)", (REPOSITORY / "docs" / "llms.txt").read_text())
    assert {"coding_agents", "symptoms", "start"} <= {*linked} <= {page.stem for page in PAGES}


def test_the_newest_changes_are_those_of_this_version():
    versions = re.findall(r"^(\S+)\n-+$", (REPOSITORY / "docs" / "changes.rst").read_text(), re.MULTILINE)
    assert versions[0] == detrand.__version__


def test_the_table_of_versions_has_the_rows_of_the_command_that_writes_it():
    module = ast.parse((REPOSITORY / "noxfile.py").read_text())
    [rows] = [
        ast.literal_eval(statement.value)
        for statement in module.body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "ROWS"
    ]
    with (REPOSITORY / "docs" / "versions.csv").open() as file:
        lines = {line.pop("row"): list(line.values()) for line in csv.DictReader(file)}
    assert list(lines) == list(rows)
    for row, pins in rows.items():
        assert all(pin in (None, found) for pin, found in zip(pins, lines[row], strict=False)), row
