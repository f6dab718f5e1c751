"""The stores of the project have the answers of a plain model to any sequence of calls."""

from tests.stores.model_suite import *  # noqa: F403 - the tests
