# SPDX-License-Identifier: Apache-2.0
"""ai.onnx::Attention and com.microsoft::MultiHeadAttention against the float64 model and onnxruntime."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from helpers import run, run_onnxruntime
from ops.attention_cases import DTYPES, assert_near, normal
from reference import attention as reference

common = {
    "seed": st.integers(0, 2**32 - 1),
    "dtype": st.sampled_from(DTYPES),
    "batch": st.integers(1, 3),
    "rows": st.sampled_from([1, 2, 7, 33, 70]),
    "size": st.sampled_from([4, 8, 16, 30, 64, 80]),
    "value_size": st.sampled_from([0, 0, 8, 21]),
    "keys": st.sampled_from([1, 3, 33, 70, 200]),
    "past": st.sampled_from([0, 0, 1, 9, 600]),
    "threads": st.integers(1, 2),
}


def trimmed(inputs):
    while inputs[-1] is None:
        inputs.pop()
    return inputs


@settings(max_examples=120, deadline=None)
@given(
    **common,
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 4]),
    flat=st.booleans(),
    outside=st.booleans(),
    mask=st.integers(0, 12),
)
def test_attention(seed, dtype, batch, rows, size, value_size, keys, past, threads, kv_heads, group, flat, outside, mask):
    rng = np.random.default_rng(seed)
    heads, value_size = kv_heads * group, value_size or size
    attributes = {"q_num_heads": heads, "kv_num_heads": kv_heads} if flat else {}
    if rng.random() < 0.5:
        attributes["is_causal"] = 1
    if rng.random() < 0.3:
        attributes["softcap"] = 2.0
    if rng.random() < 0.3:
        attributes["scale"] = 0.25
    total = keys if outside else keys + past

    def part(count, length, width):
        return normal(rng, dtype, *((batch, length, count * width) if flat else (batch, count, length, width)))

    inputs = [part(heads, rows, size), part(kv_heads, keys, size), part(kv_heads, keys, value_size), None, None, None, None]
    shapes = [(rows, total), (1, total), (1, rows, total), (batch, 1, rows, total), (batch, heads, rows, total), (1, heads, 1, total)]
    if mask < 12:
        shape = shapes[mask % 6]
        inputs[3] = rng.random(shape) < 0.7 if mask < 6 else normal(rng, dtype, *shape)
    if outside:
        inputs[6] = rng.integers(1, keys + 1, batch)
    elif past:
        inputs[4], inputs[5] = normal(rng, dtype, batch, kv_heads, past, size), normal(rng, dtype, batch, kv_heads, past, value_size)
    inputs = trimmed(inputs)
    expected = reference.attention(attributes, inputs)
    got = run("Attention", inputs, attributes, threads, opset=24, output_types=(None, None, None))
    assert_near(got[0], expected[0])
    for g, e in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(g, e)
    np.testing.assert_array_equal(run("Attention", inputs, attributes, threads, opset=24)[0], got[0])


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("kind", ["plain", "past", "outside", "bool", "float"])
def test_attention_in_onnxruntime(kind, causal):
    rng = np.random.default_rng(len(kind))
    q, k, v = (normal(rng, np.float32, 2, n, 5 if n == 4 else 9, 16) for n in (4, 2, 2))
    inputs = [q, k, v, None, None, None, None]
    if kind == "past":
        inputs[4], inputs[5] = normal(rng, np.float32, 2, 2, 3, 16), normal(rng, np.float32, 2, 2, 3, 16)
    if kind == "outside":
        inputs[6] = np.array([9, 6])
    if kind in ("bool", "float"):
        inputs[3] = rng.random((5, 9)) < 0.8 if kind == "bool" else normal(rng, np.float32, 2, 1, 5, 9)
    arguments = {"opset": 24, "output_types": (None, None, None) if kind == "past" else (None,)}
    attributes = {"is_causal": causal, "softcap": 3.0}
    expected = run_onnxruntime("Attention", trimmed(inputs), attributes, **arguments)
    for got, want in zip(run("Attention", inputs, attributes, **arguments), expected, strict=True):
        assert_near(got, want)


@settings(max_examples=120, deadline=None)
@given(
    **common, heads=st.integers(1, 4), form=st.sampled_from(["three", "four", "packed_kv", "packed"]), outputs=st.sampled_from([1, 3, 4])
)
def test_multi_head_attention(seed, dtype, batch, rows, size, value_size, keys, past, threads, heads, form, outputs):
    rng = np.random.default_rng(seed)
    value_size = value_size if value_size and not form.startswith("packed") else size
    keys = rows if form == "packed" else keys
    inputs = [normal(rng, dtype, batch, rows, heads * size)] + [None] * 7
    if form == "three":
        inputs[1:3] = normal(rng, dtype, batch, keys, heads * size), normal(rng, dtype, batch, keys, heads * value_size)
    elif form == "four":
        inputs[1:3] = normal(rng, dtype, batch, heads, keys, size), normal(rng, dtype, batch, heads, keys, value_size)
    elif form == "packed_kv":
        inputs[1] = normal(rng, dtype, batch, keys, heads, 2, size)
    else:
        inputs[0] = normal(rng, dtype, batch, rows, heads, 3, size)
    if rng.random() < 0.3:
        inputs[3] = normal(rng, dtype, heads * (2 * size + value_size))
    if rng.random() < 0.4:
        inputs[4] = (rng.random((batch, keys + past)) < 0.7).astype(np.int32)
        inputs[4][:, 0] = 1  # a row of padding alone loses the precision of its logits to the filter value
    if rng.random() < 0.4:
        inputs[5] = normal(rng, dtype, int(rng.choice([1, batch])), int(rng.choice([1, heads])), rows, keys + past)
    if past:
        inputs[6], inputs[7] = normal(rng, dtype, batch, heads, past, size), normal(rng, dtype, batch, heads, past, value_size)
    attributes = {"num_heads": heads, "unidirectional": int(rng.integers(0, 2))}
    if rng.random() < 0.3:
        attributes["scale"] = 0.25
    inputs = trimmed(inputs)
    expected = reference.multi_head_attention(attributes, inputs)
    got = run("MultiHeadAttention", inputs, attributes, threads, domain="com.microsoft", output_types=[None] * outputs)
    assert_near(got[0], expected[0], 2)
    for g, e in zip(got[1:3], expected[1:3], strict=False):
        assert_near(g, e.astype(np.float64))
    if outputs == 4:
        hidden = expected[3] < -3e38
        lowest = got[3][hidden].astype(np.float64)
        assert (lowest < -3e38).all() or (np.isneginf(lowest)).all()
        assert_near(got[3][~hidden], expected[3][~hidden], 2)


@pytest.mark.parametrize("kind", ["plain", "padding", "bias", "past", "projection"])
def test_multi_head_attention_in_onnxruntime(kind):
    rng = np.random.default_rng(len(kind))
    inputs = [normal(rng, np.float32, 2, 5, 64), normal(rng, np.float32, 2, 5, 64), normal(rng, np.float32, 2, 5, 64)] + [None] * 5
    outputs = 1
    if kind == "padding":
        inputs[4] = (rng.random((2, 5)) < 0.7).astype(np.int32)
    if kind == "bias":
        inputs[5] = normal(rng, np.float32, 1, 4, 5, 5)
    if kind == "past":
        inputs[6], inputs[7], outputs = normal(rng, np.float32, 2, 4, 3, 16), normal(rng, np.float32, 2, 4, 3, 16), 3
    if kind == "projection":
        inputs[3] = normal(rng, np.float32, 192)
    arguments = {"domain": "com.microsoft", "output_types": [None] * outputs}
    for attributes in ({"num_heads": 4}, {"num_heads": 4, "unidirectional": 1, "scale": 0.5}):
        expected = run_onnxruntime("MultiHeadAttention", trimmed(inputs), attributes, **arguments)
        for got, want in zip(run("MultiHeadAttention", inputs, attributes, **arguments), expected, strict=True):
            assert_near(got, want)


X = np.zeros((1, 2, 8), np.float32)
REFUSALS = [
    ("Attention", {}, [X, X, X], "q_num_heads"),
    ("Attention", {"q_num_heads": 3, "kv_num_heads": 2}, [X, X, X], "q_num_heads is 3"),
    ("Attention", {"q_num_heads": 1, "kv_num_heads": 1}, [X, X, X[:, :1]], "K has shape \\[1,2,8\\]"),
    ("Attention", {"q_num_heads": 1, "kv_num_heads": 1}, [X, X, X, np.zeros((2, 3), np.float32)], "attn_mask has shape \\[2,3\\]"),
    ("Attention", {"q_num_heads": 1, "kv_num_heads": 1}, [X, X, X, None, np.zeros((1, 1, 1, 8), np.float32)], "past_key and past_value"),
    ("Attention", {"q_num_heads": 1, "kv_num_heads": 1}, [X, X, X, None, None, None, np.array([3])], "nonpad_kv_seqlen\\[0\\] is 3"),
    ("Attention", {"q_num_heads": 1, "kv_num_heads": 1, "is_causal": 2}, [X, X, X], "is_causal is 2"),
    ("MultiHeadAttention", {}, [X, X, X], "num_heads is 0"),
    ("MultiHeadAttention", {"num_heads": 3}, [X, X, X], "query has shape \\[1,2,8\\]"),
    ("MultiHeadAttention", {"num_heads": 2}, [X], "query has shape \\[1,2,8\\]"),
    ("MultiHeadAttention", {"num_heads": 2}, [X, X, X, None, np.zeros((1, 3), np.int32)], "key_padding_mask has shape \\[1,3\\]"),
    ("MultiHeadAttention", {"num_heads": 2}, [X, X, X, None, None, np.zeros((1, 1, 2, 3), np.float32)], "attention_bias has shape"),
    ("MultiHeadAttention", {"num_heads": 2}, [X, X, X] + [None] * 5 + [np.zeros(1, np.int32)], "past_sequence_length is not supported"),
]


@pytest.mark.parametrize(("op", "attributes", "inputs", "text"), REFUSALS)
def test_refuses(op, attributes, inputs, text):
    arguments = {"opset": 24} if op == "Attention" else {"domain": "com.microsoft"}
    with pytest.raises(hotset.Error, match=text):
        run(op, inputs, attributes, **arguments)
