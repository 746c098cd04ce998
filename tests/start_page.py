"""What ``detrand validate digits.py`` prints in ``docs/start/``, on a terminal of 98 columns.

``python -m tests.start_page`` writes it as text for ``docs/start.rst``, and as a picture for ``README.rst``.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

import detrand

START = Path(__file__).parent.parent / "docs" / "start"
_COLUMNS = 98  # the width of a page


def printed(folder):
    """Return what the command prints in a folder, with the colours of a terminal."""
    terminal = {"COLUMNS": str(_COLUMNS), "FORCE_COLOR": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    path = os.pathsep.join([str(Path(detrand.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "detrand", "validate", "digits.py"],
        cwd=folder,
        env={**os.environ, **terminal, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return re.sub(r"\x1b\[\?25l.*?\x1b\[\?25h\n", "", done.stdout, flags=re.DOTALL) or done.stderr


def main():
    """Write the text and the picture."""
    output = printed(START)
    (START / "failed.txt").write_text(Text.from_ansi(output).plain + "\n")
    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(f"$ detrand validate digits.py\n{output}"))
    console.save_svg(str(START / "report.svg"), title="", unique_id="detrand")


if __name__ == "__main__":
    main()
