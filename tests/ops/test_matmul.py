# SPDX-License-Identifier: Apache-2.0
"""Products against onnxruntime."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from helpers import check_all_floats, check_node, failure, run

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def numbers(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@FEW
@given(shapes=mutually_broadcastable_shapes(signature=np.matmul.signature, max_dims=3, max_side=5))
def test_broadcasting(shapes):
    a, b = (numbers(shape, i) for i, shape in enumerate(shapes.input_shapes))
    check_node("MatMul", [a, b], factor=3)
    check_node("MatMul", [a.astype(np.float64), b.astype(np.float64)], factor=3)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 11, 12, 13, 40])
@pytest.mark.parametrize("constant", [(), (1,)])
def test_rows(m, constant):
    check_all_floats("MatMul", [numbers((m, 100)), numbers((100, 83), 1)], factor=5, constant=constant)


def test_three_dimensions_by_two():
    check_all_floats("MatMul", [numbers((2, 3, 70)), numbers((70, 33), 1)], factor=5)


@pytest.mark.parametrize("shape", [(1, 1500, 1700), (600, 300, 700), (24, 64, 1000)])
def test_large_products_are_shared_among_threads(shape):
    m, k, n = shape
    check_all_floats("MatMul", [numbers((m, k)), numbers((k, n), 1)], factor=20)


def test_threads_do_not_change_the_bits():
    a, b = numbers((5, 300)), numbers((300, 1000), 1)
    for dtype in (np.float32, np.float16):
        one, two = (run("MatMul", [a.astype(dtype), b.astype(dtype)], threads=t)[0] for t in (1, 2))
        np.testing.assert_array_equal(one, two)


def test_integers():
    rng = np.random.default_rng(0)
    for dtype in (np.int32, np.int64):
        check_node("MatMul", [rng.integers(-99, 99, (3, 4, 5)).astype(dtype), rng.integers(-99, 99, (5, 6)).astype(dtype)])


def test_empty():
    assert run("MatMul", [np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)])[0].tolist() == [[0] * 3] * 2
    assert run("MatMul", [np.zeros((0, 4), np.float32), numbers((4, 3))])[0].shape == (0, 3)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c", [None, (), (1,), (33,), (1, 33), (7, 1), (7, 33)])
def test_gemm(trans_a, trans_b, c):
    a, b = numbers((20, 7) if trans_a else (7, 20)), numbers((33, 20) if trans_b else (20, 33), 1)
    inputs = [a, b] + ([] if c is None else [numbers(c, 2)])
    check_node("Gemm", inputs, {"transA": trans_a, "transB": trans_b}, factor=5)
    check_all_floats("Gemm", inputs, {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0}, factor=5)


def test_gemm_of_integers():
    a, b, c = np.array([[-3, 5]]), np.array([[7, -1], [2, 4]]), np.array([-4, 9])
    for dtype in (np.int32, np.int64):
        inputs = [x.astype(dtype) for x in (a, b, c)]
        assert run("Gemm", inputs, {"alpha": 2.0, "beta": 3.0})[0].tolist() == (2 * (a @ b) + 3 * c).tolist()
        assert run("Gemm", inputs, {"alpha": 0.5, "beta": 0.0})[0].tolist() == [[-5, 11]]
    unsigned = [np.array([[2]], np.uint32), np.array([[3]], np.uint32), np.array([1], np.uint32)]
    assert run("Gemm", unsigned, {"alpha": -1.0, "beta": 1e30})[0].tolist() == [[2**32 - 1]]


def test_fused_matmul():
    a, b = numbers((2, 3, 4, 5)), numbers((3, 5, 6), 1)
    swap = lambda x: np.ascontiguousarray(np.swapaxes(x, -1, -2))  # noqa: E731
    for attributes, inputs in (({"alpha": 0.3}, [a, b]), ({"transB": 1}, [a, swap(b)]), ({"transA": 1, "alpha": 2.0}, [swap(a), b])):
        check_all_floats("FusedMatMul", inputs, attributes, domain="com.microsoft", factor=5)


def test_failures():
    assert "[2,3]" in failure("MatMul", [numbers((2, 3)), numbers((4, 2))])
    assert "equal types" in failure("MatMul", [numbers((2, 3)), numbers((3, 2), dtype=np.float64)])
    assert "C of shape" in failure("Gemm", [numbers((2, 3)), numbers((3, 4)), numbers((3,))])
