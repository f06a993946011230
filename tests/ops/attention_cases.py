# SPDX-License-Identifier: Apache-2.0
"""Random nodes of GroupQueryAttention, and how the attention tests run and compare nodes."""

import ml_dtypes
import numpy as np

import hotset
from helpers import feeds, node_model
from reference.attention import resident

F8 = ml_dtypes.float8_e4m3fn
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float16): 2e-3, np.dtype(ml_dtypes.bfloat16): 1.6e-2}
MODES = ["prompt", "prompt_static", "continue", "decode", "ragged", "chunk", "windowed", "windowed_chunk", "shared", "no_past"]


def assert_near(got, expected, factor=1.0, dtype=None):
    """Absolute and relative, as for results of order 1."""
    got = np.asarray(got)
    tolerance = TOLERANCE[np.dtype(dtype or got.dtype)] * factor
    assert got.shape == expected.shape
    g, e = got.astype(np.float64), np.asarray(expected, np.float64)
    assert np.isfinite(g).all()
    assert (np.abs(g - e) <= tolerance * (1 + np.abs(e))).all(), np.abs(g - e).max()


def normal(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def cache(rng, dtype, *shape):
    if dtype in (np.int8, np.uint8):
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    return normal(rng, dtype, *shape) if dtype != F8 else (30 * rng.standard_normal(shape)).astype(np.float32).astype(F8)


def lengths_of_mode(rng, mode, batch, rows, window):
    """Tokens after the step, capacity of past, total_sequence_length, query_seqlens or None; some modes fix batch or rows."""
    if mode in ("prompt", "no_past", "prompt_static"):
        totals = rng.integers(1, rows + 1, batch)
        totals[0] = rows
        return totals, rows + int(rng.integers(0, 50)) if mode == "prompt_static" else 0, rows, None
    if mode == "continue":
        past = int(rng.choice([1, 5, 70, 600]))
        return np.array([past + rows]), past + int(rng.choice([0, rows + 9])), past + rows, None
    if mode in ("decode", "ragged"):
        past = int(rng.choice([0, 1, 16, 100, 1300]))
        totals = np.full(batch, past + 1) if mode == "decode" else rng.integers(1, past + 2, batch)
        return totals, past + int(rng.choice([0, 7])), past + 1, None
    if mode == "shared":
        capacity = rows + int(rng.integers(0, 100))
        totals = rng.integers(rows, capacity + 1, batch)
        return totals, capacity, int(totals.max()), None
    capacity = rows + int(rng.choice([0, 10, 200])) if mode == "chunk" else window + int(rng.choice([0, 2, 7]))
    past = rng.integers(0, capacity - rows + 1, batch) if mode == "chunk" else rng.integers(0, 3 * capacity, batch)
    if mode == "windowed":
        totals = past + rows
        if rows == totals.max():
            totals[:] = rows
        return totals, capacity, int(totals.max()), None
    counts = rng.integers(0, rows + 1, batch)
    counts[(past == 0) & (counts == 0)] = 1
    totals = past + counts
    return totals, capacity, max(capacity if mode == "chunk" else rows, int(totals.max())), counts.astype(np.int32)


class GqaCase:
    """attributes, inputs (None where absent), history (windowed caches), names of what onnxruntime cannot do."""

    def __init__(self, seed, mode, dtype, head_size, group=2, kv_heads=2, batch=2, rows=5, bits=0, plain=False):
        rng = np.random.default_rng(seed)
        chance = (lambda p: False) if plain else (lambda p: rng.random() < p)
        self.dtype, self.mode, self.bits = np.dtype(dtype), mode, bits
        heads, windowed = kv_heads * group, mode.startswith("windowed")
        window = int(rng.choice([1, 2, 3, 6, 20]))
        if mode in ("decode", "ragged"):
            rows = 1
        if mode == "continue" or (mode in ("windowed", "shared") and rows > 1):
            batch = 1
        self.totals, capacity, total, counts = lengths_of_mode(rng, mode, batch, rows, window)
        a = self.attributes = {"num_heads": heads, "kv_num_heads": kv_heads}
        if windowed or chance(0.3):
            a["local_window_size"] = window
        if windowed:
            a["sliding_window_cache"] = 1
        x = self.inputs = [None] * 17
        new_rows = 0 if mode == "shared" else rows
        if mode != "shared" and rng.random() < 0.5:
            x[0] = normal(rng, dtype, batch, rows, (heads + 2 * kv_heads) * head_size)
        else:
            x[0] = normal(rng, dtype, batch, rows, heads * head_size)
            x[1], x[2] = (normal(rng, dtype, batch, new_rows, kv_heads * head_size) for _ in range(2))
        cache_type, width = dtype, head_size
        if bits:
            kinds = [str(rng.choice(["PER_TENSOR", "PER_CHANNEL"])) for _ in range(2)]
            a.update(k_quant_type=kinds[0], v_quant_type=kinds[1], kv_cache_bit_width=bits)
            cache_type = np.uint8 if bits == 4 else np.int8 if plain or rng.random() < 0.5 else F8
            width = (head_size + 1) // 2 if bits == 4 else head_size
            for i, kind in enumerate(kinds):
                n = 1 if kind == "PER_TENSOR" else kv_heads * head_size
                x[12 + i] = ((0.4 if bits == 4 else 0.03) * (0.5 + rng.random(n))).astype(np.float32)
        self.cache_type = np.dtype(cache_type if mode != "no_past" or not bits else np.uint8 if bits == 4 else np.int8)
        self.history = None
        if mode != "no_past":
            x[3], x[4] = (cache(rng, cache_type, batch, kv_heads, capacity, width) for _ in range(2))
        if windowed:
            self.history = [cache(rng, cache_type, batch, kv_heads, int(self.totals.max()), width) for _ in range(2)]
            cached = self.totals - (rows if counts is None else counts)
            for b, tokens in enumerate(cached):
                held = resident(int(tokens), capacity, window)
                for i in range(2):
                    x[3 + i][b, :, :held] = self.history[i][b, :, tokens - held : tokens]
        x[5] = (self.totals - 1).astype(np.int32)
        x[6] = np.array(total if rng.random() < 0.5 else [total], np.int32)
        if chance(0.6):
            limit = max(total, int(self.totals.max())) + int(rng.integers(0, 6))
            half = head_size // 2 if rng.random() < 0.5 else max(head_size // 4, 1)
            x[7], x[8] = (f(6 * rng.random((limit, half))).astype(dtype) for f in (np.cos, np.sin))
            a.update(do_rotary=1, rotary_interleaved=int(rng.integers(0, 2)))
            if rng.random() < 0.5:
                x[9] = rng.integers(0, max(1, limit - rows + 1), (batch, rows)).astype(np.int64)
        if chance(0.3):
            x[10] = normal(rng, dtype, int(rng.choice([1, batch])), int(rng.choice([1, heads])), rows, total)
        if chance(0.3):
            x[11] = normal(rng, dtype, heads)
        elif chance(0.3):
            a["smooth_softmax"] = 1
        if chance(0.2):
            a["softcap"] = 2.0
        if chance(0.2):
            a["scale"] = 0.25
        if chance(0.2):
            x[14], x[15] = normal(rng, dtype, head_size), normal(rng, dtype, head_size)
            a["qk_norm_epsilon"] = 1e-3
        if "local_window_size" not in a and counts is None and chance(0.2):
            a["causal"] = 0
        if not windowed and chance(0.25):
            a["qk_output"] = int(rng.integers(1, 3))
        x[16] = counts

    @property
    def output_types(self):
        present = "" if self.mode == "no_past" else self.cache_type
        return [None, present, present] + ([None] if self.attributes.get("qk_output") else [])

    @property
    def arguments(self):
        return {"domain": "com.microsoft", "output_types": self.output_types}

    def in_onnxruntime(self):
        """Whether onnxruntime's CPU kernel does this node, and does it right."""
        x, a = self.inputs, self.attributes
        size = x[0].shape[2] // (a["num_heads"] + (2 * a["kv_num_heads"] if x[1] is None else 0))
        rotary = x[7] is None or (size % 16 == 0 and x[7].shape[1] % 8 == 0)
        quant = a.get("k_quant_type") == a.get("v_quant_type") and self.cache_type != np.dtype(F8)
        aligned = size % 8 == 0 and (not a.get("sliding_window_cache") or not self.bits or size % (128 // self.bits) == 0)
        present = self.mode != "no_past" or not self.bits  # it wants the present outputs of a quantised cache
        return self.dtype in (np.float32, np.float16) and x[14] is None and rotary and quant and aligned and present and x[0].shape[1] > 0

    def check(self, got, expected):
        """Outputs in order, "no_past" without present; expected as the reference gives it."""
        quantised = 2 if self.bits and self.dtype != np.float32 else 1
        counts = self.inputs[16]
        assert_near(got[0], expected[0], quantised)
        if counts is not None:
            for b, count in enumerate(counts):
                assert (np.asarray(got[0][b, count:]) == 0).all()
        if self.attributes.get("qk_output"):
            assert_near(got[-1], expected[3])
        if self.mode == "no_past":
            return
        for g, e in zip(got[1:3], expected[1:3], strict=True):
            assert g.shape == e.shape and g.dtype == self.cache_type
            for b, total in enumerate(self.totals):
                held = int(total)
                if self.history is not None:
                    held = resident(held, e.shape[2], self.attributes["local_window_size"])
                self.check_rows(g[b, :, :held], e[b, :, :held])

    def check_rows(self, got, expected):
        if not self.bits:
            assert_near(got, expected.astype(np.float64), 4, self.dtype)
            return
        exact = not self.attributes.get("do_rotary") and self.inputs[14] is None
        wrong = (got.view(np.uint8) != expected.view(np.uint8)).mean() if got.size else 0.0  # ties after rotation may differ
        assert wrong <= (0 if exact else 2e-3 if self.dtype == np.float32 else 2e-2)


def run_in_place(op, inputs, attributes, shared, threads=2, **model_arguments):
    """Outputs of a run in which output o shares the buffer of input i, for o, i of `shared`."""
    options = hotset.SessionOptions()
    options.intra_op_num_threads = threads
    with hotset.InferenceSession(node_model(op, inputs, attributes, **model_arguments), options) as session:
        binding, arrays = session.io_binding(), feeds(inputs)
        for name, array in arrays.items():
            binding.bind_cpu_input(name, array)
        for output in session.get_outputs():
            i = shared.get(int(output.name[1:]))
            if i is None:
                binding.bind_output(output.name)
            else:
                binding.bind_ortvalue_output(output.name, hotset.OrtValue.ortvalue_from_numpy(arrays[f"x{i}"]))
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()
