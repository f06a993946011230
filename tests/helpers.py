# SPDX-License-Identifier: Apache-2.0
"""Models of one node, run in hotset and in onnxruntime, and the tolerance of each element type."""

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

import hotset

BF16 = np.dtype(ml_dtypes.bfloat16)
IR_VERSION = 10

# Relative to the largest magnitude of the expected result: a few roundings of the type. Everything else is exact.
TOLERANCE = {np.dtype(np.float32): 3e-6, np.dtype(np.float16): 1.5e-3, BF16: 1.2e-2, np.dtype(np.float64): 1e-13}


def onnx_type(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def tensor(name, array):
    """An initializer, 4-bit types packed two a byte."""
    array = np.asarray(array)
    raw = array
    if array.dtype in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn):
        codes = array.reshape(-1)
        codes = codes.view(np.uint8) & 15 if array.dtype == ml_dtypes.float4_e2m1fn else codes.astype(np.int8).view(np.uint8) & 15
        codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
        raw = codes[0::2] | codes[1::2] << 4
    return TensorProto(name=name, data_type=onnx_type(array.dtype), dims=array.shape, raw_data=np.ascontiguousarray(raw).tobytes())


def node_model(op, inputs, attributes=None, *, opset=21, domain="", constant=(), output_types=(None,)):
    """inputs: arrays or None by position; those in `constant` become initializers, the others graph inputs of any shape.

    output_types: element types by position; None for that of input 0, "" for an output nobody names.
    """
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    fed, initializers = [], []
    for i, array in enumerate(inputs):
        if array is None:
            continue
        array = np.asarray(array)
        if i in constant:
            initializers.append(tensor(f"x{i}", array))
        else:
            fed.append(helper.make_tensor_value_info(f"x{i}", onnx_type(array.dtype), [f"d{i}_{a}" for a in range(array.ndim)]))
    outs, out_names = [], []
    for i, dtype in enumerate(output_types):
        out_names.append("" if dtype == "" else f"y{i}")
        if dtype == "":
            continue
        dtype = np.asarray(inputs[0]).dtype if dtype is None else dtype
        outs.append(helper.make_tensor_value_info(f"y{i}", dtype if isinstance(dtype, int) else onnx_type(dtype), None))
    node = helper.make_node(op, names, out_names, name="node", domain=domain, **(attributes or {}))
    graph = helper.make_graph([node], "one", fed, outs, initializers)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()


def feeds(inputs, constant=()):
    return {f"x{i}": np.ascontiguousarray(a).reshape(np.shape(a)) for i, a in enumerate(inputs) if a is not None and i not in constant}


def run(op, inputs, attributes=None, threads=2, **model_arguments):
    """The outputs of one node in hotset."""
    options = hotset.SessionOptions()
    options.intra_op_num_threads = threads
    model = node_model(op, inputs, attributes, **model_arguments)
    with hotset.InferenceSession(model, options) as session:
        return session.run(None, feeds(inputs, model_arguments.get("constant", ())))


def run_onnxruntime(op, inputs, attributes=None, **model_arguments):
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    model = node_model(op, inputs, attributes, **model_arguments)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds(inputs, model_arguments.get("constant", ())))


def wide(array):
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype in TOLERANCE else array


def assert_close(got, expected, factor=1.0):
    """Same type and shape; values within the tolerance of the type, NaN and infinities in the same places."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype not in TOLERANCE:
        np.testing.assert_array_equal(got, expected)
        return
    g, e = wide(got), wide(expected)
    finite = np.isfinite(e)
    np.testing.assert_array_equal(g[~finite], e[~finite])
    if finite.any():
        bound = TOLERANCE[got.dtype] * factor * max(np.abs(e[finite]).max(), 1e-30)
        assert np.isfinite(g[finite]).all()
        assert np.abs(g[finite] - e[finite]).max() <= bound


def check_node(op, inputs, attributes=None, factor=1.0, **model_arguments):
    """hotset and onnxruntime agree."""
    expected = run_onnxruntime(op, inputs, attributes, **model_arguments)
    for got, want in zip(run(op, inputs, attributes, **model_arguments), expected, strict=True):
        assert_close(got, want, factor)


def check_widened(op, inputs, attributes=None, factor=1.0, **model_arguments):
    """hotset in a 16-bit type agrees with onnxruntime in float32 on the same numbers, rounded once.

    For bfloat16, which onnxruntime does not have, and where its float16 kernels round in between.
    """
    narrow = np.asarray(inputs[0]).dtype
    widened = [a.astype(np.float32) if a is not None and np.asarray(a).dtype == narrow else a for a in inputs]
    expected = run_onnxruntime(op, widened, attributes, **model_arguments)
    for got, want in zip(run(op, inputs, attributes, **model_arguments), expected, strict=True):
        with np.errstate(over="ignore"):
            want = want.astype(narrow) if want.dtype == np.float32 and got.dtype == narrow else want
        assert_close(got, want, factor)


def check_all_floats(op, inputs, attributes=None, factor=1.0, **model_arguments):
    """The node in float32 against onnxruntime, in float16 and bfloat16 against float32."""
    check_node(op, inputs, attributes, factor, **model_arguments)
    for dtype in (np.float16, BF16):
        narrow = [a.astype(dtype) if a is not None and np.asarray(a).dtype == np.float32 else a for a in inputs]
        check_widened(op, narrow, attributes, factor, **model_arguments)


def failure(op, inputs, attributes=None, **model_arguments):
    """The text with which hotset refuses the node or its inputs."""
    try:
        run(op, inputs, attributes, **model_arguments)
    except hotset.Error as error:
        return str(error)
    raise AssertionError(f"{op} did not fail")
