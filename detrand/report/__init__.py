"""The renderers of a report. They render results only, and run no check.

- `text`: a line for each check while it runs, then the report on a terminal or as a string.
- `html`: one page for a browser, styled by ``html.css``.
- `json`: one object for programs.
- `progress`: a line on the terminal that moves while something runs.
"""
