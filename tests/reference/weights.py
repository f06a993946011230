# SPDX-License-Identifier: Apache-2.0
"""Number formats, packed layouts and quantisers of expert and MatMulNBits weights, slow and exact, in NumPy.

Arrays called W are float32 [E, N, K] (expert, output feature, input feature); codes are unsigned int32 of the same shape.
dt is 'f32', 'f16' or 'bf16'.
"""

import numpy as np

F32 = np.float32

# ---- number formats ----


def round_to(a, dt):
    """Round to dt, nearest even, and widen back: any float array -> float32. NaN and inf survive; f16 overflows to inf."""
    a = np.asarray(a, F32)
    if dt not in ("f32", "f16", "bf16"):
        raise ValueError(f"dt {dt!r}: expected f32, f16 or bf16")
    if dt == "f32":
        return a
    if dt == "f16":
        with np.errstate(over="ignore"):
            return a.astype(np.float16).astype(F32)
    bits = a.view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return np.where(np.isnan(a), a, up.astype(np.uint32).view(F32))


def e2m1(codes):
    """FP4 codes 0..15 -> float32: sign bit 3, exponent bits 1-2, mantissa bit 0. Code 8 is -0."""
    c = np.asarray(codes, np.int32)
    e, m = c >> 1 & 3, c & 1
    mag = np.where(e == 0, 0.5 * m, (1 + 0.5 * m) * np.exp2(e - 1.0))
    return np.where(c & 8, -mag, mag).astype(F32)


def e4m3fn(byte):
    """E4M3FN bytes -> float32: bias 7, no inf, 0x7F and 0xFF are NaN, subnormals m * 2^-9."""
    b = np.asarray(byte).astype(np.int32)
    e, m = b >> 3 & 15, b & 7
    mag = np.where(e == 0, m * 2.0**-9, (1 + m / 8) * np.exp2(e - 7.0))
    mag = np.where((b & 127) == 127, np.nan, mag)
    return np.where(b & 128, -mag, mag).astype(F32)


def e8m0(byte):
    """E8M0 bytes -> float32: 2^(byte-127), byte 255 is NaN. Byte 0 is a float32 subnormal."""
    b = np.asarray(byte).astype(np.float64)
    return np.where(b == 255, np.nan, np.exp2(b - 127)).astype(F32)


def _nearest_code(x, table):
    """Index of the nearest table entry (ascending, codes 0..n-1), ties to the even code, saturating. x >= 0."""
    mid = (table[1:] + table[:-1]) / 2
    lo = np.searchsorted(mid, x, side="left")  # a midpoint stays at the lower code
    on_mid = (lo < len(mid)) & (x == mid[np.minimum(lo, len(mid) - 1)])
    return np.where(on_mid & (lo % 2 == 1), lo + 1, lo)


def to_e2m1(x):
    """Float -> FP4 codes uint8: nearest, ties to the even code, saturating at 6; the sign bit is kept."""
    x = np.asarray(x, np.float64)
    return (_nearest_code(np.abs(x), e2m1(np.arange(8)).astype(np.float64)) | np.signbit(x) * 8).astype(np.uint8)


def to_e4m3fn(x):
    """Float -> E4M3FN bytes uint8, nearest even, saturating at 448 (tests only; NaN is not handled)."""
    x = np.asarray(x, np.float64)
    return (_nearest_code(np.abs(x), e4m3fn(np.arange(127)).astype(np.float64)) | np.signbit(x) * 128).astype(np.uint8)


# ---- packed integers: one LSB-first bit stream per row ----


