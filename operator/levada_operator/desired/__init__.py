"""The desired state: pure ``build_*`` functions from an accepted manifest to objects.

Nothing here depends on the live objects. `levada_operator.decide` compares the two.
"""
