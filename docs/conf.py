"""Sphinx: MyST pages with the furo theme; `make docs` treats warnings as errors."""

from router.process.build import VERSION

project = "Dragoman"
release = VERSION
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"Dragoman {release}"
exclude_patterns = ["_build"]
