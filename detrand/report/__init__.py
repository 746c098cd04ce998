"""Renderings of a `detrand.Report`; `detrand.validation` does not import them.

- `text`: a table and details on a terminal, and a line for each check while it runs.
- `progress`: the line on a terminal that shows what is running.
- `html`: a page for a browser. ``html.css`` decides how it looks, and ``html.js`` copies texts.
- `charts`: the charts of the page (SVG).
- `markdown`: a comment on a pull request.
- `json`: one object for programs.
- `junit`: the checks as XML for CI servers.
- `symptoms`: explanations of findings and errors; their text is in ``symptoms.rst``.
- `annotations`: the findings at their lines of code, on GitHub.
"""
