# SPDX-License-Identifier: Apache-2.0
"""A valid call of every operator: what tests that break calls start from."""

import dataclasses

import ml_dtypes
import numpy as np
from onnx import helper

MICROSOFT = "com.microsoft"


@dataclasses.dataclass
class Call:
    op: str
    inputs: list  # arrays, None where absent
    attributes: dict = dataclasses.field(default_factory=dict)
    domain: str = ""
    opset: int = 21
    outputs: int = 1
    constant: tuple = ()  # inputs that are initializers
    required: int = 0  # inputs from 0 on that cannot be left out; 0: all
    note: str = ""
    unnamed: bool = False  # output 0 has no name

    @property
    def name(self):
        return (self.domain + "::" if self.domain else "") + self.op + ("-" + self.note if self.note else "")


def f32(*shape):
    n = int(np.prod(shape))
    return ((np.arange(n) * 37 % 29 - 14) / 16).astype(np.float32).reshape(shape)


def i64(*values):
    return np.array(values, np.int64)


def i32(*values):
    return np.array(values, np.int32)


def elementwise():
    x, y = f32(2, 3, 4), f32(3, 1)
    for (
        op
    ) in "Sigmoid Tanh Softplus Relu LeakyRelu Elu HardSigmoid Neg Abs Sign Exp Log Sqrt Reciprocal Sin Cos Tan Asin Acos Atan".split():
        yield Call(op, [x])
    for op in "Sinh Cosh Erf Floor Ceil Round IsNaN IsInf".split():
        yield Call(op, [x])
    yield Call("Gelu", [x], {"approximate": "tanh"})
    yield Call("Swish", [x], {"alpha": 1.5}, opset=24)
    yield Call("Gelu", [x], domain=MICROSOFT)
    yield Call("QuickGelu", [x], {"alpha": 1.5}, MICROSOFT)
    yield Call("Not", [x > 0])
    yield Call("BitwiseNot", [np.arange(6, dtype=np.int32).reshape(2, 3)])
    for op in "Add Sub Mul Div Pow Equal Greater GreaterOrEqual Less LessOrEqual".split():
        yield Call(op, [x, y])
    yield Call("Mod", [np.arange(6).reshape(2, 3), i64(3)], {"fmod": 0})
    for op in "And Or Xor".split():
        yield Call(op, [x > 0, y > 0])
    for op in "BitwiseAnd BitwiseOr BitwiseXor".split():
        yield Call(op, [np.arange(6).reshape(2, 3), i64(3)])
    yield Call("BitShift", [np.arange(6, dtype=np.uint8), np.array([1], np.uint8)], {"direction": "LEFT"})
    for op in "Max Min Sum".split():
        yield Call(op, [x, y, x], required=1)
    yield Call("Where", [x > 0, x, y])
    yield Call("Clip", [x, np.float32(-0.5), np.float32(0.5)], required=1)
    yield Call("Cast", [x], {"to": 10})
    yield Call("CastLike", [x, np.zeros(1, np.float16)])
    yield Call("Identity", [x])


def shapes():
    x = f32(2, 3, 4)
    yield Call("Concat", [x, x], {"axis": 1}, required=1)
    yield Call("Split", [x, i64(1, 2)], {"axis": 1}, outputs=2, required=1)
    yield Call("Split", [x], {"axis": 1, "num_outputs": 2}, outputs=2, note="num_outputs")
    yield Call("Expand", [f32(3, 1), i64(2, 3, 4)])
    yield Call("Tile", [x, i64(1, 2, 1)])
    yield Call("Range", [np.float32(0), np.float32(5), np.float32(2)])
    yield Call("ConstantOfShape", [i64(2, 3)], {"value": helper.make_tensor("v", 6, [1], [7])})
    yield Call("Reshape", [x, i64(0, -1)])
    yield Call("Flatten", [x], {"axis": 1})
    yield Call("Squeeze", [x[:, :1], i64(1)], required=1)
    yield Call("Squeeze", [x[:, :1]], {"axes": [1]}, opset=11, note="attribute")
    yield Call("Unsqueeze", [x, i64(1)])
    yield Call("Unsqueeze", [x], {"axes": [1]}, opset=11, note="attribute")
    yield Call("Shape", [x], {"start": 0, "end": 2})
    yield Call("Size", [x])
    yield Call("Slice", [x, i64(0), i64(2), i64(1), i64(1)], required=3)
    yield Call("Slice", [x], {"starts": [0], "ends": [2], "axes": [1]}, opset=9, note="attribute")
    yield Call("Transpose", [x], {"perm": [1, 0, 2]})
    yield Call("Trilu", [x, np.array(1)], {"upper": 0}, required=1)


