# SPDX-License-Identifier: Apache-2.0
"""Models of one node, and runs of them."""

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

import hotset

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
_ONNX = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(ml_dtypes.bfloat16): TensorProto.BFLOAT16,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(ml_dtypes.uint4): TensorProto.UINT4,
    np.dtype(ml_dtypes.int4): TensorProto.INT4,
}


def raw_bytes(array):
    """Two 4-bit elements a byte, the first one low."""
    if array.dtype in (ml_dtypes.uint4, ml_dtypes.int4):
        codes = array.reshape(-1).astype(np.int8).view(np.uint8) & 15
        codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
        return (codes[0::2] | codes[1::2] << 4).tobytes()
    return np.ascontiguousarray(array).tobytes()


def node_model(op, inputs, attributes, fed, output_dtype, domain="com.microsoft"):
    """inputs: arrays or None by position. Those whose position is in `fed` become graph inputs of any shape."""
    names = ["" if a is None else f"i{i}" for i, a in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    graph_inputs, constants = [], []
    for i, array in enumerate(inputs):
        if array is None:
            continue
        array = np.asarray(array)
        dtype = _ONNX[array.dtype]
        if i in fed:
            graph_inputs.append(helper.make_tensor_value_info(f"i{i}", dtype, [f"d{i}_{axis}" for axis in range(array.ndim)]))
        else:
            constants.append(onnx.TensorProto(name=f"i{i}", data_type=dtype, dims=array.shape, raw_data=raw_bytes(array)))
    node = helper.make_node(op, names, ["y"], name="node", domain=domain, **attributes)
    output = helper.make_tensor_value_info("y", _ONNX[np.dtype(output_dtype)], None)
    graph = helper.make_graph([node], "one", graph_inputs, [output], constants)
    opsets = [helper.make_opsetid("", 21)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def session(model, threads=2, activation=None):
    options = hotset.SessionOptions()
    options.intra_op_num_threads = threads
    if activation:
        options.add_session_config_entry("hotset.cpu_activation", activation)
    return hotset.InferenceSession(model, options)


def run_node(op, inputs, attributes, fed=(0, 1), output_dtype=None, **session_arguments):
    output_dtype = np.asarray(inputs[0]).dtype if output_dtype is None else output_dtype
    model = node_model(op, inputs, attributes, fed, output_dtype)
    with session(model, **session_arguments) as s:
        (y,) = s.run(None, {f"i{i}": np.asarray(inputs[i]) for i in fed if inputs[i] is not None})
    return y


def relative_error(got, expected):
    """L2 norm of the difference over that of the expected values."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-30)
