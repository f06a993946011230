# SPDX-License-Identifier: Apache-2.0
"""Random nodes of PagedAttention: requests of any lengths, pages in any order."""

import numpy as np

from ops.attention_cases import F8, assert_near, cache, normal
from reference.paged_attention import paged_attention


def i32(values):
    return np.array(values, np.int32)


class PagedCase:
    """`inputs` by position, `attributes`, `output_types`. latent: one cache, whose first channels are the values."""

    def __init__(self, seed, dtype=np.float32, head_size=32, group=2, kv_heads=2, page=16, tokens=(5, 1, 0, 9), quantised="", latent=False):
        if latent:
            group, kv_heads = group * kv_heads, 1
        rng = np.random.default_rng(seed)
        heads, requests, choose = group * kv_heads, len(tokens), lambda *options: options[int(rng.integers(len(options)))]
        window = int(choose(-1, -1, 1, 3, 20))
        causal = int(window > 0 or rng.random() < 0.8)
        past = np.array([choose(0, 1, page - 1, page, 70, 700) for _ in range(requests)], np.int64)
        totals = past + tokens
        columns = int(-(-totals.max(initial=0) // page) + rng.integers(0, 2))
        n_pages = requests * columns + 2
        pages = rng.permutation(n_pages)
        table = np.full((requests, columns), -1)
        for b in range(requests):
            used = -(-int(totals[b]) // page)
            table[b, :used] = [pages[b * columns + i] for i in range(used)]
            if window > 0:  # what lies below every later window may be gone, or be anything
                table[b, : max(0, int(past[b]) - window + 1) // page] = choose(-1, n_pages + 5, -77)
            if rng.random() < 0.2 and used:
                table[b, rng.integers(0, used)] = -1
        cache_type = {"": dtype, "int8": np.int8, "int4": np.uint8, "fp8": F8}[quantised]
        self.attributes = {"num_heads": heads, "kv_num_heads": kv_heads}
        if window > 0:
            self.attributes["local_window_size"] = window
        if not causal:
            self.attributes["is_causal"] = 0
        n_tokens, packed = int(sum(tokens)), rng.random() < 0.5 and not latent
        widths = [heads + 2 * kv_heads] if packed else [heads, kv_heads] if latent else [heads, kv_heads, kv_heads]
        vectors = [normal(rng, dtype, n_tokens, width * head_size) for width in widths]
        shape = (n_pages, page, kv_heads, (head_size + 1) // 2 if quantised == "int4" else head_size)
        caches = [cache(rng, cache_type, *shape), None if latent else cache(rng, cache_type, *shape)]
        inputs = [*vectors, *[None] * (3 - len(vectors)), *caches]
        inputs += [i32([0, *np.cumsum(tokens)]), i32(past), i32(table), *[None] * 9]
        if rng.random() < 0.5:
            offset, half = choose((0, head_size // 2), (0, head_size // 4), (8, (head_size - 8) // 2))
            if half > 0:
                angles = 6 * rng.random((int(totals.max(initial=1)) + 1, half))
                inputs[8:10] = [f(angles).astype(dtype) for f in (np.cos, np.sin)]
                self.attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2)), "rotary_offset": offset}
        if rng.random() < 0.3:  # some new rows go elsewhere, some nowhere
            slots = rng.permutation(n_pages * page)[:n_tokens]
            inputs[10] = i32(np.where(rng.random(n_tokens) < 0.2, -1, slots))
        if rng.random() < 0.4:
            inputs[11] = normal(rng, dtype, heads)
        if rng.random() < 0.4:
            inputs[12:14] = normal(rng, dtype, head_size), normal(rng, dtype, head_size)
            self.attributes["qk_norm_epsilon"] = 1e-5
        if quantised:
            for i, name in ((14, "k_quant_type"), (15, "v_quant_type"))[: 1 if latent else 2]:
                self.attributes[name] = choose("PER_TENSOR", "PER_CHANNEL")
                each = kv_heads * head_size if self.attributes[name] == "PER_CHANNEL" else 1
                scale = (rng.uniform(0.5, 1, each) * 3 / {"int8": 127, "int4": 7, "fp8": 448}[quantised]).astype(np.float32)
                inputs[i] = scale.reshape(kv_heads, 1, head_size) if each > 1 else scale
                if quantised == "int4" or rng.random() < 0.5:
                    self.attributes[name[0] + "_cache_dtype"] = {"fp8": "float8e4m3fn"}.get(quantised, quantised)
        v_head_size = choose(0, head_size, max(1, head_size - 8)) if latent else 0
        if latent:
            self.attributes |= {"kv_cache_layout": "LATENT"} | ({"v_head_size": v_head_size} if v_head_size else {})
        if rng.random() < 0.3 or v_head_size not in (0, head_size):
            self.attributes["scale"] = 0.3
        if rng.random() < 0.3:
            self.attributes["softcap"] = 2.5
        if rng.random() < 0.5:
            inputs[16] = i32(choose([0, 0], [max(tokens, default=0), int(totals.max(initial=0)), 0]))
        self.inputs, self.quantised = inputs, quantised
        self.output_types = (None, *[np.dtype(cache_type)] * (1 if latent else 2))
        self.arguments = {"domain": "com.microsoft", "output_types": self.output_types}

    def expected(self):
        return paged_attention(self.attributes, self.inputs)

    def check(self, got, expected):
        narrow = self.quantised and self.inputs[0].dtype != np.float32
        assert_near(got[0], expected[0], 4 if narrow else 2)
        exact = "do_rotary" not in self.attributes and self.inputs[12] is None
        for y, want in zip(got[1:], expected[1:], strict=True):
            assert y.dtype == want.dtype and y.shape == want.shape
            if exact or y is not got[1]:
                np.testing.assert_array_equal(y.view(np.uint8), want.view(np.uint8))
            elif self.quantised == "int4":  # as below, of both halves of a byte
                halves = [np.stack([codes & 15, codes >> 4]).astype(np.int16) for codes in (y, want)]
                assert np.abs(halves[0] - halves[1]).max(initial=0) <= 1 and (y == want).mean() > 0.99
            elif self.quantised:  # one code beside where float32 and float64 round a tie differently
                code = np.int16 if self.quantised == "int8" else np.float64
                near = np.abs(y.astype(code) - want.astype(code)) <= (
                    1 if self.quantised == "int8" else np.abs(want.astype(code)) / 8 + 2**-9
                )
                assert near.all() and (y == want).mean() > 0.99
            else:
                assert_near(y, want.astype(np.float64), 2)
