# SPDX-License-Identifier: Apache-2.0
"""Reductions, softmax and norms of vectors against onnxruntime."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from helpers import check_all_floats, check_node, failure, run

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
KINDS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2"]


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("op", KINDS)
@FEW
@given(shape=array_shapes(min_dims=1, max_dims=5, max_side=5), data=st.data())
def test_axes(op, shape, data):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, max_size=len(shape)))
    axes = np.array([a - len(shape) if i % 2 else a for i, a in enumerate(axes)], np.int64)
    attributes = {"keepdims": data.draw(st.integers(0, 1))}
    inputs = [numbers(shape), axes if len(axes) else None]
    # A sum may cancel: its tolerance is relative to the terms.
    check_node(op, inputs, attributes, factor=30)


@pytest.mark.parametrize("op", KINDS)
def test_types_and_forms(op):
    a = numbers((3, 40, 5))
    check_all_floats(op, [np.abs(a) + np.float32(0.5), np.array([1])], factor=3)
    check_node(op, [np.random.default_rng(1).integers(-3, 4, (3, 4, 5)).astype(np.int32), np.array([0, 2])])
    check_node(op, [a], {"axes": [0, 2]}, opset=12 if op == "ReduceSum" else 13, factor=30)
    check_node(op, [a, np.array([1])], constant=(1,), factor=30)
    check_node(op, [np.float32(3)])


def test_no_axes():
    a = numbers((3, 4))
    np.testing.assert_array_equal(run("ReduceSum", [a, np.zeros(0, np.int64)], {"noop_with_empty_axes": 1})[0], a)
    check_node("ReduceSum", [a, np.zeros(0, np.int64)], {"noop_with_empty_axes": 0}, factor=30)


def test_empty_and_large():
    assert run("ReduceSum", [np.zeros((2, 0), np.float32), np.array([1])])[0].tolist() == [[0], [0]]
    assert run("ReduceMax", [np.zeros((2, 0), np.float32), np.array([1])])[0].tolist() == [[-np.inf], [-np.inf]]
    a = numbers((400, 700))
    np.testing.assert_allclose(run("ReduceSum", [a, np.array([1])])[0], a.sum(1, keepdims=True, dtype=np.float64), atol=1e-4)
    np.testing.assert_allclose(run("ReduceMean", [a, np.array([0])])[0], a.mean(0, keepdims=True, dtype=np.float64), atol=1e-5)


def test_bool_and_failures():
    mask = numbers((3, 4)) > 0
    check_node("ReduceMax", [mask, np.array([1])], opset=20)
    assert "out of range" in failure("ReduceSum", [numbers((3, 4)), np.array([2])])
    assert "twice" in failure("ReduceSum", [numbers((3, 4)), np.array([1, -1])])


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(op, axis):
    x = numbers((3, 17, 33)) * np.float32(5)
    check_all_floats(op, [x], {"axis": axis}, factor=2)
    check_node(op, [x], {"axis": axis}, opset=11, factor=2)
    check_node(op, [x + np.float32(1000)], {"axis": axis}, factor=20)


def test_softmax_of_extremes():
    x = np.array([[-10000, 0, 1], [-np.inf, 0, 0], [3e38, -3e38, 0]], np.float32)
    y = run("Softmax", [x])[0]
    assert y[0, 0] == 0 and y[1].tolist() == [0, 0.5, 0.5] and y[2].tolist() == [1, 0, 0]
    large = numbers((500, 300))
    np.testing.assert_allclose(run("Softmax", [large])[0].sum(1), 1, atol=1e-5)


def test_lp_normalization():
    x = numbers((4, 5, 64))
    x[0, 0] = 0
    check_all_floats("LpNormalization", [x], {"p": 2, "axis": -1}, factor=2)
    check_node("LpNormalization", [x], {"p": 1, "axis": 1})
    assert "p is 3" in failure("LpNormalization", [x], {"p": 3})
