"""Settings of Sphinx. `./run docs` makes the site of docs/*.md in build/docs; every warning is an error. pages.py adds
the parts that GitHub does not show."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import pages  # noqa: E402: pages.py lies beside this file

project = "shardwire"
copyright = "the authors of shardwire"
html_title = "shardwire"
html_theme = "furo"
html_show_sphinx = html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["site", "examples"]
myst_heading_anchors = 4
highlight_language = "none"  # of blocks without a language: pictures of characters
smartquotes = False
autodoc_typehints = "none"  # the docstrings give the types in words, and signatures stay short
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # torch's docstrings refer to torch's own pages
nitpicky = True  # a :func:`name` without a target is an error


def setup(app):
    pages.setup(app)
