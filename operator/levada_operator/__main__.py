"""Entry point of ``python -m levada_operator``."""

from levada_operator.app.main import main

main()
