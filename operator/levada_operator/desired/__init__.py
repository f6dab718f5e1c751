"""What every owned object should be: pure ``build_*`` functions from an accepted manifest to objects.

Nothing here knows what is there now; that is `levada_operator.decide`'s.
"""
