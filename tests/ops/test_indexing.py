# SPDX-License-Identifier: Apache-2.0
"""Gather, scatter, top-k and running sums against onnxruntime."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from helpers import check_node, failure, run

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def rng(seed=0):
    return np.random.default_rng(seed)


@FEW
@given(shape=array_shapes(min_dims=1, max_dims=4, max_side=5), index_shape=array_shapes(min_dims=0, max_dims=2, max_side=3), data=st.data())
def test_gather(shape, index_shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    dtype = data.draw(st.sampled_from([np.float32, np.float16, np.int64, np.uint8, bool]))
    indices = rng(1).integers(-shape[axis], shape[axis], index_shape).astype(data.draw(st.sampled_from([np.int32, np.int64])))
    check_node("Gather", [rng(2).integers(0, 2, shape).astype(dtype), indices], {"axis": axis})


def test_gather_of_large_rows():
    table, ids = rng().standard_normal((50, 3000)).astype(np.float32), rng(1).integers(0, 50, (2, 200))
    np.testing.assert_array_equal(run("Gather", [table, ids])[0], table[ids])


def test_bad_indices_are_named():
    a = np.zeros((5, 3), np.float32)
    assert "index 7 at position 1" in failure("Gather", [a, np.array([1, 7])])
    assert "index -6" in failure("Gather", [a, np.array([-6])])
    assert "index 5" in failure("GatherElements", [a, np.array([[5]])])
    assert "index 9" in failure("GatherND", [a, np.array([[9]])])
    assert "index 9" in failure("ScatterElements", [a, np.array([[9]]), a[:1, :1]])
    assert "index 9" in failure("ScatterND", [a, np.array([[9]]), a[:1]])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(axis):
    shape, smaller = (4, 5, 6), [3, 4, 5]
    smaller[axis] = 7
    check_node(
        "GatherElements",
        [rng().standard_normal(shape).astype(np.float32), rng(1).integers(-shape[axis], shape[axis], smaller)],
        {"axis": axis},
    )


def test_gather_nd():
    a = rng().standard_normal((3, 4, 5)).astype(np.float32)
    check_node("GatherND", [a, np.array([[0, 1], [2, -1]])])
    check_node("GatherND", [a, np.array([[[0, 1, 2]], [[2, -1, 0]]])])
    check_node("GatherND", [a, np.array([[1], [0], [3]])], {"batch_dims": 1})
    check_node("GatherND", [a, rng(1).integers(0, 5, (3, 4, 2, 1))], {"batch_dims": 2})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_scatter(reduction, dtype):
    a = rng().integers(-5, 5, (3, 4, 5)).astype(dtype)
    updates = rng(1).integers(-5, 5, (3, 2, 5)).astype(dtype)
    unique = np.argsort(rng(2).random((3, 4, 5)), 1)[:, :2].copy() - 4
    repeated = unique if reduction == "none" else rng(3).integers(-4, 4, (3, 2, 5))
    check_node("ScatterElements", [a, repeated, updates], {"axis": 1, "reduction": reduction}, opset=18)
    check_node("ScatterND", [a, np.array([[0, 1], [2, 3]]), a[0, :2]], {"reduction": reduction}, opset=18)
    if reduction != "none":
        check_node("ScatterND", [a, np.array([[0], [0], [-1]]), a], {"reduction": reduction}, opset=18)


def test_scatter_leaves_its_input_alone():
    a = np.zeros((2, 2), np.float32)
    run("ScatterND", [a, np.array([[0, 0]]), np.ones(1, np.float32)])
    assert (a == 0).all()


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis", "k"), [((3, 32), -1, 4), ((3, 100), -1, 40), ((20, 3), 0, 5), ((2, 64, 2), 1, 33), ((5,), 0, 5), ((4, 3), 1, 0)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_topk(largest, shape, axis, k, dtype):
    x = rng().permutation(int(np.prod(shape))).reshape(shape).astype(dtype)
    check_node("TopK", [x, np.array([k])], {"axis": axis, "largest": largest}, output_types=(None, np.int64))


def test_topk_ties_and_types():
    x = np.array([[1, 3, 3, 2, 3]], np.float32)
    for k in (1, 2, 4):
        values, indices = run("TopK", [x, np.array([k])], output_types=(None, np.int64))
        assert indices.tolist() == [[1, 2, 4, 3][:k]]
    long = np.tile(x, (1, 10))
    assert (
        run("TopK", [long, np.array([20])], output_types=(None, np.int64))[1][0].tolist()
        == [i for i in range(50) if i % 5 in (1, 2, 4)][:20]
    )
    values, indices = run("TopK", [x.astype(np.float16), np.array([2])], {"largest": 0}, output_types=(None, np.int64))
    assert indices.tolist() == [[0, 3]] and values.dtype == np.float16
    big = rng(5).standard_normal((300, 200)).astype(np.float32)
    np.testing.assert_array_equal(
        run("TopK", [big, np.array([8])], output_types=(None, np.int64))[1], np.argsort(-big, 1, kind="stable")[:, :8]
    )
    assert "k is 6" in failure("TopK", [x, np.array([6])], output_types=(None, np.int64))


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum(exclusive, reverse, axis):
    attributes = {"exclusive": exclusive, "reverse": reverse}
    check_node("CumSum", [rng().standard_normal((3, 4, 5)).astype(np.float32), np.array(axis)], attributes)
    check_node("CumSum", [rng().integers(-5, 5, (3, 4, 5)), np.array(axis, np.int32)], attributes)
