"""The configuration of Sphinx: ``python -m sphinx -W docs docs/_build`` builds the pages without network access."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before autodoc imports TensorFlow

from sphinx.addnodes import pending_xref

import detrand

project = "detrand"
copyright = "The detrand authors"
version = release = detrand.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
copybutton_prompt_text = ">>> |\\.\\.\\. "
copybutton_prompt_is_regexp = True
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"detrand {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_extra_path = ["llms.txt"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # Args has the types in words
napoleon_numpy_docstring = False

default_role = "py:obj"  # `Comparison` in a docstring is a link, and must have a target
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", "[a-z_]+"),  # arguments have no target
    ("py:class", r"detrand\.validation\.results\.Fault"),  # for detrand's own decisions
    # Links to other projects would need their inventories from the network.
    ("py:.*", r"(tf|keras|tf_keras|np|torch|flax|collections|pathlib)\..*"),
]


def setup(app):
    """Make a class name in a docstring a link, without the name of its module."""
    app.connect("doctree-read", _look_for_classes_everywhere)


def _look_for_classes_everywhere(app, doctree):
    for reference in doctree.findall(pending_xref):
        if reference["reftype"] == "obj" and reference["reftarget"][:1].isupper():
            reference["refspecific"] = True
