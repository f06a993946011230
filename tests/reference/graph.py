# SPDX-License-Identifier: Apache-2.0
"""Slow executor of exported decoders in NumPy: the oracle of the end-to-end tests, never to serve a model.

float16 and bfloat16 are widened to float32 when they enter the graph and never rounded back, sums run in float64, activations are
never quantised: the results are those of exact activations.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from reference import attention, moe, weights

F32, F64 = np.float32, np.float64
HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
OPS = {}


def op(name, domain=""):
    """Registers function(attributes, inputs) -> output or tuple of outputs; optional inputs are None, absent ones too."""

    def register(function):
        OPS[domain, name] = function
        return function

    return register


def widen(array):
    array = np.asarray(array)
    return array.astype(F32) if array.dtype == np.float16 or array.dtype.name == "bfloat16" else array


def once(attributes, decode):
    """decode() of the first run of the node: its weights are constant."""
    if "decoded" not in attributes:
        attributes["decoded"] = decode()
    return attributes["decoded"]


class Inputs(list):
    """Node inputs by position; None past the end."""

    def __getitem__(self, index):
        return list.__getitem__(self, index) if isinstance(index, slice) or index < len(self) else None


class Executor:
    """Loads a model file and runs it on a dict of arrays."""

    def __init__(self, path):
        graph = onnx.load(path).graph
        self.initializers = {t.name: widen(numpy_helper.to_array(t)) for t in graph.initializer}
        self.outputs = [o.name for o in graph.output]
        self.nodes = [(n, {a.name: self._attribute(a) for a in n.attribute}) for n in graph.node]
        self.values = {}  # of the last run

    @staticmethod
    def _attribute(attribute):
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            return widen(numpy_helper.to_array(value))
        return value.decode() if isinstance(value, bytes) else value

    def run(self, feed, given=()):
        """Every graph output by name. given: values by name that later nodes read in place of the computed ones."""
        self.values = {}
        values = self.initializers | {name: widen(array) for name, array in feed.items()}
        for node, attributes in self.nodes:
            inputs = Inputs(values[name] if name else None for name in node.input)
            results = OPS[node.domain, node.op_type](attributes, inputs)
            for name, value in zip(node.output, results if isinstance(results, tuple) else (results,), strict=False):
                if name:
                    self.values[name] = np.asarray(value)
                    values[name] = widen(given[name]) if name in given else self.values[name]
        return {name: values[name] for name in self.outputs}


op("Constant")(lambda a, i: a["value"])
op("Add")(lambda a, i: i[0] + i[1])
op("Sub")(lambda a, i: i[0] - i[1])
op("Shape")(lambda a, i: np.array(i[0].shape, np.int64))
op("Gather")(lambda a, i: np.take(i[0], i[1], a.get("axis", 0)))
op("ReduceSum")(lambda a, i: i[0].sum(tuple(i[1]), keepdims=bool(a.get("keepdims", 1))))
op("MatMul")(lambda a, i: (i[0].astype(F64) @ i[1].astype(F64)).astype(F32))
op("Transpose")(lambda a, i: i[0].transpose(a["perm"]))
op("Unsqueeze")(lambda a, i: np.expand_dims(i[0], tuple(i[1])))


@op("Cast")
def cast(attributes, inputs):
    to = attributes["to"]
    return inputs[0].astype(F32 if to in HALF else helper.tensor_dtype_to_np_dtype(to))


@op("Reshape")
def reshape(attributes, inputs):
    return inputs[0].reshape([inputs[0].shape[axis] if size == 0 else size for axis, size in enumerate(inputs[1])])


@op("Slice")
def slice_(attributes, inputs):
    x, starts, ends, axes, steps = (inputs[i] for i in range(5))
    index = [slice(None)] * x.ndim
    for n, axis in enumerate(range(len(starts)) if axes is None else axes):
        index[axis] = slice(starts[n], ends[n], 1 if steps is None else steps[n])
    return x[tuple(index)]


@op("SimplifiedLayerNormalization")
def norm(attributes, inputs):
    return attention.rms_norm(inputs[0], inputs[1], attributes["epsilon"]).astype(F32)


@op("SkipSimplifiedLayerNormalization", "com.microsoft")
def skip_norm(attributes, inputs):
    total = inputs[0] + inputs[1]
    return norm(attributes, [total, inputs[2]]), None, None, total


@op("MatMulNBits", "com.microsoft")
def matmul_nbits(attributes, inputs):
    bits, block, n, k = attributes["bits"], attributes["block_size"], attributes["N"], attributes["K"]
    layout = attributes.get("weight_prepacked", 0)
    w = once(attributes, lambda: weights.matmul_nbits_weight(inputs[1], inputs[2], n, k, block, bits, inputs[3], layout))
    return (inputs[0].astype(F64) @ w.T).astype(F32)


@op("GatherBlockQuantized", "com.microsoft")
def gather_block_quantized(attributes, inputs):
    data, indices, scales, zeros = (inputs[i] for i in range(4))
    bits = attributes["bits"]
    codes = weights.unpack_codes(data, bits, data.shape[-1] * 8 // bits)
    zero = 1 << (bits - 1) if zeros is None else weights.unpack_codes(zeros.reshape(len(data), -1), bits, scales.shape[-1])
    return weights.gather_block_quantized(codes, indices, scales, attributes["block_size"], zero)


@op("GroupQueryAttention", "com.microsoft")
def group_query_attention(attributes, inputs):
    if not attributes.get("sliding_window_cache", 0):
        return attention.group_query_attention(attributes, inputs)[:3]
    # The rows that a windowed cache dropped are NaN: a query that saw one would show.
    past, rows = inputs[3], inputs[0].shape[1]
    start = int(inputs[5].reshape(-1)[0]) + 1 - rows  # equal lengths
    held = attention.resident(start, past.shape[2], attributes["local_window_size"])
    history = []
    for cache in inputs[3:5]:
        whole = np.full((*cache.shape[:2], start, cache.shape[3]), np.nan, F32)
        whole[:, :, start - held :] = cache[:, :, :held]
        history.append(whole)
    return attention.group_query_attention(attributes, inputs, history)[:3]


def mixture(attributes, inputs, w1, w2, b1, b2):
    return moe.moe(inputs[0], inputs[1], w1, w2, attributes["k"], b1=b1, b2=b2,
                   normalize=attributes["normalize_routing_weights"], **moe.activation_arguments(attributes))  # fmt: skip


@op("MoE", "com.microsoft")
def float_moe(attributes, inputs):
    return mixture(attributes, inputs, inputs[2], inputs[4], inputs[3], inputs[5])


@op("QMoE", "com.microsoft")
def qmoe(attributes, inputs):
    named = {"fc1_experts_weights": inputs[2], "fc1_scales": inputs[3], "fc1_zero_points": inputs[11],
             "fc2_experts_weights": inputs[5], "fc2_scales": inputs[6], "fc2_zero_points": inputs[12]}  # fmt: skip
    named = {name: array for name, array in named.items() if array is not None}
    w = once(attributes, lambda: moe.qmoe_weights(named, attributes, inputs[0].shape[-1]))
    return mixture(attributes, inputs, w[1], w[2], inputs[4], inputs[7])
