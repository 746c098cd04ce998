"""The console of the command, and the progress line on a terminal."""

import io

import pytest
from rich.console import Console

from detrand.report.progress import CommandConsole, showing_progress


def printed(**arguments):
    file = io.StringIO()
    with showing_progress(Console(file=file, width=80, **arguments), "comparing"):
        file.write("in the block\n")
    return file.getvalue()


def test_a_terminal_shows_what_is_running():
    assert "comparing" in printed(force_terminal=True, force_interactive=True)


def test_a_file_has_no_progress_line():
    assert printed() == "in the block\n"


def test_the_progress_line_ends_with_an_error():
    with pytest.raises(KeyError), showing_progress(Console(file=io.StringIO(), force_terminal=True), "comparing"):
        raise KeyError


def test_a_line_number_is_no_emoji(capsys):
    CommandConsole().print("model.py:100: a value")
    assert capsys.readouterr().out == "model.py:100: a value\n"
