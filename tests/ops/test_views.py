# SPDX-License-Identifier: Apache-2.0
"""Operators that rename, move, join and cut: against onnxruntime."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from onnx import TensorProto, helper

import hotset
from helpers import check_node, failure, run, tensor

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def numbers(shape, dtype=np.float32):
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("shape", "target", "attributes"),
    [
        ((3, 4), (-1,), {}),
        ((2, 6), (3, -1, 2), {}),
        ((3, 4, 5), (0, -1), {}),
        ((3, 4, 5), (0, 0, 5), {}),
        ((0, 4), (0, 2, 2), {}),
        ((0, 4), (2, 0), {"allowzero": 1}),
        ((1,), (), {}),
        ((), (1, 1), {}),
    ],
)
@pytest.mark.parametrize("constant", [(), (1,)])
def test_reshape(shape, target, attributes, constant):
    check_node("Reshape", [numbers(shape), ints(*target)], attributes, constant=constant)


def test_reshape_failures():
    a = numbers((3, 4))
    assert "[3,4]" in failure("Reshape", [a, ints(5, -1)])
    assert "[3,5]" in failure("Reshape", [a, ints(3, 5)])
    assert "-1" in failure("Reshape", [a, ints(-1, -1)])
    assert "does not have" in failure("Reshape", [a, ints(3, 4, 0)])
    assert "-2" in failure("Reshape", [a, ints(-2, 6)])


def test_squeeze_and_unsqueeze():
    a = numbers((1, 3, 1, 2))
    check_node("Squeeze", [a])
    check_node("Squeeze", [a, ints(0, -2)])
    check_node("Squeeze", [a, ints()])
    check_node("Squeeze", [a], {"axes": [2]}, opset=11)
    check_node("Unsqueeze", [a, ints(-1, 0)])
    check_node("Unsqueeze", [a], {"axes": [1, 3]}, opset=11)
    for axis in range(5):
        check_node("Flatten", [a], {"axis": axis})
    check_node("Identity", [a])
    assert "dimension 1" in failure("Squeeze", [a, ints(1)])
    assert "out of range" in failure("Unsqueeze", [a, ints(7)])
    assert "twice" in failure("Unsqueeze", [a, ints(0, 0)])


def test_shape_and_size():
    a = numbers((2, 3, 4))
    for attributes in ({}, {"start": 1}, {"end": -1}, {"start": -2, "end": 9}, {"start": 2, "end": 1}):
        check_node("Shape", [a], attributes, output_types=(np.int64,))
    check_node("Size", [a], output_types=(np.int64,))


@pytest.mark.parametrize("perm", list(itertools.permutations(range(4))))
def test_transpose(perm):
    a = numbers((2, 3, 4, 5))
    check_node("Transpose", [a], {"perm": perm})
    for shape in ((1, 3, 1, 5), (2, 1, 17, 33)):
        got = run("Transpose", [numbers(shape, np.int64)], {"perm": perm})[0]
        np.testing.assert_array_equal(got, np.transpose(numbers(shape, np.int64), perm))


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_transpose_of_large_matrices(dtype):
    a = np.random.default_rng(1).integers(0, 99, (300, 401)).astype(dtype)
    np.testing.assert_array_equal(run("Transpose", [a])[0], a.T)
    np.testing.assert_array_equal(
        run("Transpose", [a.reshape(3, 100, 401)], {"perm": [0, 2, 1]})[0], np.swapaxes(a.reshape(3, 100, 401), 1, 2)
    )
    np.testing.assert_array_equal(
        run("Transpose", [a[:300].reshape(30, 10, 401)], {"perm": [1, 0, 2]})[0], a.reshape(30, 10, 401).swapaxes(0, 1)
    )


def test_transpose_failures():
    assert "perm" in failure("Transpose", [numbers((2, 3))], {"perm": [0, 0]})
    assert "rank 2" in failure("Transpose", [numbers((2, 3))], {"perm": [0, 1, 2]})


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis):
    parts = [numbers([2 if i != axis % 3 else n for i in range(3)]) for n in (1, 3, 0, 2)]
    check_node("Concat", parts, {"axis": axis})
    check_node("Concat", parts[:1], {"axis": axis})
    assert "axis" in failure("Concat", [numbers((2, 3)), numbers((3, 2))], {"axis": 0})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_split(axis):
    a = numbers((6, 6, 6))
    check_node("Split", [a, ints(1, 2, 3)], {"axis": axis}, output_types=(None,) * 3)
    first, last = run("Split", [a, ints(1, 0, 5)], {"axis": axis}, constant=(1,), output_types=(None, "", None))  # onnxruntime crashes
    np.testing.assert_array_equal(np.concatenate([first, last], axis), a)
    check_node("Split", [a], {"axis": axis, "num_outputs": 4}, output_types=(None,) * 4)
    check_node("Split", [a], {"axis": axis}, opset=13, output_types=(None,) * 2)
    check_node("Split", [a], {"axis": axis, "split": [4, 2]}, opset=11, output_types=(None,) * 2)
    assert "sum" in failure("Split", [a, ints(1, 2)], {"axis": axis}, output_types=(None,) * 2)
    assert "exceed" in failure("Split", [a, ints(1, 7)], {"axis": axis}, output_types=(None,) * 2)


BOUND = st.sampled_from([-(2**63), -9, -3, -1, 0, 1, 2, 5, 9, 2**63 - 1])


@FEW
@given(shape=array_shapes(min_dims=1, max_dims=4, max_side=5), data=st.data())
def test_slice(shape, data):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, max_size=len(shape)))
    starts, ends = (data.draw(st.lists(BOUND, min_size=len(axes), max_size=len(axes))) for _ in range(2))
    steps = data.draw(st.lists(st.sampled_from([-3, -2, -1, 1, 1, 2, 4]), min_size=len(axes), max_size=len(axes)))
    signed = [a - len(shape) if i % 2 else a for i, a in enumerate(axes)]
    a = numbers(shape)
    index = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[axis]
        start, end = start + size if start < 0 else start, end + size if end < 0 else end
        start = min(max(start, 0), size if step > 0 else size - 1)
        end = min(max(end, 0 if step > 0 else -1), size if step > 0 else size - 1)
        index[axis] = slice(start, None if end < 0 else end, step)
    got = run("Slice", [a, ints(*starts), ints(*ends), ints(*signed), ints(*steps)])[0]
    np.testing.assert_array_equal(got, a[tuple(index)])


def test_slice_forms():
    a = numbers((4, 5, 6))
    check_node("Slice", [a, ints(1), ints(3)])
    check_node("Slice", [a, ints(1), ints(3), ints(2)], constant=(1, 2, 3))
    check_node("Slice", [a, ints(0, -3), ints(2, 100), ints(0, 2), ints(1, 2)])
    check_node("Slice", [a[:1], ints(1), ints(3), ints(1)])
    check_node("Slice", [a], {"starts": [1, 0], "ends": [3, -1], "axes": [0, 2]}, opset=9)
    assert "step" in failure("Slice", [a, ints(0), ints(1), ints(0), ints(0)])


@FEW
@given(shape=array_shapes(min_dims=1, max_dims=4, max_side=4, min_side=0), data=st.data())
def test_expand_and_tile(shape, data):
    a = numbers(shape)
    target = [data.draw(st.sampled_from([1, 3])) if d == 1 else data.draw(st.sampled_from([1, d])) for d in shape]
    target = data.draw(st.lists(st.integers(1, 3), max_size=2)) + target
    check_node("Expand", [a, ints(*target)])
    check_node("Tile", [a, ints(*data.draw(st.lists(st.integers(0, 3), min_size=len(shape), max_size=len(shape))))])


def test_range_and_constants():
    scalar = lambda v, dtype: np.array(v, dtype)  # noqa: E731
    for dtype, values in ((np.int64, [(1, 10, 2), (10, 1, -3), (1, 1, 1), (5, 1, 1)]), (np.float32, [(0, 1, 0.3), (2, -2, -0.5)])):
        for triple in values:
            check_node("Range", [scalar(v, dtype) for v in triple])
    assert "delta" in failure("Range", [scalar(0, np.int64), scalar(4, np.int64), scalar(0, np.int64)])
    value = np.array([2.5], np.float32)
    check_node("ConstantOfShape", [ints(2, 3)], {"value": tensor("value", value)}, output_types=(np.float32,))
    check_node("ConstantOfShape", [ints(2, 0)], {"value": tensor("value", ints(7))}, output_types=(np.int64,))
    check_node("ConstantOfShape", [ints(3)], output_types=(np.float32,))


def test_trilu():
    a = numbers((2, 4, 5))
    for upper in (0, 1):
        check_node("Trilu", [a], {"upper": upper})
        for k in (-9, -2, 1, 9):
            check_node("Trilu", [a, np.array(k)], {"upper": upper})


def test_four_bit_tensors_are_views_only():
    a = np.arange(-8, 8).astype(ml_dtypes.int4).reshape(4, 4)
    text = failure("Transpose", [a], constant=(0,), output_types=(ml_dtypes.int4,))
    assert "int4" in text
    value = helper.make_tensor("value", TensorProto.INT4, [1], [3])
    with pytest.raises(hotset.Unsupported, match="value of int4"):
        run("ConstantOfShape", [ints(3)], {"value": value}, output_types=(ml_dtypes.int4,))
