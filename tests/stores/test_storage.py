"""The storages of the project keep what each storage promises below its stores."""

from tests.stores.storage_suite import *  # noqa: F403 - the tests
