"""What ``detrand validate digits.py`` prints in ``docs/start/``, on a terminal of 98 columns.

``python -m tests.start_page`` writes it as text for ``docs/start.rst``, and as a picture for ``README.rst``; and into
``docs/start/start.ipynb`` what the cells of this notebook print.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
from rich.console import Console
from rich.text import Text

import detrand

START = Path(__file__).parent.parent / "docs" / "start"
NOTEBOOK = START / "start.ipynb"
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


def executed(notebook):
    """Return a notebook with what its cells print in a new kernel, without the names of files that the kernel makes."""
    notebook = nbformat.from_dict(notebook)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = [output.text for output in cell.outputs if output.get("name") == "stdout"]
            printed = [re.sub(r"/\S*ipykernel_\d+/\d+\.py", "cell.py", text) for text in texts]
            cell.outputs = [
                nbformat.v4.new_output("stream", name="stdout", text=text)
                for text in printed
                if "is deprecated" not in text
            ]
    notebook.metadata.language_info = {"name": "python"}  # without the version of Python
    return notebook


def main():
    """Write the text, the picture and the notebook."""
    output = printed(START)
    (START / "failed.txt").write_text(Text.from_ansi(output).plain + "\n")
    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(f"$ detrand validate digits.py\n{output}"))
    console.save_svg(str(START / "report.svg"), title="", unique_id="detrand")
    nbformat.write(executed(nbformat.read(NOTEBOOK, as_version=4)), NOTEBOOK)


if __name__ == "__main__":
    main()
