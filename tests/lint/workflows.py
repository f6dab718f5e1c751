"""The workflows of GitHub."""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from tests.lint.tree import Finding, Tree, line_of


def workflow_jobs_end(tree: Tree) -> Iterator[Finding]:
    """Report jobs of workflows without timeout-minutes."""
    for path in tree.below(".github/workflows", suffix=".yml"):
        text = tree.text(path)
        for name, job in yaml.safe_load(text)["jobs"].items():
            if "timeout-minutes" not in job:
                yield Finding(path, line_of(text, f"  {name}:"), f"the job {name} has no timeout-minutes")
