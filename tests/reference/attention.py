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
        u = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)[..., :width]
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
