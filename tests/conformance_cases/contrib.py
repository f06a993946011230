# SPDX-License-Identifier: Apache-2.0
"""Cases of attention, rotary embedding, quantised weights and mixtures of experts."""

import math

import ml_dtypes
import numpy as np

from ops.attention_cases import MODES, GqaCase
from ops.paged_cases import PagedCase
from ops.test_gather_block_quantized import packed_node
from ops.test_matmul_block_quantized import FP4, FP8
from ops.test_matmul_block_quantized import node as block_quantized_node
from ops.test_matmul_nbits import matmul_node
from ops.test_moe import moe_inputs
from ops.test_qmoe import SWIGLU
from ops.test_qmoe import positional as integer_inputs
from ops.test_qmoe import random_node as integer_node
from ops.test_qmoe_float_kinds import positional as float_inputs
from ops.test_qmoe_float_kinds import random_node as float_node
from reference import attention as reference
from reference import moe as experts
from reference import weights as packed

from .elementwise import gelu, gelu_tanh, sigmoid
from .registry import FLOATS, Case, cases, draw, formula

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
ATTENTION_FACTOR = 4.0  # two products and a softmax


def from_reference(inputs, oracle, **arguments):
    return Case(inputs, oracle=oracle, source="reference", **arguments)


def trimmed(inputs):
    while inputs[-1] is None:
        inputs.pop()
    return inputs


@cases("Attention", types=FLOATS)
def attention(rng, dtype, i):
    kv_heads, group = int(rng.integers(1, 4)), [1, 2, 4][i % 3]
    batch, rows, keys, past = [
        (2, 5, 9, 0),
        (1, 0, 3, 0),
        (2, 1, 1, 9),
        (1, 33, 70, 0),
        (3, 7, 7, 33),
        (2, 2, 33, 0),
        (1, 70, 70, 0),
        (2, 3, 17, 0),
    ][i]
    size, value_size = [(16, 16), (8, 8), (64, 64), (30, 21), (80, 80), (4, 8), (64, 64), (8, 8)][i]
    heads, flat = kv_heads * group, i % 2 == 1
    attributes = {"q_num_heads": heads, "kv_num_heads": kv_heads} if flat else {}
    attributes |= [{}, {"is_causal": 1}, {"softcap": 2.0}, {"scale": 0.25}][i % 4]

    def part(count, length, width):
        return draw(rng, dtype, (batch, length, count * width) if flat else (batch, count, length, width), -2, 2)

    inputs = [part(heads, rows, size), part(kv_heads, keys, size), part(kv_heads, keys, value_size), None, None, None, None]
    total = keys + past
    if i in (3, 5):
        inputs[3] = rng.random((rows, total)) < 0.7 if i == 3 else draw(rng, dtype, (batch, 1, rows, total))
        if i == 3:
            inputs[3][:, 0] = True
    if past:
        inputs[4], inputs[5] = (draw(rng, dtype, (batch, kv_heads, past, w)) for w in (size, value_size))
    if i == 7:
        inputs[6] = rng.integers(3, keys + 1, batch)
    inputs = trimmed(inputs)
    return from_reference(
        inputs,
        lambda: reference.attention(attributes, inputs)[: 3 if past else 1],
        attributes=attributes, opset=24, outputs=(None,) * (3 if past else 1), factor=ATTENTION_FACTOR,
    )  # fmt: skip


