"""Runs the rules of the project over its files: ``python -m tests.lint [--list | --ci | RULE ...]``."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence

from tests.lint.external import UnavailableError
from tests.lint.rules import IN_CI, RULES, Rule, name_of, summary_of
from tests.lint.tree import ROOT, Tree


def main() -> int:
    """Print what the rules find, and return 1 if they find anything."""
    every = {name_of(rule): rule for rule in (*RULES, *IN_CI)}
    parser = argparse.ArgumentParser(prog="python -m tests.lint", description="Check the project's files by its rules.")
    parser.add_argument("rules", nargs="*", metavar="RULE", help="run these alone")
    parser.add_argument("--list", action="store_true", help="print the rules")
    parser.add_argument("--ci", action="store_true", help="run the rules that only CI runs")
    options = parser.parse_args()
    if options.list:
        notes = dict.fromkeys(IN_CI, " In CI only.")
        print("\n".join(f"{name}: {summary_of(rule)}{notes.get(rule, '')}" for name, rule in every.items()))
        return 0
    if unknown := [name for name in options.rules if name not in every]:
        parser.error(f"no such rule: {', '.join(unknown)}. --list prints them")
    chosen = [every[name] for name in options.rules] or (IN_CI if options.ci else RULES)
    return 1 if report(chosen) else 0


def report(rules: Sequence[Rule]) -> int:
    """Run the rules over the project's files, print the findings, and return their number."""
    gc.disable()  # syntax trees are millions of objects, and none of them is garbage
    tree, number = Tree(ROOT), 0
    for rule in rules:
        try:
            found = sorted(rule(tree), key=lambda finding: (finding.path, finding.line))
        except UnavailableError as reason:
            print(f"{name_of(rule)} is skipped: {reason}", file=sys.stderr)
            continue
        number += len(found)
        for finding in found:
            print(f"{finding.path}:{finding.line}: {name_of(rule)}: {finding.text}")
    return number


if __name__ == "__main__":
    sys.exit(main())
