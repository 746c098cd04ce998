"""Explanations of findings and errors: the sections of ``symptoms.rst``, which the documentation includes."""

from __future__ import annotations

import difflib
import functools
import re
from importlib import resources

from detrand.errors import ArgumentError

_SECTION = re.compile(r"^\.\. _symptom-([\w-]+):\n\n(.*?)(?=^\.\. _|^[^\n]+\n---|\Z)", re.DOTALL | re.MULTILINE)


@functools.cache
def sections() -> dict[str, str]:
    """Return the sections by the names of their symptoms, in reStructuredText."""
    text = resources.files("detrand.report").joinpath("symptoms.rst").read_text(encoding="utf-8")
    return {name: section.strip() for name, section in _SECTION.findall(text)}


def explanation(symptom: str) -> str:
    """Return the explanation of a symptom as plain text, with a line for each paragraph and item of a list.

    Args:
      symptom: the name of a section, in upper or lower case: ``"value"``, ``"ScopeError"``.

    Raises:
      ArgumentError: if there is no such section.
    """
    names = {name.lower(): name for name in sections()}
    if symptom.lower() not in names:
        close = difflib.get_close_matches(symptom.lower(), names, n=1)
        instead = f"Did you mean {names[close[0]]}? " if close else ""
        raise ArgumentError(f"there is no symptom {symptom!r}. {instead}`detrand explain` lists all symptoms")
    return _as_text(sections()[names[symptom.lower()]])


def list_of_symptoms() -> str:
    """Return the names of all symptoms with the headings of their sections, a line each."""
    width = max(map(len, sections()))
    headings = {name: section.partition("\n")[0] for name, section in sections().items()}
    return "\n".join(
        f"{name:<{width}}  {'' if heading == name else heading}".rstrip() for name, heading in headings.items()
    )


def _as_text(section: str) -> str:
    section = re.sub(r"^~+$", "", section, flags=re.MULTILINE)
    section = re.sub(r":doc:`(\w+)`", r"“\1” in the documentation", section)
    section = re.sub(r":ref:`(.*?)\s<symptom-(.*?)>`", r"\1 (detrand explain \2)", section, flags=re.DOTALL)
    section = section.replace(".. code-block:: text\n", "").replace("``", "`")
    paragraphs = re.split(r"\n{2,}|\n(?=- )", section)
    return "\n\n".join(text if text.startswith(" ") else " ".join(text.split()) for text in paragraphs)
