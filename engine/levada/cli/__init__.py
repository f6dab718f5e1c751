"""The ``levada`` command. Parses arguments and prints; whatever it does, a Python caller can do too."""
