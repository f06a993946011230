# SPDX-License-Identifier: Apache-2.0
"""The conformance table: every operator is in it, and a part of its cases hold."""

import numpy as np
import pytest

import conformance


def test_every_operator_has_cases():
    assert conformance.missing_operators() == []


def test_an_operator_without_cases_is_named(monkeypatch):
    kept = [g for g in conformance.GENERATORS if (g.domain, g.op) != ("com.microsoft", "QMoE")]
    monkeypatch.setattr(conformance, "GENERATORS", kept)
    assert conformance.missing_operators() == [("com.microsoft", "QMoE")]


def test_the_table_lists_the_operators_of_the_library():
    assert conformance.table_operators() == conformance.library_operators()


@pytest.mark.parametrize("operators", [r"^\.[A-L]", r"^\.[M-Z]", "^(com|hotset)"])
def test_cases_are_within_their_bounds(operators):
    rows = conformance.run_all(operators, quick=True)
    assert len(rows) > 60
    assert [f"{row.op}, {row.type}: {text}" for row in rows for text in row.failures] == []
    assert sum(row.compared for row in rows) > 100


def test_errors_are_seen():
    error = conformance.largest_error
    one = np.ones(3, np.float32)
    assert error(one * np.float32(1.5), one) == 0.5
    assert error(one, np.ones((3, 1))) == np.inf
    assert error(one, np.array([1, 1, np.nan])) == np.inf
    assert error(np.array([1, 2]), np.array([1, 3])) == np.inf
    assert error(np.array([np.inf], np.float16), np.array([70000.0])) == 0
