# SPDX-License-Identifier: Apache-2.0
"""Attention operators in float64, one query row at a time; roundings to the tensor type where the definition has them."""

import math

import ml_dtypes
import numpy as np

f64 = np.float64


def at(inputs, index):
    return inputs[index] if len(inputs) > index else None


def rotate(x, cos, sin, interleaved=False):
    """Rotates the first 2 * cos.shape[-1] channels; cos and sin broadcast over the leading axes."""
    half = cos.shape[-1]
    y = x.astype(f64)
    part = y[..., : 2 * half].copy()
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else (part[..., :half], part[..., half:])
    c, s = cos.astype(f64), sin.astype(f64)
    a, b = a * c - b * s, b * c + a * s
    y[..., : 2 * half] = np.stack([a, b], -1).reshape(part.shape) if interleaved else np.concatenate([a, b], -1)
    return y


def rms_norm(x, weight, epsilon):
    x = x.astype(f64)
    return x * weight.astype(f64) / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def attend(q, keys, values, scale, softcap=0.0, bias=None, sink=None):
    """Output, logits and weights of one query vector; sink is an extra logit that carries no value."""
    x = scale * (keys.astype(f64) @ q.astype(f64))
    if softcap:
        x = softcap * np.tanh(x / softcap)
    if bias is not None:
        x = x + bias
    top = max(x.max(initial=-np.inf), -np.inf if sink is None else float(sink))
    if top == -np.inf:
        return np.zeros(values.shape[-1]), x, np.zeros_like(x)
    e = np.exp(x - top)
    w = e / (e.sum() + (0.0 if sink is None else math.exp(float(sink) - top)))
    return w @ values.astype(f64), x, w


def resident(total, capacity, window):
    if total <= capacity:
        return total
    gap = capacity - window + 1
    return total - gap * -(-(total - capacity) // gap)


def encode(x, scale, dtype, bits):
    """Cache codes of x [..., D]; scale broadcasts. Divides in float32, as the operator does."""
    t = x.astype(np.float32) / scale.astype(np.float32)
    if bits == 0:
        return x.astype(dtype)
    if dtype == ml_dtypes.float8_e4m3fn:
        return np.clip(t, -448, 448).astype(dtype)
    if bits == 8:
        return np.clip(np.rint(t), -128, 127).astype(np.int8)
    u = (np.clip(np.rint(t), -8, 7) + 8).astype(np.uint8)
    if u.shape[-1] % 2:
        u = np.concatenate([u, np.full((*u.shape[:-1], 1), 8, np.uint8)], -1)
    return u[..., 0::2] + 16 * u[..., 1::2]


def decode(codes, scale, bits, width):
    if bits == 0:
        return codes.astype(f64)
    if bits == 4:
        u = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])[..., :width]
        return (u.astype(f64) - 8) * scale
    return codes.astype(f64) * scale


