"""The CustomResourceDefinitions, generated: the spec from `levada.spec`, the status from what `decide` writes.

``python -m levada_operator.crds crds`` writes them into a folder; a test compares.
"""

from levada_operator.crds.definition import build_crds, render

__all__ = ["build_crds", "render"]
