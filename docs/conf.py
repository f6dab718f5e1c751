"""The documentation's settings: `make docs` builds it with Sphinx, where each warning is an error."""

from __future__ import annotations

import tomllib
from pathlib import Path

project = "Levada"
author = "The Levada authors"
copyright = author  # noqa: A001 - the name is Sphinx's
release = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "scale"]
source_suffix = {".md": "markdown"}
# Links between pages name headings as on GitHub.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
html_theme = "furo"
html_title = f"Levada {release}"
nitpicky = True
# Types of other libraries are not on this site. Links between pages stay checked.
nitpick_ignore_regex = [("py:.*", ".*")]
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
