# SPDX-License-Identifier: Apache-2.0
"""com.microsoft::PagedAttention against the float64 model and its dense sibling; caches in place, pages that are missing, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from helpers import failure, run, run_onnxruntime
from ops.attention_cases import DTYPES, assert_near, normal, run_in_place
from ops.paged_cases import PagedCase, i32

OP = "PagedAttention"

cases = st.builds(
    PagedCase,
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    head_size=st.sampled_from([8, 13, 16, 24, 64, 80, 128, 576]),
    group=st.sampled_from([1, 2, 8]),
    kv_heads=st.integers(1, 3),
    page=st.sampled_from([1, 8, 16, 256]),
    tokens=st.lists(st.sampled_from([0, 1, 2, 5, 40, 70]), min_size=1, max_size=4),
    quantised=st.sampled_from(["", "", "int8", "fp8", "int4"]),
    latent=st.sampled_from([False, False, True]),
)


@settings(max_examples=120, deadline=None)
@given(case=cases, threads=st.integers(1, 3))
def test_matches_the_model(case, threads):
    expected = case.expected()
    got = run(OP, case.inputs, case.attributes, threads, **case.arguments)
    case.check(got, expected)
    inputs = [None if x is None else x.copy() for x in case.inputs]
    caches = {1: 3, 2: 4} if len(got) > 2 else {1: 3}
    shared = run_in_place(OP, inputs, case.attributes, caches, threads, **case.arguments)
    for y, want in zip(shared, got, strict=True):
        np.testing.assert_array_equal(y.view(np.uint8), want.view(np.uint8))


@settings(max_examples=20, deadline=None)
@given(case=cases)
def test_nodes_fit_the_schema_of_onnxruntime(case):
    """It has no CPU kernel: a node that fits the schema fails because of that, others would fail before. The schema knows no
    float32, and shape inference wants to see the size of packed rows."""
    if case.inputs[0].dtype == np.float32 or case.inputs[1] is None:
        return
    with pytest.raises(Exception, match="NOT_IMPLEMENTED|Could not find an implementation"):
        run_onnxruntime(OP, case.inputs, case.attributes, **case.arguments)


def paged(dense, page, pages):
    """[B, heads, rows, D] as pages [n, page, heads, D]; pages[b][i] is where rows from i * page on go."""
    batch, heads, rows, width = dense.shape
    out = np.zeros((1 + max(map(max, pages)), page, heads, width), dense.dtype)
    for b in range(batch):
        for i, at in enumerate(pages[b]):
            part = dense[b, :, i * page : (i + 1) * page].transpose(1, 0, 2)
            out[at, : len(part)] = part
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [-1, 7])
def test_equals_group_query_attention_on_a_dense_cache(dtype, window):
    """Decode steps of three requests of unequal length."""
    rng = np.random.default_rng(5)
    heads, kv_heads, size, page, past = 6, 2, 32, 8, [3, 40, 17]
    capacity = max(past) + 1
    query = normal(rng, dtype, 3, 1, (heads + 2 * kv_heads) * size)
    caches = [normal(rng, dtype, 3, kv_heads, capacity, size) for _ in range(2)]
    tables = [f(6 * rng.random((capacity, size // 2))).astype(dtype) for f in (np.cos, np.sin)]
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, "local_window_size": window}
    dense = [query, None, None, *caches, i32(past), np.int32(capacity), *tables]
    want = run("GroupQueryAttention", dense, attributes, domain="com.microsoft", output_types=(None,) * 3)
    pages = np.random.default_rng(1).permutation(18).reshape(3, 6)
    flat = [query.reshape(3, -1), None, None, *(paged(x, page, pages) for x in caches), i32([0, 1, 2, 3]), i32(past), i32(pages), *tables]
    got = run(OP, flat, attributes, domain="com.microsoft", output_types=(None,) * 3)
    assert_near(got[0], want[0].reshape(3, -1).astype(np.float64))
    for b, n in enumerate(past):
        for y, x in zip(got[1:], want[1:], strict=True):
            np.testing.assert_array_equal(y[pages[b][n // page], n % page].view(np.uint8), x[b, :, n].view(np.uint8))


def node(tokens=(2, 1), past=(0, 5), page=4, n_pages=6, heads=2, size=8):
    rng = np.random.default_rng(0)
    n, columns = sum(tokens), 2
    table = i32([[0, 1], [2, 3]])[: len(tokens)]
    caches = [normal(rng, np.float32, n_pages, page, heads, size) for _ in range(2)]
    inputs = [normal(rng, np.float32, n, 3 * heads * size), None, None, *caches, i32([0, *np.cumsum(tokens)]), i32(past), table]
    assert table.shape[1] == columns
    return [*inputs, *[None] * 9], {"num_heads": heads, "kv_num_heads": heads}


ARGUMENTS = {"domain": "com.microsoft", "output_types": (None,) * 3}


def test_chunks_of_a_prompt_agree():
    case = PagedCase(3, tokens=(40,), head_size=16)
    inputs, attributes = [*case.inputs[:8], *[None] * 9], {key: case.attributes[key] for key in ("num_heads", "kv_num_heads")}
    inputs[6:8] = i32([0]), i32([np.random.default_rng(0).permutation(inputs[3].shape[0])[: -(-40 // 16)]])
    whole = run(OP, inputs, attributes, **case.arguments)
    for chunk in (1, 7, 16):
        caches, parts = inputs[3:5], []
        for begin in range(0, 40, chunk):
            rows = slice(begin, min(begin + chunk, 40))
            step = [None if x is None else x[rows] for x in inputs[:3]]
            step += [*caches, i32([0, rows.stop - begin]), i32([begin]), *inputs[7:]]
            out, *caches = run(OP, step, attributes, **case.arguments)
            parts.append(out)
        assert_near(np.concatenate(parts), whole[0].astype(np.float64))
        for y, want in zip(caches, whole[1:], strict=True):
            np.testing.assert_array_equal(y, want)


def test_unmapped_pages_are_left_out_and_nothing_visible_is_zero():
    inputs, attributes = node(tokens=(1, 1), past=(5, 5))
    inputs[7] = i32([[-1, 1], [-1, -1]])
    out, keys, _ = run(OP, inputs, attributes, **ARGUMENTS)
    assert np.abs(out[0]).min() > 0 and not out[1].any()  # the second request cannot even store its row
    changed = inputs[3].copy()
    changed[1, 1] = inputs[0][0, 16:32].reshape(2, 8)
    np.testing.assert_array_equal(keys, changed)
    inputs[11] = normal(np.random.default_rng(1), np.float32, 2)
    assert not run(OP, inputs, attributes, **ARGUMENTS)[0][1].any()


def test_two_tokens_with_one_slot_leave_the_later():
    inputs, attributes = node()
    inputs[10] = i32([7, 7, -1])
    for threads in (1, 4):
        _, keys, _ = run(OP, inputs, attributes, threads, **ARGUMENTS)
        np.testing.assert_array_equal(keys[1, 3], inputs[0][1, 16:32].reshape(2, 8))


def test_no_tokens_and_no_requests():
    for tokens, past in (((0, 0), (3, 4)), ((), ())):
        inputs, attributes = node(tokens, past)
        out, keys, values = run(OP, inputs, attributes, **ARGUMENTS)
        assert out.shape == (0, 16)
        np.testing.assert_array_equal(keys, inputs[3])
        np.testing.assert_array_equal(values, inputs[4])


@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (5, i32([0, 2, 4]), "cumulative_sequence_length goes from 0 to 4, expected 0 to 3"),
        (5, i32([1, 2, 3]), "cumulative_sequence_length goes from 1 to 3"),
        (5, i32([0, 4, 3]), r"cumulative_sequence_length\[2\] is 3, less"),
        (5, i32([0, 3]), r"cumulative_sequence_length has shape \[2\], expected \[3\]"),
        (6, i32([0, -1]), r"past_seqlens\[1\] is -1"),
        (6, i32([0, 8]), r"past_seqlens\[1\] is 8: with 1 new tokens more than 2 pages of 4 rows"),
        (6, i32([0, 2**31 - 1]), "more than 2 pages"),
        (7, i32([[0, 1], [2, 6]]), r"block_table\[1,1\] is 6, expected -1 to 5"),
        (7, i32([[-2, 1], [2, 3]]), r"block_table\[0,0\] is -2"),
        (7, i32([[0, 1]]), "block_table has shape"),
        (10, i32([0, 1, 24]), r"slot_mapping\[2\] is 24, expected -1 to 23"),
        (10, i32([0, 1]), "slot_mapping has shape"),
        (3, np.zeros((6, 4, 2, 4), np.float32), "key_cache has shape"),
        (4, np.zeros((6, 5, 2, 8), np.float32), "value_cache has shape"),
        (4, np.zeros((6, 4, 2, 8), np.float16), "value_cache is float16"),
        (0, np.zeros((3, 49), np.float32), "query has shape"),
        (5, np.array([0, 2, 3]), "cumulative_sequence_length is int64"),
        (11, np.zeros(3, np.float32), "head_sink has shape"),
        (16, i32([1]), "attention_metadata has shape"),
    ],
)
def test_refused_inputs(position, value, text):
    inputs, attributes = node()
    inputs[position] = value
    with pytest.raises(hotset.Error, match=text):
        run(OP, inputs, attributes, **ARGUMENTS)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"num_heads": 0}, "num_heads is 0"),
        ({"kv_num_heads": 3}, "kv_num_heads is 3"),
        ({"is_causal": 2}, "is_causal is 2"),
        ({"is_causal": 0, "local_window_size": 4}, "local_window_size is 4"),
        ({"local_window_size": 0}, "local_window_size is 0"),
        ({"rotary_offset": 4}, "rotary_offset is 4"),
        ({"do_rotary": 1}, "cos_cache and sin_cache are missing"),
        ({"kv_cache_layout": "JOINT"}, "kv_cache_layout is 'JOINT', expected SEPARATE or LATENT"),
        ({"kv_cache_layout": "LATENT"}, "kv_num_heads is 2, expected 1 with kv_cache_layout = LATENT"),
        ({"kv_cache_layout": "LATENT", "kv_num_heads": 1}, "value_cache is given"),
        ({"v_head_size": 4}, "v_head_size is 4, expected 0 without"),
        ({"k_cache_dtype": "uint4"}, "k_cache_dtype is 'uint4', supported: "),
        ({"v_cache_dtype": "float4e2m1"}, "v_cache_dtype is 'float4e2m1', supported: "),
        ({"v_cache_dtype": "int8"}, "the cache is float, v_cache_dtype means int8"),
        ({"k_quant_type": "SOME"}, "k_quant_type is 'SOME'"),
        ({"k_quant_type": "PER_TENSOR"}, "must both be NONE"),
        ({"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}, "k_scale is missing"),
        ({"qk_norm_epsilon": 0.0}, "qk_norm_epsilon is 0"),
    ],
)
def test_refused_attributes(attributes, text):
    inputs, usual = node()
    assert text in failure(OP, inputs, usual | attributes, **ARGUMENTS)


def test_rotary_tables_that_are_too_small():
    inputs, attributes = node()
    inputs[8:10] = [np.ones((5, 4), np.float32)] * 2
    text = failure(OP, inputs, attributes | {"do_rotary": 1}, **ARGUMENTS)
    assert "position 5 is outside cos_cache of 5 rows" in text
    inputs[8:10] = [np.ones((9, 4), np.float32)] * 2
    assert "rotary_offset 8" in failure(OP, inputs, attributes | {"do_rotary": 1, "rotary_offset": 8}, **ARGUMENTS)


def test_caches_must_be_requested():
    inputs, attributes = node()
    text = failure(OP, inputs, attributes, domain="com.microsoft", output_types=(None,))
    assert "output 1 is missing" in text
