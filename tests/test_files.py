"""Files that are written whole or not at all, and the standard output."""

import errno
import os
import subprocess
import sys
import threading

import pytest

from detrand.files import written_whole


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "report.html"
    file.write_text("before")
    return file


def write(path, text="after"):
    with written_whole(path) as unfinished:
        unfinished.write_text(text)


def test_a_file_is_written(file):
    write(file)
    write(file.with_name("new"))
    assert {each.name: each.read_text() for each in file.parent.iterdir()} == {"report.html": "after", "new": "after"}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_file_that_cannot_be_finished_stays_as_it_was(file, error):
    with pytest.raises(type(error)), written_whole(file) as unfinished:
        unfinished.write_text("aft")
        raise error
    assert {each.name: each.read_text() for each in file.parent.iterdir()} == {"report.html": "before"}


def test_a_new_file_that_cannot_be_finished_is_not_made(tmp_path):
    with pytest.raises(KeyboardInterrupt), written_whole(tmp_path / "new") as unfinished:
        unfinished.write_text("aft")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_file_in_a_folder_that_takes_no_new_files_is_written_itself(file, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != file.parent)
    number = file.stat().st_ino
    write(file)
    assert (file.read_text(), file.stat().st_ino) == ("after", number)


def test_a_file_keeps_its_permissions(file):
    file.chmod(0o640)
    write(file)
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_one(file):
    link = file.with_name("link")
    link.symlink_to(file)
    write(link)
    assert link.is_symlink()
    assert file.read_text() == "after"


def test_a_pipe_is_written(tmp_path):
    pipe, seen = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: seen.append(pipe.read_text()))
    reader.start()
    write(pipe)
    reader.join()
    assert seen == ["after"]


def test_a_pipe_of_the_shell_is_written():
    reading, writing = os.pipe()
    write(f"/dev/fd/{writing}")  # what the shell passes for >(gzip)
    os.close(writing)
    with open(reading) as pipe:
        assert pipe.read() == "after"


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "missing" / "report.html")


def explain(output):
    return subprocess.Popen(
        [sys.executable, "-m", "detrand", "explain"], stdout=output, stderr=subprocess.PIPE, text=True
    )


def test_a_closed_pipe_ends_what_is_printed():
    with explain(subprocess.PIPE) as process:
        process.stdout.close()  # as `head` does after it has read enough
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full on this system")
def test_a_full_disk_under_the_standard_output_is_an_error_in_one_line():
    with open("/dev/full", "w") as output, explain(output) as process:
        message = process.stderr.read()
    assert message.startswith("detrand: the report cannot be written to the standard output: No space left on device; ")
    assert (process.returncode, message.count("\n")) == (2, 1)
