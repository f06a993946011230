# SPDX-License-Identifier: Apache-2.0
"""Writes decoders of the GPT-OSS architecture with random weights, node for node as the exporters write them.

G18 is the form of onnxruntime-genai 0.18, G11 that of 0.11. Weights lie back to back in model.onnx.data, so tensors behind one of odd
length are unaligned.
"""

import dataclasses
import math

import ml_dtypes
import numpy as np
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from reference import weights

NUMPY = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
ONNX = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


@dataclasses.dataclass(frozen=True)
class Config:
    io: str = "f32"
    form: str = "G18"
    hidden: int = 64
    inter: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    layers: int = 2  # even ones slide, odd ones see everything
    experts: int = 6
    k: int = 2
    window: int = 4
    slack: int = 0  # rows of a windowed cache beyond the window
    vocabulary: int = 48
    context: int = 96
    dense_bits: int = 0  # of MatMulNBits; 0: MatMul
    dense_block: int = 32
    dense_zeros: bool = False
    dense_prepacked: bool = False
    dense_int8: bool = False  # accuracy_level 4
    expert_bits: int = 0  # of QMoE; 0: MoE
    expert_block: int = 32  # 0: one scale a row
    expert_zeros: bool = False
    expert_prepacked: bool = False
    says_prepacked: bool = False  # the attribute weights_prepacked is there
    tied: bool = False
    pruned: bool = False  # logits of the last token only
    lead_bytes: int = 0  # foreign bytes at the start of the data file

    @property
    def windowed(self):
        return self.form == "G18"

    @property
    def io_type(self):
        return NUMPY[self.io]


def node_form(config):
    """What the two exporters write differently: opset, slots of QMoE."""
    return (22, 14) if config.form == "G18" else (21, 11)


