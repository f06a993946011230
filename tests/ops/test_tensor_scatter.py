# SPDX-License-Identifier: Apache-2.0
"""ai.onnx::TensorScatter against the model and onnxruntime, in place too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from helpers import run, run_onnxruntime
from ops.attention_cases import DTYPES, run_in_place
from reference import attention as reference


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([*DTYPES, np.int8, np.int64]),
    axis=st.sampled_from([-2, 1]),
    capacity=st.integers(1, 20),
    circular=st.booleans(),
    indexed=st.booleans(),
)
def test_tensor_scatter(seed, dtype, axis, capacity, circular, indexed):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, capacity + 1))
    shape = (3, capacity, 6) if axis == 1 else (3, 2, capacity, 6)
    cache = (10 * rng.standard_normal(shape)).astype(dtype)
    update = (10 * rng.standard_normal((3, rows, 6) if axis == 1 else (3, 2, rows, 6))).astype(dtype)
    inputs = [cache, update] + ([rng.integers(0, 2 * capacity if circular else capacity - rows + 1, 3)] if indexed else [])
    attributes = {"axis": axis, "mode": "circular" if circular else "linear"}
    expected = reference.tensor_scatter(cache, update, inputs[2] if indexed else None, axis, circular)
    np.testing.assert_array_equal(run("TensorScatter", inputs, attributes, opset=24)[0], expected)
    if dtype != DTYPES[2]:  # which onnxruntime takes from files only
        np.testing.assert_array_equal(run_onnxruntime("TensorScatter", inputs, attributes, opset=24)[0], expected)
    inputs[0] = cache.copy()
    np.testing.assert_array_equal(run_in_place("TensorScatter", inputs, attributes, {0: 0}, opset=24)[0], expected)


def test_tensor_scatter_refuses_rows_past_the_end():
    inputs = [np.zeros((1, 4, 2), np.float32), np.zeros((1, 2, 2), np.float32), np.array([3])]
    with pytest.raises(hotset.Error, match="write_indices\\[0\\] is 3: 2 rows do not fit a cache of 4 rows"):
        run("TensorScatter", inputs, {"axis": 1}, opset=24)
