"""Command that writes each CustomResourceDefinition to a file in the given folder."""

import sys
from pathlib import Path

from levada_operator.crds.definition import build_crds, render

for name, crd in build_crds().items():
    (Path(sys.argv[1]) / f"{name}.yaml").write_text(render(crd))