class Builder:
    def __init__(self, config, seed):
        self.c = config
        self.rng = np.random.default_rng(seed)
        self.nodes, self.initializers, self.data = [], [], bytearray(config.lead_bytes)
        self.constants, self.prepacked = set(), set()

    # ---- parts ----

    def initializer(self, name, array):
        array = np.ascontiguousarray(array)
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape, raw_data=b"0")
        raw = array.tobytes()
        external_data_helper.set_external_data(tensor, "model.onnx.data", len(self.data), len(raw))
        tensor.ClearField("raw_data")
        self.data += raw
        self.initializers.append(tensor)
        return name

    def random(self, name, *shape, scale=1.0, mean=0.0):
        return self.initializer(name, (mean + scale * self.rng.standard_normal(shape)).astype(self.c.io_type))

    def constant(self, value):
        """Each constant is made when the first node reads it, and named by its value."""
        name = f"/model/constants/INT64/{value}"
        if name not in self.constants:
            self.constants.add(name)
            tensor = numpy_helper.from_array(np.array(value, np.int64), name)
            self.nodes.append(helper.make_node("Constant", [], [name], f"/model/constant_nodes/INT64/{value}", value=tensor))
        return name

    def node(self, op, name, inputs, outputs=None, domain="", **attributes):
        outputs = outputs or [f"{name}/output_0"]
        self.nodes.append(helper.make_node(op, inputs, outputs, name, domain=domain, **attributes))
        return outputs[0]

    def contrib(self, op, name, inputs, outputs=None, **attributes):
        return self.node(op, name, inputs, outputs, "com.microsoft", **attributes)

    def scales(self, bits, k, *shape):
        """Of random codes, such that a row of K weights has norm 1. Rounded to float16 whatever the file holds, half of them negative."""
        step = self.rng.uniform(0.5, 1.5, shape) * self.rng.choice([-1, 1], shape) * math.sqrt(12 / k) / (1 << bits)
        return step.astype(np.float16).astype(self.c.io_type)

    def zeros(self, bits, *shape):
        middle = 1 << (bits - 1)
        return weights.pack_codes(self.rng.integers(middle - middle // 4, middle + middle // 4 + 1, shape), bits)

    def dense_weight(self, base, n, k, shared=False):
        """Initializers of MatMulNBits: weight, scales, zero points. The SM80 layout takes some sizes and no second reader."""
        c, bits = self.c, self.c.dense_bits
        blocks = -(-k // c.dense_block)
        codes = self.rng.integers(0, 1 << bits, (n, blocks * c.dense_block))
        packed = weights.pack_codes(codes, bits)
        if c.dense_prepacked and not shared and k % 64 == 0 and k % c.dense_block == 0 and n % 16 == 0:
            packed = weights.sm80_pack(codes, bits)
            self.prepacked.add(f"{base}.weight_Q{bits}")
        names = [self.initializer(f"{base}.weight_Q{bits}", packed.reshape(n, blocks, -1))]
        names.append(self.initializer(f"{base}.weight_scales", self.scales(bits, k, n, blocks)))
        if c.dense_zeros:
            names.append(self.initializer(f"{base}.weight_zp", self.zeros(bits, n, blocks)))
        return names

    def matmul(self, basename, base, x, n, k, weights=None, outputs=None):
        c = self.c
        if not c.dense_bits:
            weight = weights[0] if weights else self.random(f"{base}.weight", k, n, scale=1 / math.sqrt(k))
            return self.node("MatMul", basename, [x, weight], outputs)
        attributes = {"bits": c.dense_bits, "block_size": c.dense_block}
        if c.dense_int8:
            attributes["accuracy_level"] = 4
        weights = weights or self.dense_weight(base, n, k)
        if weights[0] in self.prepacked:
            attributes["weight_prepacked"] = 1
        outputs = outputs or [f"{basename}/output_0"]
        return self.contrib("MatMulNBits", f"{basename}_Q{c.dense_bits}", [x, *weights], outputs, K=k, N=n, **attributes)

    def linear(self, path, x, n, k, bias_scale=0.1):
        """A product and its bias."""
        base = path.strip("/").replace("/", ".")
        y = self.matmul(f"/{path}/MatMul", f"{base}.MatMul", x, n, k)
        return self.node("Add", f"/{path}/Add", [y, self.random(f"{base}.Add.bias", n, scale=bias_scale)])

    # ---- the decoder ----

    def lengths(self):
        base = "/model/attn_mask_reformat/attn_mask_subgraph"
        total = self.node("ReduceSum", f"{base}/ReduceSum", ["attention_mask", self.constant([1])], keepdims=0)
        last = self.node("Sub", f"{base}/Sub", [total, self.constant([1])])
        shape = self.node("Shape", f"{base}/Shape", ["attention_mask"])
        cast = self.node("Cast", f"{base}/Sub/Cast", [last], to=TensorProto.INT32)
        width = self.node("Gather", f"{base}/Gather", [shape, self.constant(1)], axis=0)
        return cast, self.node("Cast", f"{base}/Gather/Cast", [width], to=TensorProto.INT32)

    def embedding(self):
        """Hidden states, and the head's weights where they are the same."""
        c = self.c
        base = "/model/embed_tokens"
        if not c.tied:
            weight = self.random("model.embed_tokens.weight", c.vocabulary, c.hidden)
            return self.node("Gather", f"{base}/Gather", [weight, "input_ids"]), None
        if not c.dense_bits:
            head = self.random("lm_head.MatMul.weight", c.hidden, c.vocabulary, scale=0.5)
            table = self.node("Transpose", f"{base}/Transpose", [head], perm=[1, 0])
            return self.node("Gather", f"{base}/Gather", [table, "input_ids"]), [head]
        head = self.dense_weight("lm_head.MatMul", c.vocabulary, c.hidden, shared=True)
        width = -(-c.hidden // c.dense_block) * c.dense_block
        rows = self.node("Reshape", f"{base}/Reshape", [head[0], self.constant([c.vocabulary, width * c.dense_bits // 8])])
        x = self.contrib(
            "GatherBlockQuantized", f"{base}/GatherBlockQuantized", [rows, "input_ids", *head[1:]],
            bits=c.dense_bits, block_size=c.dense_block, gather_axis=0, quantize_axis=1,
        )  # fmt: skip
        if width != c.hidden:
            x = self.node("Slice", f"{base}/Slice", [x, self.constant([0]), self.constant([c.hidden]), self.constant([-1])])
        return x, head

    def rotary_tables(self):
        """With the attention factor of YaRN inside."""
        c = self.c
        angles = np.arange(c.context)[:, None] / 150.0 ** (np.arange(c.head_size // 2) / (c.head_size // 2))
        for name, table in (("cos_cache", np.cos(angles)), ("sin_cache", np.sin(angles))):
            self.initializer(name, (1.1 * table).astype(c.io_type))

    def attention(self, layer, x, lengths):
        c, path = self.c, f"model/layers.{layer}/attn"
        x = self.linear(f"{path}/qkv_proj", x, (c.heads + 2 * c.kv_heads) * c.head_size, c.hidden)
        if layer == 0:
            self.rotary_tables()
        sinks = self.random(f"model.layers.{layer}.attn.sinks", c.heads)
        slides = layer % 2 == 0
        past, present = ([f"{name}.{layer}.{part}" for part in ("key", "value")] for name in ("past_key_values", "present"))
        attributes = {"num_heads": c.heads, "kv_num_heads": c.kv_heads, "scale": 1 / math.sqrt(c.head_size)}
        attributes |= {"local_window_size": c.window if slides else -1, "softcap": 0.0, "do_rotary": 1, "rotary_interleaved": 0}
        if slides and c.windowed:
            attributes["sliding_window_cache"] = 1
        inputs = [x, "", "", *past, *lengths, "cos_cache", "sin_cache", "", "", sinks]
        name = f"/{path}/GroupQueryAttention"
        x = self.contrib("GroupQueryAttention", name, inputs, [f"{name}/output_0", *present], **attributes)
        return self.linear(f"{path}/o_proj", x, c.hidden, c.heads * c.head_size)

    def expert_tensors(self, base, rows, columns):
        """Weights (with scales) and bias of one matrix of every expert, and its zero points."""
        c, bits = self.c, self.c.expert_bits
        bias = (0.1 * self.rng.standard_normal((c.experts, rows))).astype(c.io_type)
        if not bits:
            weight = self.random(f"{base}.weight", c.experts, rows, columns, scale=1 / math.sqrt(columns))
            return [weight, self.initializer(f"{base}.bias", bias)], ""
        codes = self.rng.integers(0, 1 << bits, (c.experts, rows, columns))
        weight = self.initializer(f"{base}.qweight", weights.pack_int(codes, bits, c.expert_prepacked))
        shape = (c.experts, rows, -(-columns // c.expert_block)) if c.expert_block else (c.experts, rows)
        scales = self.initializer(f"{base}.scales", self.scales(bits, columns, *shape))
        zeros = self.initializer(f"{base}.zero_points", self.zeros(bits, *shape)) if c.expert_zeros else ""
        return [weight, scales, self.initializer(f"{base}.bias", bias)], zeros

    def mixture(self, layer, x):
        c, path = self.c, f"model/layers.{layer}/moe"
        # Logits a few units apart: which experts a token takes is rarely decided by rounding.
        router = self.linear(f"{path}/router", x, c.experts, c.hidden, bias_scale=2)
        router = self.node("Reshape", f"/{path}/router/Reshape", [router, self.constant([-1, c.experts])])
        base = f"model.layers.{layer}.moe.experts"
        fc1, zeros1 = self.expert_tensors(f"{base}.gate_up_proj", 2 * c.inter, c.hidden)
        fc2, zeros2 = self.expert_tensors(f"{base}.down_proj", c.hidden, c.inter)
        attributes = {"activation_alpha": 1.702, "activation_beta": 1.0, "activation_type": "swiglu", "k": c.k}
        attributes |= {"normalize_routing_weights": 1, "swiglu_fusion": 1, "use_sparse_mixer": 0}
        if c.form == "G18":
            attributes["swiglu_limit"] = 7.0
        inputs = [x, router, *fc1, *fc2]
        if not c.expert_bits:
            return self.contrib("MoE", f"/{path}/MoE", [*inputs, "", ""], **attributes)
        attributes["expert_weight_bits"] = c.expert_bits
        if c.expert_block:
            attributes["block_size"] = c.expert_block
        if c.says_prepacked:
            attributes["weights_prepacked"] = int(c.expert_prepacked)
        slots = max(node_form(c)[1], 14 if c.expert_zeros else 0)
        inputs += ["", "", "", zeros1, zeros2] if c.expert_zeros else []
        return self.contrib("QMoE", f"/{path}/QMoE", inputs + [""] * (slots - len(inputs)), **attributes)

    def skip_norm(self, path, norm, residual, x, last=False):
        weight = self.random(path.strip("/").replace("/", ".") + ".weight", self.c.hidden, scale=0.1, mean=1)
        outputs = [f"{path}/output_0"] + ([] if last else ["", "", f"{path}/output_3"])
        self.contrib("SkipSimplifiedLayerNormalization", f"{path}/{norm}", [residual, x, weight], outputs, epsilon=1e-5)
        return outputs[0], outputs[-1]

    def head(self, x, weights):
        c = self.c
        if c.pruned:
            x = self.node("Gather", "/lm_head/prune/Gather", [x, self.constant(-1)], axis=1)
            x = self.node("Unsqueeze", "/lm_head/prune/Unsqueeze", [x, self.constant([1])])
        outputs = ["/lm_head/MatMul/output_0"] if c.io == "bf16" else ["logits"]
        y = self.matmul("/lm_head/MatMul", "lm_head.MatMul", x, c.vocabulary, c.hidden, weights, outputs)
        if c.io == "bf16":
            self.node("Cast", "/lm_head/Cast", [y], ["logits"], to=TensorProto.FLOAT)

    def decoder(self):
        c = self.c
        lengths = self.lengths()
        residual, head = self.embedding()
        weight = self.random("model.layers.0.input_layernorm.weight", c.hidden, scale=0.1, mean=1)
        x = self.node("SimplifiedLayerNormalization", "/model/layers.0/input_layernorm/LayerNorm", [residual, weight],
                      ["/model/layers.0/input_layernorm/output_0"], epsilon=1e-5, axis=-1, stash_type=1)  # fmt: skip
        for layer in range(c.layers):
            x = self.attention(layer, x, lengths)
            x, residual = self.skip_norm(f"/model/layers.{layer}/post_attention_layernorm", "SkipLayerNorm", residual, x)
            x = self.mixture(layer, x)
            last = layer == c.layers - 1
            norm = "final_norm_layernorm" if last else "input_layernorm"
            x, residual = self.skip_norm(f"/model/layers.{layer + 1}/{norm}", "SkipLayerNorm", residual, x, last)
        self.head(x, head)

    def model(self):
        c, io = self.c, ONNX[self.c.io]
        self.decoder()

        def caches(prefix, name):
            for part in ("key", "value"):
                for layer in range(c.layers):
                    length = f"{name}_sliding_length" if layer % 2 == 0 and c.windowed else f"{name}_sequence_length"
                    shape = ["batch_size", c.kv_heads, length, "kv_cache_dim" if c.form == "G18" else c.head_size]
                    yield helper.make_tensor_value_info(f"{prefix}.{layer}.{part}", io, shape)

        inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])]
        inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]))
        inputs += caches("past_key_values", "past")
        shape = ["batch_size", 1 if c.pruned else "sequence_length", c.vocabulary]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT if c.io == "bf16" else io, shape), *caches("present", "total")]
        graph = helper.make_graph(self.nodes, "main_graph", inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", node_form(c)[0]), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="onnxruntime-genai")


def write(folder, config, seed=0, exposed=()):
    """folder/model.onnx and its data. exposed: further values to declare as outputs. Returns the path."""
    builder = Builder(config, seed)
    model = builder.model()
    for name in exposed:
        model.graph.output.append(helper.make_tensor_value_info(name, ONNX[config.io], ["rows", "columns"]))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    (folder / "model.onnx.data").write_bytes(builder.data)
    return path


def router_logits(config):
    """Names of the values that choose the experts."""
    return [f"/model/layers.{layer}/moe/router/Reshape/output_0" for layer in range(config.layers)]
