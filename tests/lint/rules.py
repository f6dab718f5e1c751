"""The list of all rules.

A rule is a function that yields the findings in a tree. The first line of its docstring is its summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.lint.ages import ages
from tests.lint.constants import overwritten_constants
from tests.lint.destinations import destination_names
from tests.lint.error_texts import error_texts
from tests.lint.errors import code_names, error_classes, error_codes, error_hints, hint_commands
from tests.lint.external import actionlint, documentation, shellcheck, zizmor
from tests.lint.generated import jar_checksums, jar_list, type_page, vulnerability_exceptions
from tests.lint.guarantees import guarantees
from tests.lint.handled_messages import handled_messages
from tests.lint.imported_names import imported_names
from tests.lint.language import language_of_code, language_of_docs, language_of_tests
from tests.lint.late_reads import late_reads
from tests.lint.layout import machine_paths, source_roots
from tests.lint.lock_limits import lock_limits
from tests.lint.locks import locks_agree, locks_name_no_host, locks_satisfy_the_project
from tests.lint.names_in_sql import parsed_names
from tests.lint.ownership import pool_jobs, record_owners, state_owners
from tests.lint.pages import (
    alerts_page,
    api_page,
    benchmarks_page,
    commands_of_contributing,
    contracts_on_pages,
    layer_tables,
    paths_on_pages,
    workflow_targets,
)
from tests.lint.process_state import process_state
from tests.lint.public_names import golden_names, names_of_examples
from tests.lint.shared_state import frozen_values
from tests.lint.silent_threads import silent_threads
from tests.lint.source_calls import source_calls
from tests.lint.tests_code import helper_imports, own_waits, private_attributes, shared_logs, short_limits
from tests.lint.tree import Finding, Tree
from tests.lint.tutorials import tutorials
from tests.lint.type_recipe import type_recipe
from tests.lint.workflows import workflow_jobs_end

Rule = Callable[[Tree], Iterator[Finding]]

RULES: Final[tuple[Rule, ...]] = (
    ages,
    alerts_page,
    api_page,
    benchmarks_page,
    code_names,
    commands_of_contributing,
    contracts_on_pages,
    destination_names,
    error_classes,
    error_codes,
    error_hints,
    error_texts,
    frozen_values,
    golden_names,
    guarantees,
    handled_messages,
    helper_imports,
    hint_commands,
    imported_names,
    jar_list,
    language_of_code,
    language_of_docs,
    language_of_tests,
    late_reads,
    layer_tables,
    lock_limits,
    locks_agree,
    locks_name_no_host,
    locks_satisfy_the_project,
    machine_paths,
    names_of_examples,
    overwritten_constants,
    own_waits,
    parsed_names,
    paths_on_pages,
    pool_jobs,
    private_attributes,
    process_state,
    record_owners,
    shared_logs,
    short_limits,
    silent_threads,
    source_calls,
    source_roots,
    state_owners,
    tutorials,
    type_page,
    type_recipe,
    vulnerability_exceptions,
    workflow_jobs_end,
    workflow_targets,
)
IN_CI: Final[tuple[Rule, ...]] = (actionlint, documentation, jar_checksums, shellcheck, zizmor)
"""Rules that are slow, or whose program may have to be installed first."""


def name_of(rule: Rule) -> str:
    """Return a rule's name, such as error-codes."""
    return rule.__name__.replace("_", "-")


def summary_of(rule: Rule) -> str:
    """Return the first line of a rule's docstring."""
    return (rule.__doc__ or "").partition("\n")[0]
