# SPDX-License-Identifier: Apache-2.0
"""Slow, exact NumPy reference of com.microsoft::MoE and QMoE.

Arrays called W are float32 [E, N, K] (expert, output feature,
input feature); codes are unsigned int32 of the same shape. Sums run in float64 and are rounded to float32 once, so no
summation order is preferred; every other rounding point is explicit. dt is 'f32', 'f16' or 'bf16'.
"""

import math

import numpy as np

from .weights import codes_of_fp4, codes_of_int, dequant_fp4, dequant_fp8, dequant_int, is_prepacked, round_to

F32 = np.float32

# ---- router ----


def route(logits, k, normalize=False, router_weights=None):
    """logits [T,E] -> (ids int [T,k], weights float32 [T,k]). Ties: lower id; NaN selects as -inf."""
    x = np.asarray(logits, F32)
    ids = np.argsort(np.where(np.isnan(x), np.inf, -x), axis=1, kind="stable")[:, :k]
    with np.errstate(invalid="ignore"):
        if router_weights is None:
            p = np.exp(x - x.max(1, keepdims=True))
            p = p / p.sum(1, keepdims=True, dtype=F32)
        else:
            p = np.asarray(router_weights, F32)
    w = np.take_along_axis(p, ids, 1)
    if normalize:
        s = np.zeros((len(w), 1), F32)
        for j in range(k):  # rank order
            s = s + w[:, j : j + 1]
        if router_weights is None:
            w = np.where(s > 1e-6, w / np.where(s > 1e-6, s, 1), w)
        else:
            w = np.where(s == 0, 0, w / np.where(s == 0, 1, s))
    return ids, w.astype(F32)


def route_sparse_mixer(logits, jitter=0.01):
    """logits [T,E] -> (ids [T,2], weights [T,2]); two masked softmaxes, no renormalisation."""
    x = np.asarray(logits, F32)
    if x.shape[1] < 2:
        raise ValueError("sparse mixer needs two experts")
    ids, w = np.zeros((len(x), 2), np.int64), np.zeros((len(x), 2), F32)
    for t, row in enumerate(x):
        left = np.ones(len(row), bool)
        key = np.where(np.isnan(row), -np.inf, row)
        for j in range(2):
            best = max(np.flatnonzero(left), key=lambda i: (key[i], -i))
            v = row[best]
            with np.errstate(invalid="ignore"):
                masked = ((v - row) > F32(2 * jitter) * np.maximum(np.abs(row), v)) | ~left
                p = np.where(masked, 0, np.exp(row - v))
            ids[t, j], w[t, j] = best, p[best] / p.sum()
            left[best] = False
    return ids, w


# ---- activations ----


def sigmoid(x):
    z = np.exp(-np.abs(x))
    return np.where(np.asarray(x) >= 0, 1 / (1 + z), z / (1 + z)).astype(F32)


def gelu_erf(x):
    x = np.asarray(x, F32)
    return (0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))).astype(F32)


def gelu_tanh(x):
    x = np.asarray(x, F32)
    return (0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x.astype(np.float64) ** 3)))).astype(F32)


