# SPDX-License-Identifier: Apache-2.0
"""PagedAttention in float64, one token after the other; roundings to the tensor type where the definition has them."""

import math

import numpy as np

from reference.attention import at, attend, decode, encode, rms_norm, rotate


def paged_attention(attrs, inputs):
    """inputs by position: query, key, value, key_cache, value_cache [pages, block_size, heads, D], cumulative lengths [B + 1],
    past lengths [B], table [B, pages], cos, sin, slots [tokens], sink, norm weights of q and k, scales of k and v.
    Layout LATENT: no value and no value_cache; values are the first v_head_size channels of the keys.

    Returns output [tokens, N * D] in float64, and the caches in their type (with LATENT one)."""
    n, nk = attrs["num_heads"], attrs["kv_num_heads"]
    query, dtype = inputs[0], inputs[0].dtype
    latent, bits = attrs.get("kv_cache_layout", "SEPARATE") == "LATENT", 4 if attrs.get("k_cache_dtype") == "int4" else 8
    key_cache, value_cache = inputs[3].copy(), None if latent else inputs[4].copy()
    cumulative, past, table = inputs[5], inputs[6], inputs[7]
    tokens, size = query.shape[0], key_cache.shape[1]
    width = query.shape[1] // (n if at(inputs, 1) is not None else n + 2 * nk)
    if latent:
        q, k, v = query.reshape(tokens, n, width), inputs[1].reshape(tokens, nk, width), None
    elif at(inputs, 1) is None:
        packed = query.reshape(tokens, n + 2 * nk, width)
        q, k, v = packed[:, :n], packed[:, n : n + nk], packed[:, n + nk :]
    else:
        q, k, v = query.reshape(tokens, n, width), inputs[1].reshape(tokens, nk, width), inputs[2].reshape(tokens, nk, width)
    owner = np.repeat(np.arange(len(past)), np.diff(cumulative))
    positions = np.arange(tokens) - cumulative[owner] + past[owner]
    if at(inputs, 12) is not None:
        epsilon = attrs.get("qk_norm_epsilon", 1e-6)
        q, k = rms_norm(q, inputs[12], epsilon).astype(dtype), rms_norm(k, inputs[13], epsilon).astype(dtype)
    if attrs.get("do_rotary", 0):
        offset, interleaved = attrs.get("rotary_offset", 0), attrs.get("rotary_interleaved", 0)
        cos, sin = inputs[8][positions][:, None], inputs[9][positions][:, None]

        def turned(x):
            y = x.astype(np.float64)
            y[..., offset:] = rotate(x[..., offset:], cos, sin, interleaved)
            return y.astype(dtype)

        q, k = turned(q), turned(k)
    if attrs.get("k_quant_type", "NONE") == "NONE":
        bits = 0
    scales = []
    for i, kind in ((14, attrs.get("k_quant_type", "NONE")), (15, attrs.get("v_quant_type", "NONE"))):
        one = np.ones((1, 1))
        scales.append(one if kind == "NONE" else inputs[i].reshape(1, 1) if kind == "PER_TENSOR" else inputs[i].reshape(nk, width))
    slots = at(inputs, 10)
    for t, (b, p) in enumerate(zip(owner, positions, strict=True)):
        page = int(table[b, p // size])
        slot = int(slots[t]) if slots is not None else page * size + int(p % size) if page >= 0 else -1
        if slot < 0:
            continue
        for cache, new, scale in ((key_cache, k, scales[0]), (value_cache, v, scales[1]))[: 1 if latent else 2]:
            cache[slot // size, slot % size] = encode(new[t], scale, cache.dtype, bits)
    scale, window = attrs.get("scale", 0.0) or 1 / math.sqrt(width), attrs.get("local_window_size", -1)
    sink = at(inputs, 11)
    v_width = attrs.get("v_head_size", 0) or width
    output = np.zeros((tokens, n, v_width))
    for t, (b, p) in enumerate(zip(owner, positions, strict=True)):
        low = max(0, int(p) - window + 1) if window > 0 else 0
        high = int(p) + 1 if attrs.get("is_causal", 1) else int(past[b] + cumulative[b + 1] - cumulative[b])
        rows = np.arange(low, high)
        pages = table[b, rows // size]
        rows, pages = rows[pages >= 0], pages[pages >= 0]
        for h in range(n):
            g = h // (n // nk)
            keys, values = (
                decode(cache[pages, rows % size, g], s[g if len(s) > 1 else 0], bits, width)
                for cache, s in ((key_cache, scales[0]), (key_cache, scales[0]) if latent else (value_cache, scales[1]))
            )
            values = values[:, :v_width]
            output[t, h] = attend(q[t, h], keys, values, scale, attrs.get("softcap", 0.0), None, None if sink is None else sink[h])[0]
    output = output.reshape(tokens, n * v_width)
    return (output, key_cache) if latent else (output, key_cache, value_cache)
