"""Curves: how a cost grows with the size of the work. One module for each part of the engine.

Every curve is measured in CPU seconds, because wall seconds vary with the machine. A curve has the exponent ``b`` of
``y = a * x ** b``, fitted to its points: 1 is a cost that grows as the work does, 0 is one that does not depend on it.
"""
