"""Carries out the migrations of a Django project one by one. Runs in the project's environment, without Levada.

The argument is JSON: the settings of Django. The first line of the output lists the steps. Then each line of the input
is answered by a line: the statements of the next step, or the error of a step that was rolled back and comes again.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    # What migrations print is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _configure(json.loads(sys.argv[1]))
    importlib.import_module("django").setup()
    connection = importlib.import_module("django.db").connection
    apps = importlib.import_module("django.apps").apps
    types = importlib.import_module("django.contrib.contenttypes.management")
    executor = importlib.import_module("django.db.migrations.executor").MigrationExecutor(connection)
    plan = [m for m, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())]
    executor.recorder.ensure_schema()
    state = executor._create_project_state(with_applied_migrations=True)
    print(json.dumps([f"{m.app_label}.{m.name}" for m in plan]), file=answers, flush=True)
    for migration in plan:
        for _ in sys.stdin:
            statements: list[str] = []
            try:
                with connection.execute_wrapper(_recorder(statements)):
                    applied = executor.apply_migration(state.clone(), migration)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}", "statements": statements}
                print(json.dumps(answer), file=answers, flush=True)
                continue
            state = applied
            if ("contenttypes", "0002_remove_content_type_name") in executor.recorder.applied_migrations():
                # As after each release of the project, on which its later migrations rely.
                types.create_contenttypes(apps.get_app_config(migration.app_label), verbosity=0, apps=state.apps)
            answer = {"atomic": bool(migration.atomic), "statements": statements}
            print(json.dumps(answer), file=answers, flush=True)
            break
        else:
            return


def _configure(given: dict[str, Any]) -> None:
    """Take the settings, besides those of the project's own module, or of a module of defaults for some of them."""
    module, defaults = given.pop("MODULE"), given.pop("DEFAULTS")
    settings = importlib.import_module("django.conf").settings
    if module:
        os.environ["DJANGO_SETTINGS_MODULE"] = module
        for name, value in given.items():
            setattr(settings, name, value)
        return
    some = vars(importlib.import_module(defaults)) if defaults else {}
    settings.configure(**({name: value for name, value in some.items() if name.isupper()} | given))


def _recorder(statements: list[str]) -> Callable[..., Any]:
    def record(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        statements.append(str(sql))
        return execute(sql, params, many, context)

    return record


if __name__ == "__main__":
    main()
