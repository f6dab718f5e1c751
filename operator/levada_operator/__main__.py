"""Entry point of ``python -m levada_operator``."""

import sys

# kopf imports the official client of Kubernetes if it is installed, only to recognize its models. That takes 25 MB, and
# the operator has no such models. None makes an import raise ModuleNotFoundError.
sys.modules.setdefault("kubernetes", None)  # type: ignore[arg-type]  # as the import system documents it

from levada_operator.app.main import main  # noqa: E402 - the line above must come first

main()
