"""The generated CustomResourceDefinitions: the spec from `levada.spec`, the status from what `decide` writes.

``python -m levada_operator.crds FOLDER`` writes them. A test compares the committed files.
"""

from levada_operator.crds.definition import build_crds, render

__all__ = ["build_crds", "render"]
