"""How the tests themselves are run."""

from __future__ import annotations

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs all tests")
def test_the_tests_of_a_module_go_to_one_process(request: pytest.FixtureRequest) -> None:
    """Else each process starts every Spark and every deployment; pytest-xdist reads the group off the end of the id."""
    assert request.node.nodeid.endswith("@tests/test_suite.py")