def pack_codes(codes, bits):
    """int [..., n] -> uint8 [..., ceil(n*bits/8)], code i in stream bits i*bits .. i*bits+bits-1."""
    codes = np.asarray(codes)
    n = codes.shape[-1]
    stream = np.zeros((*codes.shape[:-1], -(-n * bits // 8) * 8), np.uint8)
    for j in range(bits):
        stream[..., j : n * bits : bits] = codes >> j & 1
    return np.packbits(stream, axis=-1, bitorder="little")


def unpack_codes(packed, bits, count):
    """uint8 [..., bytes] -> int32 [..., count]; padding bits are ignored."""
    stream = np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little").astype(np.int32)
    return sum(stream[..., j : count * bits : bits] << j for j in range(bits))


# ---- SM80 prepacked layout ----


def sm80_pack(codes, bits):
    """Codes int [N, K] of one expert -> uint8 [N*K*bits/8], by the four steps of."""
    n, k = codes.shape
    e, c, period = 32 // bits, 16 // bits, 128 // bits
    if k % 64 or n % c:
        raise ValueError(f"SM80 layout needs K mod 64 = 0 and N mod {c} = 0, got K={k}, N={n}")
    i = np.arange(period)
    q, r = i // (period // 4), i % (period // 4)
    perm = 2 * q + 8 * (r // 2) + r % 2  # step 1: destination i takes source perm[i]
    rows = codes.reshape(n, k // period, period)[:, :, perm].reshape(n, k)  # step 2: column n contiguous along K
    tiles = rows.reshape(n // c, c, k // 64, 64).transpose(0, 2, 1, 3)  # step 3: c columns share each 64-row tile
    words = tiles.reshape(-1, e).astype(np.uint32)
    out = np.zeros(len(words), np.uint32)
    for p in range(e):  # step 4: even positions low half, odd high
        out |= words[:, p] << np.uint32(bits * (p // 2 + (p % 2) * (e // 2)))
    return out.astype("<u4").view(np.uint8)


def sm80_unpack(packed, n, k, bits):
    """Bytes of one expert -> codes int32 [N, K], by the closed decode form of."""
    e, c, period = 32 // bits, 16 // bits, 128 // bits
    v, h = 64 // e, e // 2
    word = np.ascontiguousarray(packed).reshape(-1).view("<u4").astype(np.int64)
    out = np.full((n, k), -1, np.int32)
    col, t, u, s = np.ix_(np.arange(n), np.arange(k // 64), np.arange(v), np.arange(e))
    w = col // c * c * (k // e) + t * c * v + col % c * v + u
    row = 64 * t + period * (u // 4) + 2 * (u % 4) + 8 * (s % h) + s // h
    out[col, row] = word[w] >> (bits * s) & ((1 << bits) - 1)
    return out


# ---- decoding to float32 [E, N, K] ----


def dequant_int(codes, scales, bits, block=0, zero_points=None):
    """w = (q - z) * s. Scales [E,N], [E,N,1] or [E,N,Kb].

    Block-wise means block > 0 and scales of rank 3, also when Kb is 1. Zero points uint8: block-wise
    [E,N,ceil(Kb/pack)] or 4-bit unpacked [E,N,Kb]; row-wise [E,ceil(N/pack)], one stream along N.
    """
    e, n, k = codes.shape
    scales = np.asarray(scales, F32)
    blockwise = block > 0 and scales.ndim == 3
    blocks = -(-k // block) if blockwise else 1
    if scales.size != e * n * blocks:
        raise ValueError(f"scales {scales.shape} do not fit N={n}, K={k}, block {block}")
    z = np.full((e, n, blocks), 1 << (bits - 1))
    if zero_points is not None:
        zp = np.asarray(zero_points, np.uint8)
        if zp.ndim != (3 if blockwise else 2):
            raise ValueError(f"zero points {zp.shape} with {'block' if blockwise else 'row'}-wise scales")
        if not blockwise:
            z = unpack_codes(zp, bits, n)[..., None]
        elif bits == 4 and zp.shape[2] == blocks:
            z = zp.astype(np.int32) & 15  # unpacked; with one block both readings agree
        else:
            z = unpack_codes(zp, bits, blocks)
    of = np.arange(k) // block if blockwise else np.zeros(k, int)
    return (codes - z[..., of]).astype(F32) * scales.reshape(e, n, blocks)[..., of]


def codes_of_int(w, n, k, bits, prepacked):
    """Weight tensor uint8 [E, ...] -> codes int32 [E,N,K]; only the byte order matters, not the declared shape."""
    w = np.ascontiguousarray(w, np.uint8).reshape(len(w), -1)
    if prepacked:
        return np.stack([sm80_unpack(x, n, k, bits) for x in w])
    return unpack_codes(w.reshape(len(w), n, -1), bits, k)


def codes_of_fp4(w, n, k, k_packed):
    """Nibbles: K-packed bytes are [E,N,K/2], N-packed bytes [E,K,N/2] -> codes int32 [E,N,K]."""
    w = np.ascontiguousarray(w, np.uint8).reshape(len(w), *((n, k // 2) if k_packed else (k, n // 2)))
    c = unpack_codes(w, 4, k if k_packed else n)
    return c if k_packed else c.transpose(0, 2, 1)


def dequant_fp4(codes, block_scales, global_scale, kind, scale_dt="f32"):
    """w = E2M1[q] * block scale * global. Block scales are bytes [E,N,K/g], g = 32 'fp4', 16 'nvfp4'.

    scale_dt other than f32 rounds block scale * global first, as the shared CPU kernel does.
    """
    g, decode = (16, e4m3fn) if kind == "nvfp4" else (32, e8m0)
    s = decode(np.asarray(block_scales).view(np.uint8)).astype(F32)
    if global_scale is not None:
        s = s * np.asarray(global_scale, F32)[:, None, None]
    return e2m1(codes) * round_to(s, scale_dt).repeat(g, axis=2)


def dequant_fp8(w, global_scale=None, block_scales=None, block=0):
    """E4M3FN bytes [E,N,K]: w = value * global[e], or * s[n div g][k div g]."""
    v = e4m3fn(np.asarray(w).view(np.uint8))
    if block_scales is None:
        return v * np.asarray(global_scale, F32)[:, None, None]
    s = np.asarray(block_scales, F32).repeat(block, axis=1).repeat(block, axis=2)
    return v * s[:, : v.shape[1], : v.shape[2]]


# ---- packers and quantisers for tests ----


def quantise_int(W, bits, block=0, asymmetric=False):
    """float [E,N,K] -> (codes [E,N,K], scales [E,N] or [E,N,Kb], zero-point codes of the scales' shape or None)."""
    e, n, k = W.shape
    g = block if block > 0 else k
    kb = -(-k // g)
    x = np.pad(W, ((0, 0), (0, 0), (0, kb * g - k))).reshape(e, n, kb, g).astype(np.float64)
    top, mid = (1 << bits) - 1, 1 << (bits - 1)
    if asymmetric:
        lo, hi = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
        s = ((hi - lo) / top).astype(F32)
        s[s == 0] = 1
        z = np.clip(np.rint(-lo / s), 0, top).astype(np.int32)
    else:
        s = (np.abs(x).max(-1) / mid).astype(F32)
        s[s == 0] = 1
        z = np.full(s.shape, mid)
    q = np.clip(np.rint(x / s[..., None]) + z[..., None], 0, top).astype(np.int32).reshape(e, n, kb * g)[..., :k]
    if block <= 0:
        s, z = s[..., 0], z[..., 0]
    return q, s, z if asymmetric else None


def pack_int(codes, bits, prepacked=False):
    """codes [E,N,K] -> uint8 raw [E,N,bytes] or SM80 bytes declared [E,K,N/pack]."""
    if not prepacked:
        return pack_codes(codes, bits)
    e, n, k = codes.shape
    return np.stack([sm80_pack(q, bits) for q in codes]).reshape(e, k, n * bits // 8)


def pack_fp4(codes, k_packed):
    """FP4 codes [E,N,K] -> uint8 declared [E,K,N/2]; bytes K-packed or N-packed."""
    e, n, k = codes.shape
    return pack_codes(codes if k_packed else codes.transpose(0, 2, 1), 4).reshape(e, k, n // 2)


def quantise_mxfp4(W):
    """float [E,N,K] -> (codes [E,N,K], E8M0 bytes [E,N,K/32], global ones [E])."""
    x = W.reshape(*W.shape[:2], -1, 32).astype(np.float64)
    amax = np.abs(x).max(-1)
    ex = np.where(amax > 0, np.clip(np.frexp(amax)[1] - 1 - 2, -127, 127), -127)  # frexp is exact, log2 is not
    q = to_e2m1(x / np.exp2(ex.astype(np.float64))[..., None]).reshape(W.shape)
    q = np.where(amax.repeat(32, axis=2).reshape(W.shape) == 0, 0, q)
    return q, (ex + 127).astype(np.uint8), np.ones(len(W), F32)


def quantise_nvfp4(W):
    """float [E,N,K] -> (codes, E4M3 bytes [E,N,K/16], global [E])."""
    x = W.reshape(*W.shape[:2], -1, 16).astype(np.float64)
    glob = np.abs(x).max((1, 2, 3)) / (6 * 448)
    glob[glob == 0] = 1
    glob = glob.astype(F32)
    s = to_e4m3fn(np.abs(x).max(-1) / 6 / glob[:, None, None])
    step = e4m3fn(s).astype(np.float64) * glob[:, None, None]
    q = to_e2m1(np.divide(x, step[..., None], out=np.zeros_like(x), where=step[..., None] > 0))
    return q.reshape(W.shape), s, glob


def quantise_fp8(W, block=0):
    """float [E,N,K] -> (bytes [E,N,K], global [E]) or (bytes, s [E,ceil(N/g),ceil(K/g)])."""
    e, n, k = W.shape
    if block <= 0:
        s = np.abs(W).max((1, 2)).astype(F32) / F32(448)
        full = s[:, None, None]
    else:
        nb, kb = -(-n // block), -(-k // block)
        x = np.pad(W, ((0, 0), (0, nb * block - n), (0, kb * block - k))).reshape(e, nb, block, kb, block)
        s = np.abs(x).max((2, 4)).astype(F32) / F32(448)
        full = s.repeat(block, 1).repeat(block, 2)[:, :n, :k]
    return to_e4m3fn(W / np.where(full == 0, 1, full)), s


# ---- layout decision ----


def is_prepacked(weights_prepacked, matrices):
    """Decide the layout of an int QMoE node. matrices: (declared shape [E,a,b], N, K, bits) of FC1, FC2[, FC3] -> bool."""
    if weights_prepacked not in (-1, 0, 1):
        raise ValueError("weights_prepacked must be -1, 0 or 1")
    verdicts, possible = set(), True
    for (_, a, b), n, k, bits in matrices:
        raw = (a, b) == (n, -(-k * bits // 8))
        pre = bits != 3 and (a, b) == (k, n * bits // 8) and n * bits % 8 == 0
        fits = bits != 3 and k % 64 == 0 and n % (16 // bits) == 0
        possible &= fits
        if not raw and not pre:
            raise ValueError(f"shape {(a, b)} is neither raw nor prepacked for N={n}, K={k}, {bits} bits")
        if weights_prepacked == 0 and not raw:
            raise ValueError("weights_prepacked=0 needs [E,N,K/pack]")
        verdicts |= {raw} if raw != pre else set()
    if weights_prepacked >= 0:
        prepacked = bool(weights_prepacked)
    elif len(verdicts) == 2:
        raise ValueError("one matrix is declared raw, the other prepacked")
    else:
        prepacked = not verdicts.pop() if verdicts else possible and len(matrices) < 3  # undecided with FC3: raw
    if prepacked and not possible:
        raise ValueError("these sizes or widths cannot be SM80 prepacked")
    return prepacked


# ---- other operators with packed weights ----


def matmul_nbits_weight(b, scales, n, k, block, bits=4, zero_points=None, prepacked=False):
    """W float64 [n, k]. Each block of a row is padded to `block` codes; float zero points are not offset."""
    blocks = -(-k // block)
    if prepacked:
        codes = sm80_unpack(b, n, k, bits)
    else:
        codes = unpack_codes(b.reshape(n, blocks, -1), bits, block).reshape(n, blocks * block)[:, :k]
    if zero_points is None:
        z = np.full((n, blocks), float(1 << (bits - 1)))
    elif zero_points.dtype == np.uint8:
        z = unpack_codes(zero_points.reshape(n, -1), bits, blocks).astype(np.float64)
    else:
        z = zero_points.reshape(n, blocks).astype(np.float64)
    group = np.arange(k) // block
    return (codes - z[:, group]) * scales.reshape(n, blocks).astype(np.float64)[:, group]


def gather_block_quantized(codes, indices, scales, block, zero, gather_axis=0, quantize_axis=-1):
    """Codes and zero (a number or codes of the scales' shape) as integers; indices outside [-n, n) give zeros."""
    axis = quantize_axis % codes.ndim
    group = np.arange(codes.shape[axis]) // block
    z = np.broadcast_to(zero, scales.shape)
    w = (codes - np.take(z, group, axis)) * np.take(scales.astype(np.float64), group, axis)
    extent = codes.shape[gather_axis]
    valid = (indices >= -extent) & (indices < extent)
    y = np.take(w, np.where(valid, indices, 0) % extent, gather_axis)
    mask = valid.reshape((1,) * gather_axis + indices.shape + (1,) * (codes.ndim - gather_axis - 1))
    return np.where(mask, y, 0).astype(F32)
