"""``python -m levada``: the ``levada`` command."""

from levada.cli import main

main()