def group_query_attention(attrs, inputs, history=None):
    """Returns output, present_key, present_value (codes), qk. Rows of present that are unspecified are 0.

    history: (keys, values) codes [B, Nk, tokens, Dc] of all tokens before this step, for windowed caches, which may have
    dropped rows that a query still sees nothing of.
    """
    n, nk = attrs["num_heads"], attrs["kv_num_heads"]
    query, dtype = inputs[0], inputs[0].dtype
    batch, rows = query.shape[:2]
    if at(inputs, 1) is None:
        packed = query.reshape(batch, rows, n + 2 * nk, -1)
        q, k, v = packed[:, :, :n], packed[:, :, n : n + nk], packed[:, :, n + nk :]
    else:
        q, k, v = query.reshape(batch, rows, n, -1), *(x.reshape(*x.shape[:2], nk, x.shape[2] // nk) for x in inputs[1:3])
    width, shared = q.shape[-1], k.shape[1] == 0 and rows > 0
    total_length = int(inputs[6].reshape(-1)[0])
    totals = inputs[5].reshape(-1).astype(np.int64) + 1
    lengths = at(inputs, 16)
    counts = lengths.reshape(-1).astype(np.int64) if lengths is not None else np.minimum(rows, totals)
    starts = totals - counts
    bits = attrs.get("kv_cache_bit_width", 0)
    scales = []
    for i, kind in ((12, attrs.get("k_quant_type", "NONE")), (13, attrs.get("v_quant_type", "NONE"))):
        scale = at(inputs, i)
        if kind == "NONE":
            scales.append(np.ones((1, 1, 1)))
        else:
            scales.append(scale.reshape(1, 1, 1) if kind == "PER_TENSOR" else scale.reshape(nk, 1, width))
    if at(inputs, 14) is not None:
        epsilon = attrs.get("qk_norm_epsilon", 1e-6)
        q = rms_norm(q, inputs[14], attrs.get("q_norm_epsilon", epsilon)).astype(dtype)
        k = rms_norm(k, inputs[15], attrs.get("k_norm_epsilon", epsilon)).astype(dtype)
    if attrs.get("do_rotary", 0):
        ids, local = at(inputs, 9), np.arange(rows)
        if ids is None:
            positions = starts[:, None] + local
        elif lengths is None and rows == total_length:
            positions = np.broadcast_to(ids[0, 0] + local, (batch, rows))
        else:
            positions = ids
        positions = np.where(local < counts[:, None], positions, 0)  # rows of padding are never used
        cos, sin = inputs[7][positions][:, :, None], inputs[8][positions][:, :, None]
        q = rotate(q, cos, sin, attrs.get("rotary_interleaved", 0)).astype(dtype)
        if not shared:
            k = rotate(k, cos, sin, attrs.get("rotary_interleaved", 0)).astype(dtype)
    past = [at(inputs, 3), at(inputs, 4)]
    past_rows = 0 if past[0] is None else past[0].shape[2]
    cache_type = dtype if past[0] is None and bits == 0 else past[0].dtype if past[0] is not None else (np.uint8 if bits == 4 else np.int8)
    windowed, window = attrs.get("sliding_window_cache", 0), attrs.get("local_window_size", -1)
    capacity = past_rows if windowed else max(past_rows, total_length)
    code_width = (width + 1) // 2 if bits == 4 else width
    present = [np.zeros((batch, nk, capacity, code_width), cache_type) for _ in range(2)]
    output = np.zeros((batch, rows, n, width))
    qk = np.zeros((batch, n, rows, total_length))
    scale = attrs.get("scale", 0.0) or 1 / math.sqrt(width)
    bias, sink = at(inputs, 10), at(inputs, 11)
    for b in range(batch):
        total, count, start = int(totals[b]), int(counts[b]), int(starts[b])
        cached = total if shared else start
        codes, values = [], []
        for i, new in enumerate((k, v)):
            old = (
                history[i][b, :, :cached]
                if history is not None
                else past[i][b, :, :cached]
                if cached
                else np.zeros((nk, 0, code_width), cache_type)
            )
            fresh = np.zeros((nk, 0, code_width), cache_type)
            if not shared:
                fresh = encode(new[b, :count].transpose(1, 0, 2), scales[i], cache_type, bits)
            codes.append(np.concatenate([old, fresh], 1))
            values.append(decode(codes[i], scales[i].astype(f64), bits, width))
            held = resident(total, capacity, window) if windowed else total
            present[i][b, :, :held] = codes[i][:, total - held :]
        for s in range(count):
            p = start + s
            low = max(0, p - window + 1) if window > 0 else 0
            high = p + 1 if attrs.get("causal", 1) else total
            for h in range(n):
                g = h // (n // nk)
                extra = None if bias is None else bias[b % bias.shape[0], h % bias.shape[1], s, low:high].astype(f64)
                z = sink[h] if sink is not None else 0.0 if attrs.get("smooth_softmax", -1) == 1 else None
                row = attend(q[b, s, h], values[0][g, low:high], values[1][g, low:high], scale, attrs.get("softcap", 0.0), extra, z)
                output[b, s, h] = row[0]
                qk[b, h, s, low:high] = row[attrs.get("qk_output", 0) or 1]
    return output.reshape(batch, rows, -1), *present, qk


def head_view(x, count):
    """[B, S, count * D] or [B, count, S, D] as [B, count, S, D]."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], count, x.shape[2] // count).transpose(0, 2, 1, 3)


def rotary_embedding(x, cos, sin, positions=None, *, heads=0, interleaved=False):
    """cos and sin [M, R/2] with positions [B, S] (or [B, S, R/2], one a column), or [B, S, R/2] without. heads: of a 3-D x."""
    four = head_view(x, heads)
    if positions is not None and positions.ndim == 3:
        columns = np.arange(cos.shape[-1])
        cos, sin = cos[positions, columns], sin[positions, columns]
    elif positions is not None:
        cos, sin = cos[positions], sin[positions]
    y = rotate(four, cos[:, None], sin[:, None], interleaved)
    return y if x.ndim == 4 else y.transpose(0, 2, 1, 3).reshape(x.shape)


def mrotary_positions(ids, section, layout, half):
    """The position of every column of the tables: [B, S, half] from ids [3, B, S]."""
    stream = np.repeat(np.arange(3), section)
    if layout == 1:
        stream = np.zeros(half, int)
        for i in (1, 2):
            stream[i : 3 * section[i] : 3] = i
    return np.moveaxis(ids, 0, -1)[..., stream]


def softmax(x):
    top = x.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(x - np.where(np.isinf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total != 0)


def scaled_dot_product(q, k, v, *, scale=None, softcap=0.0, bias=None, visible=None):
    """[B, N, S, D] x [B, Nk, L, D] x [B, Nk, L, Dv] -> [B, N, S, Dv] and the logits, hidden ones -inf."""
    group = q.shape[1] // k.shape[1]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    x = scale * np.einsum("bnsd,bntd->bnst", q.astype(f64), np.repeat(k, group, 1).astype(f64))
    if softcap:
        x = softcap * np.tanh(x / softcap)
    if bias is not None:
        x = x + bias.astype(f64)
    if visible is not None:
        x = np.where(visible, x, -np.inf)
    return np.einsum("bnst,bntd->bnsd", softmax(x), np.repeat(v, group, 1).astype(f64)), x


def join_heads(y):
    return y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], y.shape[1] * y.shape[3])


def attention(attrs, inputs):
    """ai.onnx Attention: output, present key, present value."""
    q, k, v = inputs[:3]
    mask, past_key, past_value, lengths = (at(inputs, i) for i in (3, 4, 5, 6))
    q4 = head_view(q, attrs.get("q_num_heads", 0))
    k, v = (head_view(x, attrs.get("kv_num_heads", 0)) for x in (k, v))
    past = 0 if past_key is None else past_key.shape[2]
    if past_key is not None:
        k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
    columns, rows = np.arange(k.shape[2]), np.arange(q4.shape[2])
    visible = np.ones((q4.shape[0], 1, len(rows), len(columns)), bool)
    start = np.full(len(q4), past)
    if lengths is not None:
        visible &= columns < lengths[:, None, None, None]
        start = lengths - len(rows)
    if attrs.get("is_causal", 0):
        visible &= columns <= start[:, None, None, None] + rows[:, None]
    bias = mask
    if mask is not None and mask.dtype == np.bool_:
        bias, visible = None, visible & mask
    y, _ = scaled_dot_product(q4, k, v, scale=attrs.get("scale"), softcap=attrs.get("softcap", 0.0), bias=bias, visible=visible)
    return y if q.ndim == 4 else join_heads(y), k, v


def multi_head_attention(attrs, inputs):
    """Output, present key, present value, qk."""
    n = attrs["num_heads"]
    q, k, v = inputs[0], at(inputs, 1), at(inputs, 2)
    if k is None:
        q, k, v = (q[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3))
    elif v is None:
        k, v = (k[:, :, :, i].transpose(0, 2, 1, 3) for i in range(2))
    q, k, v = (head_view(x, n) for x in (q, k, v))
    if at(inputs, 3) is not None:
        parts = np.split(inputs[3], np.cumsum([n * q.shape[-1], n * k.shape[-1]]))
        q, k, v = (x + p.reshape(1, n, 1, -1) for x, p in zip((q, k, v), parts, strict=True))
    past = 0
    if at(inputs, 6) is not None:
        past = inputs[6].shape[2]
        k, v = np.concatenate([inputs[6], k], 2), np.concatenate([inputs[7], v], 2)
    columns, rows = np.arange(k.shape[2]), np.arange(q.shape[2])
    bias = np.zeros((1, 1, 1, 1))
    if at(inputs, 4) is not None:
        bias = bias + np.where(inputs[4] == 0, attrs.get("mask_filter_value", -10000.0), 0.0)[:, None, None]
    if at(inputs, 5) is not None:
        bias = bias + inputs[5].astype(f64)
    visible = columns <= rows[:, None] + past if attrs.get("unidirectional", 0) else None
    y, x = scaled_dot_product(q, k, v, scale=attrs.get("scale", 0.0) or None, bias=bias, visible=visible)
    return join_heads(y), k, v, np.maximum(x, -3.4028234663852886e38)


def tensor_scatter(cache, update, indices, axis=-2, circular=False):
    y = np.moveaxis(cache.copy(), axis, 1)
    new = np.moveaxis(update, axis, 1)
    for b in range(len(y)):
        start = 0 if indices is None else int(indices[b])
        rows = start + np.arange(new.shape[1])
        y[b, rows % y.shape[1] if circular else rows] = new[b]
    return np.moveaxis(y, 1, axis)
