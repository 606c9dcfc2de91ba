"""Sphinx: MyST pages with the furo theme; `make docs` treats warnings as errors."""

from router.process.build import VERSION

project = "Message router"
release = VERSION
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"Message router {release}"
exclude_patterns = ["_build"]