def activate(a, c=None, *, kind="relu", fusion=0, alpha=1.0, beta=0.0, limit=math.inf, limit_after=False, gelu=gelu_erf):
    """FC1 result a float32 [R, f*I], FC3 result c [R, I] or None -> [R, I].

    fusion 0 without FC3 reads swiglu rows as interleaved. geglu is always the tanh form, takes no FC3 and no fusion 0.
    """
    one = {
        "relu": lambda x: np.maximum(x, 0),
        "relu2": lambda x: np.maximum(x, 0) ** 2,
        "gelu": gelu,
        "silu": lambda x: x * sigmoid(x),
        "identity": lambda x: x,
    }
    a = np.asarray(a, F32)
    if kind in ("swiglu", "geglu") and c is None:
        if kind == "geglu" and fusion not in (1, 2):
            raise ValueError("geglu needs swiglu_fusion 1 or 2")
        g, value = (a[:, : a.shape[1] // 2], a[:, a.shape[1] // 2 :]) if fusion == 2 else (a[:, 0::2], a[:, 1::2])
    elif kind == "geglu":
        raise ValueError("geglu takes no FC3")
    else:
        g, value = a, c
    if kind == "geglu":
        return gelu_tanh(g) * value
    if kind != "swiglu":
        return one[kind](g).astype(F32) * (F32(1) if value is None else value)
    value = np.clip(value, F32(-limit), F32(limit)) + F32(beta)
    if limit_after:
        return np.minimum(g * sigmoid(F32(alpha) * g), F32(limit)) * value
    g = np.minimum(g, F32(limit))
    return g * sigmoid(F32(alpha) * g) * value


# ---- rounding points and the operator ----

# weight: dequantised weight rounded to dt. fc1: FC1 sum rounded before its bias. act: activation rounded.
# row: FC2 sum rounded before its bias. row_bias: rounded after it, instead. Always: final sum float32, rounded once.
ROUNDING = {
    "device": {"weight", "fc1", "act", "row"},  # kernels of a device, and prepacked INT2 of onnxruntime
    "cpu": {"row"},  # our CPU kernels
    "upstream_cpu": set(),  # the raw kernel of onnxruntime and its float MoE
    "upstream_shared": {"weight", "act", "row_bias"},  # its prepacked and 3-bit kernel
}


def _mul(x, W, dt, on):
    """x [R,K] times W [N,K] transposed: exact products, float64 sum, one rounding to float32."""
    W = round_to(W, dt) if on else W
    return (x.astype(np.float64) @ W.T.astype(np.float64)).astype(F32)


def moe(
    x,
    logits,
    W1,
    W2,
    k,
    *,
    dt="f32",
    b1=None,
    b2=None,
    W3=None,
    b3=None,
    normalize=False,
    router_weights=None,
    sparse_mixer=False,
    rounding="device",
    route_fn=None,
    **act,
):
    """x [...,H], logits [T,E], W1 [E,f*I,H], W2 [E,H,I], W3 [E,I,H] float32 -> float32 values of dt, shape of x.

    A legacy MoE declaration (E,K,N) is W.reshape(E,N,K): the bytes stay. route_fn replaces route in comparisons.
    """
    on = ROUNDING[rounding]
    x = round_to(x, dt)
    shape, x = x.shape, x.reshape(-1, x.shape[-1])
    logits = np.asarray(logits, F32)
    logits = logits.reshape(-1, logits.shape[-1])
    if router_weights is not None:
        router_weights = np.asarray(router_weights, F32).reshape(logits.shape)
    b1, b2, b3 = (np.zeros((len(W1), 1), F32) if b is None else np.asarray(b, F32) for b in (b1, b2, b3))
    ids, w = route_sparse_mixer(logits) if sparse_mixer else (route_fn or route)(logits, k, normalize, router_weights)
    rows = np.zeros((*ids.shape, x.shape[1]), F32)
    for e in np.unique(ids):
        t, j = np.nonzero(ids == e)
        a = round_to(_mul(x[t], W1[e], dt, "weight" in on), dt if "fc1" in on else "f32")
        a = a + b1[e]
        c = None
        if W3 is not None:
            c = round_to(_mul(x[t], W3[e], dt, "weight" in on), dt if "fc1" in on else "f32")
            c = c + b3[e]
        h = round_to(activate(a, c, **act), dt if "act" in on else "f32")
        o = round_to(_mul(h, W2[e], dt, "weight" in on), dt if "row" in on else "f32")
        o = o + b2[e]
        rows[t, j] = round_to(o, dt if "row_bias" in on else "f32")
    y = np.zeros_like(x)
    for j in range(ids.shape[1]):  # order of routes
        y = y + w[:, j : j + 1] * rows[:, j]
    return round_to(y, dt).reshape(shape)


# ---- QMoE as a whole ----


def qmoe_weights(inputs, attrs, hidden, upstream_cpu_dt=None):
    """Input tensors by schema name and attributes -> {1: W1, 2: W2[, 3: W3]} float32 [E,N,K].

    upstream_cpu_dt: activation type of a shared upstream CPU run; FP4 scales are then rounded as says.
    """
    a = {
        "expert_weight_bits": 4,
        "block_size": 0,
        "quant_type": "int",
        "weights_prepacked": -1,
        "activation_type": "relu",
        "swiglu_fusion": 0,
        **attrs,
    }
    kind = {"mxfp4": "fp4", "wfp4afp8": "fp4"}.get(a["quant_type"], a["quant_type"])
    fp4_k_packed = a["weights_prepacked"] == 1 and a["quant_type"] != "wfp4afp8"
    w = {i: inputs.get(f"fc{i}_experts_weights") for i in (1, 2, 3)}
    w = {i: np.asarray(t).view(np.uint8) for i, t in w.items() if t is not None}
    bits = {i: a.get(f"fc{i}_expert_weight_bits", a["expert_weight_bits"]) for i in w}
    if 3 in w and "fc3_expert_weight_bits" not in a:
        bits[3] = bits[1]
    if kind in ("fp4", "nvfp4"):
        bits = dict.fromkeys(w, 4)
    elif kind == "fp8":
        bits = dict.fromkeys(w, 8)
    experts = w[2].shape[0]
    inter = w[2][0].size * 8 // bits[2] // hidden
    rows1 = w[1][0].size * 8 // bits[1] // hidden  # f * I
    dims = {1: (rows1, hidden), 2: (hidden, inter), 3: (inter, hidden)}
    if kind == "int":
        prepacked = is_prepacked(a["weights_prepacked"], [(w[i].shape, *dims[i], bits[i]) for i in w])
    out = {}
    for i in w:
        n, k = dims[i]
        scales, glob = inputs.get(f"fc{i}_scales"), inputs.get(f"fc{i}_global_scale")
        if kind == "int":
            codes = codes_of_int(w[i], n, k, bits[i], prepacked)
            out[i] = dequant_int(codes, scales, bits[i], a["block_size"], inputs.get(f"fc{i}_zero_points"))
        elif kind in ("fp4", "nvfp4"):
            sdt = {None: "f32", "f32": "bf16"}.get(upstream_cpu_dt, upstream_cpu_dt)
            out[i] = round_to(dequant_fp4(codes_of_fp4(w[i], n, k, fp4_k_packed), scales, glob, kind, sdt), sdt)
        elif kind == "fp8":
            out[i] = dequant_fp8(w[i].reshape(experts, n, k), glob, scales, a["block_size"])
        else:
            raise ValueError(f"quant_type {kind!r}")
    return out


def qmoe(inputs, attrs, dt="f32", rounding="device", upstream_cpu_dt=None, route_fn=None, **act):
    """com.microsoft::QMoE: schema input names and attributes -> float32 values of dt, shape of input."""
    W = qmoe_weights(inputs, attrs, np.asarray(inputs["input"]).shape[-1], upstream_cpu_dt)
    return moe(
        inputs["input"],
        inputs["router_probs"],
        W[1],
        W[2],
        attrs.get("k", 1),
        dt=dt,
        W3=W.get(3),
        b1=inputs.get("fc1_experts_bias"),
        b2=inputs.get("fc2_experts_bias"),
        b3=inputs.get("fc3_experts_bias"),
        normalize=attrs.get("normalize_routing_weights", 0),
        router_weights=inputs.get("router_weights"),
        sparse_mixer=attrs.get("use_sparse_mixer", 0),
        rounding=rounding,
        route_fn=route_fn,
        **activation_arguments(attrs),
        **act,
    )


def activation_arguments(attrs):
    """Attributes -> keyword arguments of activate()."""
    return {
        "kind": attrs.get("activation_type", "relu"),
        "fusion": attrs.get("swiglu_fusion", 0),
        "alpha": attrs.get("activation_alpha", 1.0),
        "beta": attrs.get("activation_beta", 0.0),
        "limit": attrs.get("swiglu_limit", math.inf),
        "limit_after": attrs.get("swiglu_limit_after_activation", 0),
    }
