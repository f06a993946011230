# SPDX-License-Identifier: Apache-2.0
"""com.microsoft::GroupQueryAttention against the float64 model and onnxruntime; chunks, in-place caches, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from helpers import run, run_onnxruntime
from ops.attention_cases import DTYPES, MODES, GqaCase, assert_near, normal, run_in_place
from reference.attention import group_query_attention, resident

OP = "GroupQueryAttention"

cases = st.builds(
    GqaCase,
    seed=st.integers(0, 2**32 - 1),
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from(DTYPES),
    head_size=st.sampled_from([8, 16, 24, 32, 64, 80, 128]),
    group=st.sampled_from([1, 2, 3, 8]),
    kv_heads=st.integers(1, 3),
    batch=st.integers(1, 3),
    rows=st.sampled_from([1, 2, 3, 5, 17, 40, 70]),
    bits=st.sampled_from([0, 0, 4, 8]),
)


@settings(max_examples=150, deadline=None)
@given(case=cases, threads=st.integers(1, 2))
def test_matches_the_model(case, threads):
    expected = group_query_attention(case.attributes, case.inputs, case.history)
    got = run(OP, case.inputs, case.attributes, threads, **case.arguments)
    case.check(got, expected)
    if case.mode == "no_past" or case.inputs[3].shape != expected[1].shape:
        return
    inputs = [None if x is None else x.copy() for x in case.inputs]
    before = [inputs[3].copy(), inputs[4].copy()]
    shared = run_in_place(OP, inputs, case.attributes, {1: 3, 2: 4}, threads, **case.arguments)
    case.check(shared, expected)
    np.testing.assert_array_equal(shared[0], got[0])
    if case.history is None:  # rows after the last token are not touched
        for old, new in zip(before, inputs[3:5], strict=True):
            for b, total in enumerate(case.totals):
                np.testing.assert_array_equal(old[b, :, total:].view(np.uint8), new[b, :, total:].view(np.uint8))


@settings(max_examples=80, deadline=None)
@given(case=cases)
def test_matches_onnxruntime(case):
    if not case.in_onnxruntime():
        return
    try:
        expected = run_onnxruntime(OP, case.inputs, case.attributes, **case.arguments)
    except Exception as error:  # a combination that it refuses
        assert "INVALID_ARGUMENT" in str(error) or "NOT_IMPLEMENTED" in str(error) or "Not" in type(error).__name__, error
        return
    got = run(OP, case.inputs, case.attributes, **case.arguments)
    counts = case.inputs[16] if case.inputs[16] is not None else np.minimum(case.inputs[0].shape[1], case.totals)
    for b, count in enumerate(counts):
        assert_near(got[0][b, :count], expected[0][b, :count], 4 if case.bits and case.dtype == np.float16 else 2)


def test_chunks_of_a_prompt_agree():
    """Any split of a prompt gives the same cache and, within rounding, the same rows."""
    rng = np.random.default_rng(3)
    heads, kv_heads, size, tokens, capacity, window = 4, 2, 32, 50, 64, 9
    qkv = normal(rng, np.float32, 1, tokens, (heads + 2 * kv_heads) * size)
    cos, sin = (f(6 * rng.random((capacity, size // 2))).astype(np.float32) for f in (np.cos, np.sin))
    for windowed in (False, True):
        attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, "local_window_size": window}
        rows = capacity
        if windowed:
            attributes["sliding_window_cache"] = 1
            rows = window + 3
        results = []
        for chunk in (tokens, 1, 7, 16):
            past = [np.zeros((1, kv_heads, rows, size), np.float32) for _ in range(2)]
            parts = []
            for start in range(0, tokens, chunk):
                part = qkv[:, start : start + chunk]
                total = start + part.shape[1]
                inputs = [part, None, None, *past, np.array([total - 1], np.int32), np.array(total, np.int32), cos, sin]
                out, *past = run(OP, inputs, attributes, domain="com.microsoft", output_types=[None] * 3)
                parts.append(out)
            held = resident(tokens, rows, window) if windowed else tokens
            results.append((np.concatenate(parts, 1), *(p[:, :, :held] for p in past)))
        for out, *past in results[1:]:
            assert_near(out, results[0][0])
            for a, b in zip(past, results[0][1:], strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 300])
def test_threads_do_not_change_bits(dtype, rows):
    rng = np.random.default_rng(rows)
    past = [normal(rng, dtype, 1, 2, 3000, 64) for _ in range(2)]
    inputs = [normal(rng, dtype, 1, rows, 8 * 64), None, None, *past, np.array([2600], np.int32), np.array(2601, np.int32)]
    one, *more = (run(OP, inputs, {"num_heads": 4, "kv_num_heads": 2}, n, domain="com.microsoft", output_types=[None]) for n in (1, 2, 3))
    for other in more:
        np.testing.assert_array_equal(one[0], other[0])


def test_nan_stays_in_its_rows():
    rng = np.random.default_rng(4)
    q, k, v = (normal(rng, np.float32, 1, 40, 2 * 16) for _ in range(3))
    v[0, 30, 3] = np.nan
    k[0, 35, 20] = np.inf
    inputs = [q, k, v, None, None, np.array([39], np.int32), np.array(40, np.int32)]
    out = run(OP, inputs, {"num_heads": 2, "kv_num_heads": 2}, domain="com.microsoft", output_types=[None])[0]
    assert np.isfinite(out[0, :30]).all()
    assert np.isnan(out[0, 30:, 3]).all() and np.isfinite(out[0, 30:, 16:20]).sum() > 0
    assert np.isfinite(out[0, 30:35, 16:]).all()


def test_rows_without_visible_keys_are_zero():
    rng = np.random.default_rng(5)
    x = normal(rng, np.float32, 1, 3, 3 * 16)
    bias = np.full((1, 1, 3, 3), -np.inf, np.float32)
    bias[0, 0, 2, 0] = 0
    inputs = [x, None, None, None, None, np.array([2], np.int32), np.array(3, np.int32), None, None, None, bias]
    out = run(OP, inputs, {"num_heads": 1, "kv_num_heads": 1}, domain="com.microsoft", output_types=[None])[0]
    assert (out[0, :2] == 0).all()
    np.testing.assert_allclose(out[0, 2], x[0, 0, 32:], rtol=1e-6)


def test_empty_batch_and_no_rows():
    attributes = {"num_heads": 2, "kv_num_heads": 1}
    types = [None] * 3
    empty = [np.zeros((0, 3, 64), np.float32), None, None, None, None, np.zeros(0, np.int32), np.array(3, np.int32)]
    out, key, _ = run(OP, empty, attributes, domain="com.microsoft", output_types=types)
    assert out.shape == (0, 3, 32) and key.shape == (0, 1, 3, 16)
    past = [normal(np.random.default_rng(i), np.float32, 1, 1, 5, 16) for i in range(2)]
    none = [np.zeros((1, 0, 64), np.float32), None, None, *past, np.array([4], np.int32), np.array(5, np.int32)]
    out, *present = run(OP, none, attributes, domain="com.microsoft", output_types=types)
    assert out.shape == (1, 0, 32)
    for a, b in zip(past, present, strict=True):
        np.testing.assert_array_equal(a, b)


def small_case(mode="decode", **arguments):
    return GqaCase(1, mode, np.float32, 16, batch=2 if mode != "continue" else 1, plain=True, **arguments)


def with_input(index, value):
    def change(case):
        case.inputs[index] = value

    return change


def with_attribute(**attributes):
    return lambda case: case.attributes.update(attributes)


def remove(index):
    return with_input(index, None)


COS = np.ones((4000, 8), np.float32)
REFUSALS = [
    ("decode", with_attribute(kv_num_heads=3), "kv_num_heads is 3"),
    ("decode", with_attribute(num_heads=0), "num_heads is 0"),
    ("decode", with_attribute(causal=2), "causal is 2"),
    ("decode", with_attribute(causal=0, local_window_size=4), "local_window_size is 4"),
    ("decode", with_attribute(local_window_size=0), "local_window_size is 0"),
    ("decode", with_attribute(k_quant_type="PER_ROW"), "'PER_ROW'"),
    ("decode", with_attribute(k_quant_type="PER_TENSOR", kv_cache_bit_width=8), "must both be NONE"),
    ("decode", with_attribute(kv_cache_bit_width=8), "kv_cache_bit_width is 8"),
    ("decode", with_attribute(qk_output=1), "qk_output is 1"),
    ("decode", with_attribute(sliding_window_cache=1), "sliding_window_cache is 1"),
    ("decode", with_attribute(qk_norm_epsilon=-1.0), "epsilon is -1"),
    ("decode", with_attribute(do_rotary=1), "cos_cache and sin_cache are missing"),
    ("decode", remove(4), "past_key and past_value"),
    ("decode", with_input(7, COS), "cos_cache and sin_cache"),
    ("decode", with_input(14, np.ones(16, np.float32)), "q_norm_weight and k_norm_weight"),
    ("decode", with_input(0, np.zeros((2, 64), np.float32)), "query has shape \\[2,64\\]"),
    ("decode", with_input(5, np.zeros(3, np.int32)), "seqlens_k has shape \\[3\\]"),
    ("decode", with_input(5, np.array(0, np.int32)), "seqlens_k has shape \\[\\]"),
    ("decode", with_input(5, np.array([-1, 0], np.int32)), "seqlens_k\\[0\\] is -1"),
    ("decode", with_input(5, np.array([0, 9999], np.int32)), "seqlens_k\\[1\\] is 9999"),
    ("decode", with_input(6, np.array([[1]], np.int32)), "total_sequence_length has shape \\[1,1\\]"),
    ("decode", with_input(6, np.array(0, np.int32)), "total_sequence_length is 0"),
    ("decode", with_input(6, np.array(3000, np.int32)), "total_sequence_length is 3000"),
    ("decode", with_input(9, np.zeros((2, 2), np.int64)), "position_ids has shape \\[2,2\\]"),
    ("decode", with_input(10, np.zeros((1, 1, 1, 3), np.float32)), "attention_bias has shape \\[1,1,1,3\\]"),
    ("decode", with_input(11, np.zeros(3, np.float32)), "head_sink has shape \\[3\\]"),
    ("decode", with_input(3, np.zeros((2, 2, 16, 8), np.float32)), "past_key has shape \\[2,2,16,8\\]"),
    ("chunk", with_attribute(causal=0), "needs causal = 1"),
    ("chunk", with_input(16, np.array([0, 99], np.int32)), "query_seqlens\\[1\\] is 99"),
    ("windowed_chunk", with_attribute(local_window_size=100), "less than local_window_size 100"),
    ("shared", remove(3), "past_key and past_value"),
    ("decode8", remove(12), "k_scale is missing"),
    ("decode8", with_input(13, np.ones(5, np.float32)), "v_scale has shape \\[5\\]"),
]


@pytest.mark.parametrize(("mode", "change", "text"), REFUSALS)
def test_refuses(mode, change, text):
    case = small_case(mode.rstrip("8"), bits=8 if mode.endswith("8") else 0)
    arguments = case.arguments
    change(case)
    with pytest.raises(hotset.Error, match=text) as caught:
        run(OP, case.inputs, case.attributes, **arguments)
    assert "GroupQueryAttention" in str(caught.value)


def test_refuses_positions_outside_the_tables():
    case = small_case()
    case.attributes["do_rotary"] = 1
    case.inputs[7] = case.inputs[8] = COS
    case.inputs[9] = np.array([[0], [4000]])
    with pytest.raises(hotset.Error, match="position 4000 of row \\[1,0\\] is outside cos_cache of 4000 rows"):
        run(OP, case.inputs, case.attributes, **case.arguments)
    case.inputs[9] = None
    case.inputs[7] = case.inputs[8] = COS[:1]
    if int(case.totals.max()) > 1:
        with pytest.raises(hotset.Error, match="fewer rows than total_sequence_length"):
            run(OP, case.inputs, case.attributes, **case.arguments)


def test_batched_continuation_needs_query_seqlens():
    rng = np.random.default_rng(0)
    past = [normal(rng, np.float32, 2, 1, 8, 16) for _ in range(2)]
    inputs = [normal(rng, np.float32, 2, 2, 48), None, None, *past, np.array([5, 5], np.int32), np.array(6, np.int32)]
    with pytest.raises(hotset.Error, match="batch size 1 or query_seqlens"):
        run(OP, inputs, {"num_heads": 1, "kv_num_heads": 1}, domain="com.microsoft", output_types=[None] * 3)
