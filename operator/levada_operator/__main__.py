"""Entry point of ``python -m levada_operator``, and of ``python -m levada_operator orphans``."""

import gc
import sys

# kopf imports the official client of Kubernetes if it is installed, only to recognize its models. That takes 25 MB, and
# the operator has no such models. None makes an import raise ModuleNotFoundError.
sys.modules.setdefault("kubernetes", None)  # type: ignore[arg-type]  # as the import system documents it
# Among what imports make, there is nothing to collect.
gc.disable()

from levada_operator.app.main import main  # noqa: E402 - the lines above must come first

gc.freeze()
gc.enable()

if sys.argv[1:2] == ["orphans"]:
    from levada_operator.app.orphans import show_orphans

    sys.exit(show_orphans(sys.argv[2:]))
main()
