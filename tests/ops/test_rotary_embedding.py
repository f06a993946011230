# SPDX-License-Identifier: Apache-2.0
"""RotaryEmbedding of both domains and MRotaryEmbedding against the float64 model and onnxruntime."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from helpers import run, run_onnxruntime
from ops.attention_cases import DTYPES, assert_near, normal
from reference import attention as reference

CONTRIB = {"domain": "com.microsoft"}


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    form=st.sampled_from(["offset", "scalar", "ids", "standard", "standard_rows", "multi"]),
    batch=st.integers(1, 3),
    rows=st.sampled_from([1, 2, 7, 40]),
    heads=st.integers(1, 5),
    size=st.sampled_from([8, 16, 30, 64, 200]),
    partial=st.booleans(),
    four=st.booleans(),
    interleaved=st.integers(0, 1),
    threads=st.integers(1, 2),
)
def test_matches_the_model(seed, dtype, form, batch, rows, heads, size, partial, four, interleaved, threads):
    rng = np.random.default_rng(seed)
    half = max(1, size // 4) if partial else size // 2
    attributes = {"interleaved": interleaved}
    if partial:
        attributes["rotary_embedding_dim"] = 2 * half
    if partial or (not four and form in ("standard", "standard_rows", "multi")):
        attributes["num_heads"] = heads
    x = normal(rng, dtype, *((batch, heads, rows, size) if four else (batch, rows, heads * size)))
    table = rows + 40
    cos, sin = (normal(rng, dtype, *((batch, rows, half) if form == "standard_rows" else (table, half))) for _ in range(2))
    positions = rng.integers(0, table, (batch, rows))
    op, arguments = "RotaryEmbedding", CONTRIB
    if form.startswith("standard"):
        inputs, arguments = [x, cos, sin, positions][: 3 if form == "standard_rows" else 4], {"opset": 23}
        positions = None if form == "standard_rows" else positions
    elif form == "multi":
        op = "MRotaryEmbedding"
        ids, layout, third = rng.integers(0, table, (3, batch, rows)), int(rng.integers(0, 2)), half // 3
        attributes.update(mrope_section=[half - 2 * third, third, third], mrope_layout=layout)
        inputs, positions = [x, ids, cos, sin], reference.mrotary_positions(ids, attributes["mrope_section"], layout, half)
    elif form == "ids":
        inputs = [x, positions, cos, sin]
    else:
        offset = int(rng.integers(0, 41))
        inputs = [x, np.array(offset if form == "scalar" else [offset]), cos, sin]
        positions = np.broadcast_to(offset + np.arange(rows), (batch, rows))
    expected = reference.rotary_embedding(x, cos, sin, positions, heads=heads, interleaved=interleaved)
    got = run(op, inputs, attributes, threads, **arguments)[0]
    assert_near(got, expected)
    if dtype == np.float16:  # float32 arithmetic, rounded once
        assert (got == expected.astype(np.float32).astype(dtype)).mean() > 0.995


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_matches_onnxruntime(dtype, interleaved):
    rng = np.random.default_rng(interleaved)
    x, cos, sin = normal(rng, dtype, 2, 6, 48), normal(rng, dtype, 20, 8), normal(rng, dtype, 20, 8)
    ids = rng.integers(0, 20, (2, 6))
    attributes = {"interleaved": interleaved}
    assert_near(
        run("RotaryEmbedding", [x, ids, cos, sin], attributes, **CONTRIB)[0],
        run_onnxruntime("RotaryEmbedding", [x, ids, cos, sin], attributes, **CONTRIB)[0],
    )
    attributes["num_heads"] = 3
    standard = run_onnxruntime("RotaryEmbedding", [x, cos, sin, ids], attributes, opset=23)[0]
    assert_near(run("RotaryEmbedding", [x, cos, sin, ids], attributes, opset=23)[0], standard)


def test_scale_is_ignored():
    rng = np.random.default_rng(1)
    inputs = [normal(rng, np.float32, 1, 3, 16), np.array([0]), normal(rng, np.float32, 4, 8), normal(rng, np.float32, 4, 8)]
    np.testing.assert_array_equal(
        run("RotaryEmbedding", inputs, {"scale": 3.0}, **CONTRIB)[0], run("RotaryEmbedding", inputs, **CONTRIB)[0]
    )


X, TABLE = np.zeros((1, 3, 32), np.float32), np.zeros((4, 8), np.float32)
REFUSALS = [
    ({}, [X, np.array([2]), TABLE, TABLE], "position_ids\\[0\\] is 2, cos_cache has 4 rows"),
    ({}, [X, np.array([[0, 4, 0]]), TABLE, TABLE], "position_ids\\[1\\] is 4"),
    ({}, [X, np.array([[0, -1, 0]]), TABLE, TABLE], "position_ids\\[1\\] is -1"),
    ({}, [X, np.array([[0, 1]]), TABLE, TABLE], "position_ids has shape \\[1,2\\]"),
    ({}, [X, np.array([0]), TABLE, TABLE[:3]], "sin_cache \\[3,8\\]"),
    ({}, [X[0], np.array([0]), TABLE, TABLE], "input has shape \\[3,32\\]"),
    ({}, [X[:, :, :30], np.array([0]), TABLE, TABLE], "input has shape \\[1,3,30\\]"),
    ({"rotary_embedding_dim": 16}, [X, np.array([0]), TABLE, TABLE], "needs num_heads"),
    ({"rotary_embedding_dim": 8, "num_heads": 2}, [X, np.array([0]), TABLE, TABLE], "cos_cache has shape \\[4,8\\]"),
    ({"interleaved": 2}, [X, np.array([0]), TABLE, TABLE], "interleaved is 2"),
]


@pytest.mark.parametrize(("attributes", "inputs", "text"), REFUSALS)
def test_refuses(attributes, inputs, text):
    with pytest.raises(hotset.Error, match=text):
        run("RotaryEmbedding", inputs, attributes, **CONTRIB)