@cases("MultiHeadAttention", domain="com.microsoft")
def multi_head_attention(rng, dtype, i):
    form = ["three", "four", "packed_kv", "packed"][i % 4]
    batch, heads, rows, size, keys, past = [
        (2, 4, 5, 16, 9, 0),
        (1, 2, 1, 64, 70, 9),
        (2, 3, 0, 8, 3, 0),
        (1, 2, 33, 32, 33, 0),
        (3, 1, 7, 30, 5, 3),
        (2, 4, 2, 80, 33, 0),
        (1, 2, 70, 8, 70, 0),
        (2, 2, 3, 16, 3, 0),
    ][i]
    inputs = [draw(rng, dtype, (batch, rows, heads * size), -2, 2)] + [None] * 7
    if form == "three":
        inputs[1:3] = (draw(rng, dtype, (batch, keys, heads * size), -2, 2) for _ in range(2))
    elif form == "four":
        inputs[1:3] = (draw(rng, dtype, (batch, heads, keys, size), -2, 2) for _ in range(2))
    elif form == "packed_kv":
        inputs[1] = draw(rng, dtype, (batch, keys, heads, 2, size), -2, 2)
    else:
        inputs[0] = draw(rng, dtype, (batch, rows, heads, 3, size), -2, 2)
    if i in (0, 3):
        inputs[3] = draw(rng, dtype, (3 * heads * size,))
    if i == 4:
        inputs[4] = (rng.random((batch, keys + past)) < 0.7).astype(np.int32)
        inputs[4][:, 0] = 1
    if i in (5, 6):
        inputs[5] = draw(rng, dtype, (1, [1, heads][i % 2], rows, keys + past))
    if past:
        inputs[6:8] = (draw(rng, dtype, (batch, heads, past, size), -2, 2) for _ in range(2))
    attributes = {"num_heads": heads, "unidirectional": i // 2 % 2}
    inputs, n = trimmed(inputs), 3 if past else 1
    return from_reference(
        inputs,
        lambda: reference.multi_head_attention(attributes, inputs)[:n],
        attributes=attributes, outputs=(None,) * n, factor=ATTENTION_FACTOR,
    )  # fmt: skip


CACHES = {"": 0, ", int8 cache": 8, ", int4 cache": 4}


@cases(
    "GroupQueryAttention",
    domain="com.microsoft",
    types={name + text: (dtype, bits) for name, dtype in FLOATS.items() for text, bits in CACHES.items()},
    count=2 * len(MODES),
)
def group_query_attention(rng, types, i):
    dtype, bits = types
    size = [64, 16, 32, 128, 80, 30][i % 6]
    case = GqaCase(int(rng.integers(0, 2**31)), MODES[i % len(MODES)], dtype, size, group=1 + i % 3, rows=[5, 1, 9][i % 3], bits=bits)
    counts, a = case.inputs[16], case.attributes

    def view(outputs):
        """The rows that queries have; the tokens that a cache holds, codes only where nothing was computed before them."""
        rows = np.minimum(case.inputs[0].shape[1], case.totals) if counts is None else counts
        parts = [np.concatenate([y[:n] for y, n in zip(outputs[0], rows, strict=True)])]
        if a.get("qk_output"):
            parts += [y[:, :n] for y, n in zip(outputs[3], rows, strict=True)]
        exact = not a.get("do_rotary") and case.inputs[14] is None
        if case.mode != "no_past" and (exact or not bits):
            for y in outputs[1:3]:
                held = [
                    int(t) if case.history is None else reference.resident(int(t), y.shape[2], a["local_window_size"]) for t in case.totals
                ]
                parts += [y[b, :, :n] for b, n in enumerate(held)]
        return parts

    def oracle():
        y = reference.group_query_attention(a, case.inputs, case.history)
        return y if case.mode != "no_past" else (y[0], None, None, y[3])

    inputs = trimmed(list(case.inputs))
    return from_reference(
        inputs, oracle, attributes=a, outputs=tuple(case.output_types), view=view, skip="" if case.in_onnxruntime() else "r",
        factor=ATTENTION_FACTOR * (4 if bits and dtype != np.float32 else 1),
    )  # fmt: skip


@cases(
    "PagedAttention",
    domain="com.microsoft",
    types={
        name + text: (dtype, kind, latent)
        for name, dtype in FLOATS.items()
        for text, kind, latent in (
            ("", "", False),
            (", int8 cache", "int8", False),
            (", int4 cache", "int4", False),
            (", latent cache", "", True),
            (", latent int4 cache", "int4", True),
        )
    },
    count=8,
)
def paged(rng, types, i):
    dtype, kind, latent = types
    tokens = [(1, 1, 1), (5, 0, 40), (70,), (2, 3)][i % 4]
    case = PagedCase(
        int(rng.integers(0, 2**31)), dtype, [64, 16, 80, 128][i % 4], 1 + i % 3, page=[16, 1, 256, 8][i % 4], tokens=tokens,
        quantised=kind, latent=latent,
    )  # fmt: skip
    exact = "do_rotary" not in case.attributes and case.inputs[12] is None

    def view(outputs):
        return [outputs[0], *(outputs[1:3] if exact or not kind else outputs[2:3])]

    return from_reference(
        trimmed(list(case.inputs)), case.expected, attributes=case.attributes, outputs=case.output_types, view=view, skip="k",
        factor=ATTENTION_FACTOR * (4 if kind and dtype != np.float32 else 1),
    )  # fmt: skip


@cases("RotaryEmbedding", types=FLOATS)
def rotary(rng, dtype, i):
    return any_rotary(rng, dtype, i, ("standard", "standard_rows")[i // 4])


@cases("RotaryEmbedding", "MRotaryEmbedding", domain="com.microsoft")
def contrib_rotary(rng, dtype, i, op):
    return any_rotary(rng, dtype, i, "multi" if op == "MRotaryEmbedding" else ("offset", "ids")[i // 4])


def any_rotary(rng, dtype, i, form):
    batch, rows, heads = [(2, 5, 3), (1, 0, 2), (3, 1, 1), (2, 40, 5)][i % 4]
    size, partial, four, interleaved = [64, 16, 200, 30][i % 4], i % 3 == 1, i % 2 == 1, i // 2 % 2
    half = max(1, size // 4) if partial else size // 2
    attributes = {"interleaved": interleaved}
    if partial:
        attributes["rotary_embedding_dim"] = 2 * half
    if partial or (not four and form not in ("offset", "ids")):
        attributes["num_heads"] = heads
    x = draw(rng, dtype, (batch, heads, rows, size) if four else (batch, rows, heads * size))
    table = rows + 40
    cos, sin = (draw(rng, dtype, (batch, rows, half) if form == "standard_rows" else (table, half), -1, 1) for _ in range(2))
    positions = rng.integers(0, table, (batch, rows))
    opset = 21
    if form.startswith("standard"):
        inputs, opset = [x, cos, sin] + ([positions] if form == "standard" else []), 23
        positions = positions if form == "standard" else None
    elif form == "multi":
        ids, layout, third = rng.integers(0, table, (3, batch, rows)), i % 2, half // 3
        attributes.update(mrope_section=[half - 2 * third, third, third], mrope_layout=layout)
        inputs, positions = [x, ids, cos, sin], reference.mrotary_positions(ids, attributes["mrope_section"], layout, half)
    elif form == "ids":
        inputs = [x, positions, cos, sin]
    else:
        offset = int(rng.integers(0, 41))
        inputs, positions = [x, np.array([offset]), cos, sin], np.broadcast_to(offset + np.arange(rows), (batch, rows))
    return from_reference(
        inputs, lambda: [reference.rotary_embedding(x, cos, sin, positions, heads=heads, interleaved=interleaved)],
        attributes=attributes, opset=opset,
    )  # fmt: skip


NBITS = {f"{name}, {bits}-bit weights": (name, bits, 0) for name in FLOATS for bits in (2, 4, 8)}
NBITS |= {f"{name}, {bits}-bit weights, int8 activations": (name, bits, 4) for name in FLOATS for bits in (4, 8)}
INT8_FACTOR = {"float32": 2e-2 / 3e-6, "float16": 2e-2 / 1.5e-3, "bfloat16": 3e-2 / 1.2e-2}  # one part in 127 a product, averaged


@cases("MatMulNBits", domain="com.microsoft", types=NBITS)
def matmul_nbits(rng, types, i):
    name, bits, level = types
    m, n, k, block, zeros, bias, prepacked = [
        ((3,), 40, 64, 32, None, False, False), ((0,), 7, 33, 16, None, True, False), ((1,), 33, 100, 32, "packed", True, False),
        ((2, 9), 65, 300, 64, "float", False, False), ((70,), 24, 256, 128, "packed", False, False), ((1,), 520, 320, 64, None, True, True),
        ((5,), 1, 1, 16, None, False, False), ((1, 4), 48, 144, 16, "packed", True, False),
    ][i]  # fmt: skip
    inputs, attributes = matmul_node(rng, SHORT[name], m, n, k, bits, block, zeros, bias, prepacked)
    attributes["accuracy_level"] = level or 1

    def oracle():
        a, b, scales, zero_points, _, add = inputs
        w = packed.matmul_nbits_weight(b, scales.astype(np.float64), n, k, block, bits, zero_points, prepacked)
        return [a.astype(np.float64) @ w.T + (0 if add is None else add.astype(np.float64))]

    skip = "d" if prepacked else "i" if not level and bits == 8 else ""
    return from_reference(
        inputs, oracle, attributes=attributes, constant=(1, 2, 3, 5), skip=skip, factor=INT8_FACTOR[name] if level else 2,
    )  # fmt: skip


def block_quantized(rng, op, name, i):
    m, n, k, block, bias, extra = [
        ((3,), 40, 64, 16, False, True), ((0,), 7, 34, 32, True, False), ((1,), 33, 100, 128, True, False),
        ((2, 9), 65, 300, 64, False, False), ((70,), 24, 256, 128, False, True), ((1,), 520, 320, 16, True, False),
        ((5,), 1, 2, 16, False, False), ((1, 4), 48, 144, 32, True, True),
    ][i]  # fmt: skip
    inputs, attributes, y, _ = block_quantized_node(rng, op, SHORT[name], m, n, k, block, bias, extra)
    constant = tuple(range(1, len(inputs)))
    return from_reference(inputs, lambda: [y], attributes=attributes, constant=constant, factor=2)


@cases(FP4, domain="com.microsoft", types={name: name for name in FLOATS})
def matmul_block_quantized_fp4(rng, name, i):
    return block_quantized(rng, FP4, name, i)


@cases(FP8, domain="com.microsoft", types={name: name for name in FLOATS})
def matmul_block_quantized_fp8(rng, name, i):
    return block_quantized(rng, FP8, name, i)


BLOCKS = {f"{name}, uint8 data of {bits} bits": (name, bits) for name in FLOATS for bits in (2, 4, 8)}
BLOCKS |= {f"{name}, {data} data": (name, np.dtype(getattr(ml_dtypes, data))) for name in FLOATS for data in ("int4", "uint4")}
SMALL_FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")
BLOCKS |= {f"{name}, {data} data": (name, np.dtype(getattr(ml_dtypes, data))) for name in FLOATS for data in SMALL_FLOATS}


@cases("GatherBlockQuantized", domain="com.microsoft", types=BLOCKS, count=6)
def gather_block_quantized(rng, types, i):
    name, data = types
    rows, groups, block, asymmetric, shape = [
        (9, 12, 32, True, (2, 3)),
        (5, 7, 16, False, (0,)),
        (20, 80, 128, True, (150,)),
        (1, 1, 16, False, ()),
        (33, 65, 32, True, (4, 1)),
        (7, 16, 64, False, (9,)),
    ][i]
    if isinstance(data, int):
        inputs, attributes, y = packed_node(rng, SHORT[name], rows, groups * 8 // data, data, block, asymmetric, shape)
    elif data.name in SMALL_FLOATS:
        block = 0 if i == 4 else block
        codes, blocks = (4 * rng.standard_normal((rows, groups))).astype(data), -(-groups // block) if block else 1
        scales = draw(rng, FLOATS[name], (1 if asymmetric else rows, blocks), -1, 1)
        index = rng.integers(-rows, rows, shape)
        inputs = [codes, np.asarray(index), scales]
        attributes = {"block_size": block, "gather_axis": 0, "quantize_axis": 1}
        wide = np.repeat(np.broadcast_to(scales, (rows, blocks)), block or groups, 1)[:, :groups]
        y = (codes.astype(np.float64) * wide.astype(np.float64))[index]
        return from_reference(inputs, lambda: [y], attributes=attributes, outputs=(FLOATS[name],), constant=(0, 2))
    else:
        low, high = (-8, 8) if data == ml_dtypes.int4 else (0, 16)
        codes, blocks = rng.integers(low, high, (rows, groups)), -(-groups // block)
        scales, zeros = draw(rng, FLOATS[name], (rows, blocks), -1, 1), rng.integers(low, high, (rows, blocks))
        index = rng.integers(-rows, rows, shape)
        inputs = [codes.astype(data), np.asarray(index), scales, zeros.astype(data) if asymmetric else None]
        attributes = {"block_size": block, "gather_axis": 0, "quantize_axis": 1}
        y = packed.gather_block_quantized(codes, index, scales, block, zeros if asymmetric else 0)
    return from_reference(inputs, lambda: [y.astype(np.float64)], attributes=attributes, outputs=(FLOATS[name],), constant=(0, 2, 3))


def mixture(inputs, attributes, w, dtype):
    """MoE in float64: w = {1: W1, 2: W2[, 3: W3]} [E, N, K]. A row of an expert is rounded to the type, as the definition has it."""
    x, logits, b1, b2, b3, given = (None if a is None else np.asarray(a, np.float64) for a in inputs)
    shape, n = x.shape, int(np.prod(x.shape[:-1]))
    x, logits = x.reshape(n, shape[-1]), logits.reshape(n, logits.shape[-1])
    ids, _ = experts.route(logits.astype(np.float32), attributes["k"])
    p = np.exp(logits - logits.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True) if given is None else given.reshape(logits.shape)
    mix = np.take_along_axis(p, ids, 1)
    if attributes.get("normalize_routing_weights", 0):
        mix = mix / mix.sum(1, keepdims=True)
    kind, fusion = attributes.get("activation_type", "relu"), attributes.get("swiglu_fusion", 0)
    alpha, beta = attributes.get("activation_alpha", 1.0), attributes.get("activation_beta", 0.0)
    limit = attributes.get("swiglu_limit", math.inf)
    plain = {
        "relu": lambda v: np.maximum(v, 0),
        "relu2": lambda v: np.maximum(v, 0) ** 2,
        "silu": lambda v: v * sigmoid(v),
        "gelu": gelu,
        "identity": lambda v: v,
    }
    y = np.zeros_like(x)
    for t, j in np.ndindex(ids.shape):
        e = ids[t, j]
        a = w[1][e].astype(np.float64) @ x[t] + (0 if b1 is None else b1[e])
        c = None if 3 not in w else w[3][e].astype(np.float64) @ x[t] + (0 if b3 is None else b3[e])
        if kind in ("swiglu", "geglu") and c is None:
            a, c = (a[: len(a) // 2], a[len(a) // 2 :]) if fusion == 2 else (a[0::2], a[1::2])
        if kind == "swiglu":
            a = np.minimum(a, limit)
            h = a * sigmoid(alpha * a) * (np.clip(c, -limit, limit) + beta)
        else:
            h = (gelu_tanh(a) if kind == "geglu" else plain[kind](a)) * (1 if c is None else c)
        row = w[2][e].astype(np.float64) @ h
        row = row if dtype == np.float32 else row.astype(np.float32).astype(dtype).astype(np.float64)
        y[t] += mix[t, j] * (row + (0 if b2 is None else b2[e]))
    return [y.reshape(shape)]


MOE_FACTOR = 4.0  # two products in a row, the sum of k experts; near zero for few tokens
GPT_OSS = {**SWIGLU, "swiglu_limit": 2.0, "activation_alpha": 1.702, "activation_beta": 1.0}


@cases("MoE", domain="com.microsoft", count=9)
def moe(rng, dtype, i):
    kind = ["swiglu", "silu", "relu", "gelu", "identity", "relu2", "geglu", "swiglu", "silu"][i]
    n, hidden, inter, tokens, fc3 = [
        (6, 64, 48, 9, False),
        (4, 33, 17, 0, False),
        (8, 24, 20, 5, False),
        (3, 70, 65, 1, False),
        (2, 5, 3, 33, False),
        (5, 32, 40, 7, False),
        (4, 65, 33, 3, False),
        (7, 40, 24, 70, True),
        (4, 64, 64, 6, True),
    ][i]
    pair = kind in ("swiglu", "geglu") and not fc3
    inputs = moe_inputs(rng, SHORT[np.dtype(dtype).name], n, hidden, inter, (tokens,), 2 if pair else 1, fc3, i % 4 != 3)
    attributes = {"k": 1 + i % 2, "activation_type": kind, "normalize_routing_weights": int(i % 3 != 2)}
    if pair:
        attributes["swiglu_fusion"] = 2 if i == 6 else 1
    if kind == "swiglu" and not fc3:
        attributes |= GPT_OSS
    w = {1: inputs[2], 2: inputs[4]} | ({3: inputs[6]} if fc3 else {})
    skip = "d" if kind == "gelu" else "r" if fc3 or kind in ("geglu", "relu2") else ""
    return formula(
        inputs, lambda *_: mixture([inputs[0], inputs[1], inputs[3], inputs[5], inputs[7], None], attributes, w, np.dtype(dtype)),
        attributes=attributes, constant=tuple(range(2, 8)), skip=skip, factor=MOE_FACTOR,
    )  # fmt: skip


KINDS = ["int2", "int3", "int4", "int8", "fp4", "nvfp4", "fp8"]


@cases("QMoE", domain="com.microsoft", types={f"{name}, {kind} weights": (name, kind) for name in FLOATS for kind in KINDS}, count=6)
def qmoe(rng, types, i):
    name, kind = types
    dt, tokens = SHORT[name], [9, 1, 0, 33, 5, 2][i]
    attributes = {"k": 1 + i % 3, **GPT_OSS, "normalize_routing_weights": int(i != 4)}
    if kind.startswith("int"):
        bits = int(kind[3])
        prepacked, fc3, asymmetric = bits != 3 and i == 3, i == 4, i in (1, 5)
        block = [32, 16, 64, 32, 32, 0][i]
        hidden, inter = (128, 64) if prepacked else [(64, 96), (80, 48), (64, 64), (96, 64), (96, 32), (64, 96)][i]
        named = integer_node(
            rng, dt, 5, hidden, inter, (tokens,), (bits,) * 3, block, asymmetric and bits != 3, prepacked, fc3, given_weights=i == 0,
        )  # fmt: skip
        attributes |= {"expert_weight_bits": bits, "weights_prepacked": int(prepacked)} | ({"block_size": block} if block else {})
        if fc3:
            attributes |= {"activation_type": "silu", "swiglu_fusion": 0}
            [attributes.pop(key) for key in ("swiglu_limit", "activation_alpha", "activation_beta")]
        inputs = integer_inputs(named)
        skip = "r" if fc3 else "d" if i == 0 else "i" if prepacked or bits == 3 or (bits == 8 and block) else ""
    else:
        block, fp8 = 16 if kind == "fp8" and i % 2 else 0, kind == "fp8"
        hidden, inter = [(64, 96), (32, 32), (64, 32), (96, 64), (32, 64), (64, 64)][i]
        named = float_node(rng, kind, dt, 4, hidden - 5 * fp8, inter - 3 * fp8, tokens, i == 3 and not fp8, block)
        attributes |= {
            "quant_type": kind,
            "block_size": block or -1,
            "expert_weight_bits": 8 if fp8 else 4,
            "weights_prepacked": int(i == 3 and not fp8),
        }
        inputs, skip = float_inputs(named), "i" if i == 3 and not fp8 else "r"
    plain = {n: np.asarray(a, np.float32) if a.dtype.itemsize > 1 else a for n, a in named.items()}
    w = experts.qmoe_weights(plain, attributes, named["input"].shape[-1])
    parts = [named.get(n) for n in ("input", "router_probs", "fc1_experts_bias", "fc2_experts_bias", "fc3_experts_bias", "router_weights")]
    fed = (0, 1, 14) if "router_weights" in named else (0, 1)
    return formula(
        inputs, lambda *_: mixture(parts, attributes, w, FLOATS[name]),
        attributes=attributes, constant=tuple(n for n in range(len(inputs)) if n not in fed), skip=skip, factor=MOE_FACTOR,
    )  # fmt: skip
