"""The summary for a pull request."""

import dataclasses

from detrand.__main__ import FAILED, main
from detrand.report import markdown
from detrand.validation.results import Finding, Place
from tests.report.test_report import MIGRATIONS
from tests.report.test_text import REPORT


def with_findings(*findings):
    failed = dataclasses.replace(REPORT.checks[1], findings=findings)
    return dataclasses.replace(REPORT, checks=(REPORT.checks[0], failed))


def rows_of(text):
    """Return the tables: the cells of each row, where an escaped bar is no end."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.replace("\\|", "\0").strip("|").split("|")] for row in rows]


def test_each_finding_has_its_places_and_what_to_do(tmp_path):
    (tmp_path / "port.py").write_text("x = 1\ny = a | b  # `c`\n")
    place = Place("port/or", f"{tmp_path / 'port.py'}:2", "1e-05")
    finding = Finding("computation", "epsilon_1 differs", None, place, remedy="use 0.001", checks=("constant-mode",))
    text = markdown.render([with_findings(finding)], "python -m detrand validate net.py")
    assert text.startswith("### net failed: 1 finding; 1 of 2 checks failed; first: random-inference\n")
    assert "**1. epsilon\\_1 differs**" in text
    more = "- more: detrand explain computation\n"
    assert f"- what to do: use 0.001\n- shown by: constant-mode\n{more}" in text
    where = f"`port/or at {tmp_path / 'port.py'}:2`"
    assert ["port", where, "`` y = a \0 b  # `c` ``".replace("  ", " "), "`1e-05`"] in rows_of(text)
    assert "`python -m detrand validate net.py`" in text


def test_every_row_has_as_many_cells_as_its_head():
    text = markdown.render([with_findings(Finding("computation", "a | b", Place("x|y")))])
    widths = [len(row) for row in rows_of(text)]
    assert widths == [4] * len(widths)


def test_text_of_a_model_is_no_markup():
    text = markdown.render([dataclasses.replace(REPORT, migration="<script>\n# net")])
    assert text.startswith("### \\<script\\> \\# net failed")


def test_a_check_that_compared_nothing_is_named():
    checks = (dataclasses.replace(REPORT.checks[0], summary="no outputs", compared=False), REPORT.checks[1])
    text = markdown.render([dataclasses.replace(REPORT, checks=checks)])
    assert "\nNot compared: variables-match: no outputs\n" in text
    assert "Not compared" not in markdown.render([REPORT])


def test_a_long_report_fits_into_a_comment():
    findings = [Finding("computation", f"fault {number} " + "of a layer " * 40) for number in range(300)]
    text = markdown.render([with_findings(*findings)])
    assert len(text) < 65_536
    assert "and 280 more findings" in text


def test_the_command_line_writes_it(tmp_path):
    (tmp_path / "migrations.py").write_text(MIGRATIONS)
    page = tmp_path / "report.md"
    assert main(["validate", str(tmp_path / "migrations.py"), "--markdown", str(page)]) == FAILED
    text = page.read_text()
    assert text.startswith("## 1 of 2 migrations failed\n")
    assert text.count("\n### ") == 2
    assert f"--markdown {page}`" in text