def indexing():
    x = f32(2, 3, 4)
    yield Call("Gather", [x, i64(0, -1)], {"axis": 1})
    yield Call("GatherElements", [x, np.zeros((2, 3, 4), np.int64)], {"axis": 1})
    yield Call("GatherND", [x, np.zeros((2, 1), np.int64)], {"batch_dims": 1})
    yield Call("ScatterElements", [x, np.zeros((1, 3, 4), np.int64), f32(1, 3, 4)], {"axis": 0, "reduction": "add"}, opset=18)
    yield Call("Scatter", [x, np.zeros((1, 3, 4), np.int64), f32(1, 3, 4)], {"axis": 0}, opset=9)
    yield Call("ScatterND", [x, np.zeros((1, 2), np.int64), f32(1, 4)], {"reduction": "none"}, opset=18)
    yield Call("TensorScatter", [f32(2, 5, 4), f32(2, 2, 4), i64(0, 3)], {"axis": 1, "mode": "linear"}, opset=24, required=2)
    yield Call("TopK", [x, i64(2)], {"axis": -1, "largest": 1}, outputs=2)
    yield Call("TopK", [x], {"axis": -1, "k": 2}, opset=9, outputs=2, note="attribute")
    data = np.arange(9 * 16, dtype=np.uint8).reshape(9, 16)
    quantised = {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    yield Call("GatherBlockQuantized", [data, i64(1, -2), f32(9, 2), data[:, :1]], quantised, MICROSOFT, required=3)
    four = np.arange(24).reshape(2, 12) % 8
    yield Call(
        "GatherBlockQuantized",
        [np.tile(four, (1, 2)).astype(ml_dtypes.int4), i64(1), f32(2, 2)],
        quantised,
        MICROSOFT,
        constant=(0,),
        note="int4",
    )


def reductions():
    x = f32(2, 3, 4)
    for op in "ReduceSum ReduceMean ReduceProd ReduceMax ReduceMin ReduceSumSquare ReduceL1 ReduceL2 ReduceLogSum".split():
        yield Call(op, [abs(x) + 1, i64(1)], {"keepdims": 0, "noop_with_empty_axes": 0}, required=1)
    yield Call("ReduceMean", [x], {"axes": [1, 2]}, opset=11, note="attribute")
    yield Call("CumSum", [x, np.array(1)], {"exclusive": 0, "reverse": 1})
    yield Call("Softmax", [x], {"axis": 1})
    yield Call("Softmax", [x], {"axis": 1}, opset=11, note="flattened")
    yield Call("LogSoftmax", [x], {"axis": -1})
    yield Call("LpNormalization", [x], {"axis": -1, "p": 2})
    width = f32(4) + 1
    yield Call("LayerNormalization", [x, width, width], {"axis": -1, "epsilon": 1e-5}, outputs=3, required=2)
    yield Call("RMSNormalization", [x, width], {"axis": -1, "epsilon": 1e-5}, opset=23)
    yield Call("SimplifiedLayerNormalization", [x, width], {"epsilon": 1e-5})
    yield Call("SimplifiedLayerNormalization", [x, width], {"epsilon": 1e-5}, MICROSOFT)
    yield Call("SkipLayerNormalization", [x, x, width, width, width], {"epsilon": 1e-5}, MICROSOFT, outputs=4, required=3)
    yield Call("SkipSimplifiedLayerNormalization", [x, x, width, width], {"epsilon": 1e-5}, MICROSOFT, outputs=4, required=3)


def products():
    yield Call("MatMul", [f32(2, 3, 4), f32(4, 5)])
    yield Call("Gemm", [f32(4, 3), f32(5, 4), f32(5)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}, required=2)
    fused = {"transA": 0, "transB": 1, "alpha": 0.5, "transBatchA": 0, "transBatchB": 0}
    yield Call("FusedMatMul", [f32(2, 3, 4), f32(2, 5, 4)], fused, MICROSOFT)
    for domain in ("", MICROSOFT):
        yield Call(
            "DequantizeLinear",
            [np.arange(12, dtype=np.uint8).reshape(3, 4), f32(4), np.arange(4, dtype=np.uint8)],
            {"axis": 1},
            domain,
            required=2,
        )
    blocks = [np.arange(12, dtype=np.int8).reshape(3, 4), f32(3, 2)]
    yield Call("DequantizeLinear", blocks, {"axis": 1, "block_size": 2}, note="blocks")
    for bits in (2, 4, 8):
        b = np.arange(5 * 2 * 4 * bits).reshape(5, 2, 4 * bits).astype(np.uint8)
        zeros = np.arange(5 * -(-2 * bits // 8)).reshape(5, -1).astype(np.uint8)
        attributes = {"K": 64, "N": 5, "bits": bits, "block_size": 32, "accuracy_level": 4 if bits == 4 else 0}
        yield Call(
            "MatMulNBits",
            [f32(3, 64), b, f32(5, 2), zeros, None, f32(5)],
            attributes,
            MICROSOFT,
            constant=(1, 2, 3, 5),
            required=3,
            note=f"{bits}bits",
        )
    yield Call("MatMulNBits", [f32(3, 64), b, f32(5, 2)], attributes, MICROSOFT, note="fed")
    codes, half, scale = np.arange(5 * 32).reshape(5, 32).astype(np.uint8), f32(3, 64).astype(np.float16), np.float32(0.5)
    fp4 = [half, codes, codes[:, :4] + 0x20, scale, scale, f32(5).astype(np.float16)]
    yield Call("MatMulBlockQuantizedFp4Weight", fp4, {"block_size": 16}, MICROSOFT, required=4)
    fp8 = [half, codes.repeat(2, 1).view(ml_dtypes.float8_e4m3fn), f32(5, 2), scale, f32(5).astype(np.float16)]
    yield Call("MatMulBlockQuantizedFp8Weight", fp8, {"block_size": 32}, MICROSOFT, required=3)


def attention():
    q, kv, cos = f32(1, 3, 4 * 8), f32(1, 3, 2 * 8), f32(16, 4)
    yield Call("Attention", [q, kv, kv, np.ones((3, 3), bool)], {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1}, opset=23, required=3)
    past = f32(1, 2, 2, 8)
    cached = [q, kv, kv, None, past, past]
    yield Call("Attention", cached, {"q_num_heads": 4, "kv_num_heads": 2, "scale": 0.3}, opset=24, outputs=3, required=3, note="cache")
    yield Call(
        "MultiHeadAttention", [q, q, q, f32(96), np.ones((1, 3), np.int32), f32(1, 4, 3, 3)], {"num_heads": 4}, MICROSOFT, required=3
    )
    past = f32(1, 4, 2, 8)
    cached = [q, q, q, None, None, None, past, past]
    yield Call("MultiHeadAttention", cached, {"num_heads": 4, "unidirectional": 1}, MICROSOFT, outputs=3, required=1, note="cache")
    packed = [f32(1, 3, 4, 3, 8)]
    yield Call("MultiHeadAttention", packed, {"num_heads": 4}, MICROSOFT, note="packed")
    past = f32(1, 2, 6, 8)
    heads = {"num_heads": 4, "kv_num_heads": 2}
    rest = [i32(4), np.int32(5), cos, cos]
    attributes = heads | {"do_rotary": 1, "local_window_size": 4, "softcap": 5.0, "scale": 0.3}
    full = [q, kv, kv, past, past, *rest, i64(2, 3, 4).reshape(1, 3), f32(1, 1, 3, 5), f32(4), None, None, f32(8), f32(8)]
    yield Call("GroupQueryAttention", full, attributes, MICROSOFT, outputs=3, required=9)
    yield Call(
        "GroupQueryAttention", [f32(1, 3, 8 * 8), None, None, None, None, i32(2), np.int32(3)], heads, MICROSOFT, outputs=3, note="prompt"
    )
    for bits, dtype in ((8, np.int8), (4, np.uint8)):
        past = np.zeros((1, 2, 6, bits), dtype)
        quantised = heads | {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": bits}
        inputs = [q, kv, kv, past, past, *rest[:2], None, None, None, None, None, f32(1) + 1, f32(16) + 1]
        yield Call("GroupQueryAttention", inputs, quantised, MICROSOFT, outputs=3, note=f"{bits}bits")
    window = heads | {"local_window_size": 3, "sliding_window_cache": 1}
    past = f32(1, 2, 6, 8)
    yield Call("GroupQueryAttention", [q, kv, kv, past, past, i32(8), np.int32(9)], window, MICROSOFT, outputs=3, note="window")
    inputs = [q, kv, kv, past, past, i32(3), np.int32(6), *[None] * 9, i32(2)]
    yield Call("GroupQueryAttention", inputs, heads, MICROSOFT, outputs=3, required=7, note="chunk")
    pages, table = f32(3, 4, 2, 8), np.array([[2, 0]], np.int32)
    tokens = [f32(3, 32), f32(3, 16), f32(3, 16), pages, pages, i32(0, 3), i32(2), table]
    more = [f32(8, 4), f32(8, 4), i32(10, -1, 8), f32(4), f32(8), f32(8), None, None, i32(3, 5)]
    attributes = heads | {"do_rotary": 1, "local_window_size": 4, "softcap": 5.0, "scale": 0.3, "rotary_offset": 0, "is_causal": 1}
    attributes |= {"qk_norm_epsilon": 1e-5, "kv_cache_layout": "SEPARATE"}
    yield Call("PagedAttention", [*tokens, *more], attributes, MICROSOFT, outputs=3, required=8)
    coded = [*tokens[:3], *[np.zeros(pages.shape, np.int8)] * 2, *tokens[5:], *[None] * 6, f32(1) + 1, f32(2, 1, 8) + 1]
    quantised = heads | {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_CHANNEL"}
    yield Call("PagedAttention", coded, quantised, MICROSOFT, outputs=3, required=8, note="8bits")
    packed = [*tokens[:3], *[np.zeros((3, 4, 2, 4), np.uint8)] * 2, *coded[5:]]
    four = quantised | {"k_cache_dtype": "int4", "v_cache_dtype": "int4"}
    yield Call("PagedAttention", packed, four, MICROSOFT, outputs=3, required=8, note="4bits")
    latent = {"num_heads": 4, "kv_num_heads": 1, "kv_cache_layout": "LATENT", "v_head_size": 6, "scale": 0.3}
    inputs = [tokens[0], f32(3, 8), None, f32(3, 4, 1, 8), None, *tokens[5:]]
    yield Call("PagedAttention", inputs, latent, MICROSOFT, outputs=2, required=4, note="latent")
    yield Call("PagedAttention", [f32(3, 64), None, None, *tokens[3:]], heads, MICROSOFT, outputs=3, note="packed")
    rotated = {"num_heads": 4, "interleaved": 0}
    yield Call("RotaryEmbedding", [q, i64(0, 5, 3).reshape(1, 3), cos, cos], rotated, MICROSOFT)
    yield Call("RotaryEmbedding", [q, cos, cos, i64(0, 5, 3).reshape(1, 3)], rotated, opset=23)
    sections = rotated | {"mrope_section": [2, 1, 1], "mrope_layout": 0}
    yield Call("MRotaryEmbedding", [q, np.zeros((3, 1, 3), np.int64), cos, cos], sections, MICROSOFT)


def experts():
    x, router = f32(5, 32), f32(5, 3)
    silu = {"k": 2, "activation_type": "silu", "normalize_routing_weights": 1}
    swiglu = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": 7.0}
    weights = [f32(3, 64, 32), f32(3, 64), f32(3, 32, 64), f32(3, 32), f32(3, 64, 32), f32(3, 64)]
    constant = tuple(range(2, 8))
    yield Call("MoE", [x, router, *weights], silu, MICROSOFT, constant=constant, required=5)
    fused = [f32(3, 128, 32), None, f32(3, 32, 64)]
    yield Call("MoE", [x, router, *fused], swiglu | {"activation_alpha": 1.702, "activation_beta": 1.0}, MICROSOFT, note="fed")
    for bits in (4, 8):
        codes = [np.arange(3 * n * k * bits // 8).reshape(3, n, -1).astype(np.uint8) for n, k in ((128, 32), (32, 64))]
        inputs = [x, router, codes[0], f32(3, 128, 1), f32(3, 128), codes[1], f32(3, 32, 2), f32(3, 32)]
        quantised = swiglu | {"expert_weight_bits": bits, "block_size": 32}
        yield Call("QMoE", inputs, quantised, MICROSOFT, constant=tuple(range(2, 8)), required=7, note=f"{bits}bits")
        if bits == 8:
            inputs += [None] * 6 + [router]
            yield Call("QMoE", inputs, quantised, MICROSOFT, required=7, note="fed")
    codes = [np.arange(3 * n * k // 2).reshape(3, n, -1).astype(np.uint8) for n, k in ((64, 32), (32, 64))]
    scales, zeros = [f32(3, 64, 1), f32(3, 32, 2)], [np.full((3, 64, 1), 8, np.uint8), np.full((3, 32, 1), 0x88, np.uint8)]
    inputs = [x, router, codes[0], scales[0], None, codes[1], scales[1], None, codes[0], scales[0], None, zeros[0], zeros[1], zeros[0]]
    yield Call(
        "QMoE", inputs, silu | {"expert_weight_bits": 4, "block_size": 32}, MICROSOFT, constant=tuple(range(2, 14)), required=7, note="fc3"
    )
    bytes_scale = [np.full((3, 128, 1), 127, np.uint8), np.full((3, 32, 2), 127, np.uint8)]
    codes = [np.arange(3 * n * k // 2).reshape(3, k, -1).astype(np.uint8) for n, k in ((128, 32), (32, 64))]
    inputs = [
        x,
        router,
        codes[0],
        bytes_scale[0],
        None,
        codes[1],
        bytes_scale[1],
        *[None] * 8,
        np.ones(3, np.float32),
        np.ones(3, np.float32),
    ]
    yield Call("QMoE", inputs, swiglu | {"quant_type": "fp4", "block_size": 32}, MICROSOFT, constant=(2, 3, 5, 6, 15, 16), note="fp4")


CALLS = [*elementwise(), *shapes(), *indexing(), *reductions(), *products(), *attention(), *experts()]
