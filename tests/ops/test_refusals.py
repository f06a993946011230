# SPDX-License-Identifier: Apache-2.0
"""Broken calls of every operator: refused with a text that names the node, or run where they are legal, and never anything else."""

import dataclasses
import pathlib
import re
import time

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hotset
from helpers import IR_VERSION, onnx_type, tensor
from ops.example_calls import CALLS

TYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_]
UNUSUAL = [ml_dtypes.int4, ml_dtypes.float8_e4m3fn, np.complex64]  # constants
INTEGERS = [-(2**63), -(2**31), -1000, -2, -1, 0, 1, 2, 3, 5, 1000, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1]
FLOATS = [float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 3e38]
TEXTS = [b"", b"no such thing", b"\xff\x00\n"]
OTHER_KINDS = [1, 1.5, b"text", [1, 2], [1.5], helper.make_tensor("t", 1, [2], [1.0, 2.0])]


def model_of(call):
    names = ["" if a is None else f"x{i}" for i, a in enumerate(call.inputs)]
    fed, initializers = [], []
    for i, array in enumerate(call.inputs):
        if array is None:
            continue
        if i in call.constant:
            initializers.append(tensor(f"x{i}", array))
        else:
            fed.append(helper.make_tensor_value_info(f"x{i}", onnx_type(np.asarray(array).dtype), None))
    outputs = ["" if call.unnamed and i == 0 else f"y{i}" for i in range(call.outputs)]
    node = helper.make_node(call.op, names, outputs, name="node", domain=call.domain)
    for name, value in call.attributes.items():
        node.attribute.append(
            helper.make_attribute(name, value) if value != [] else onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS)
        )
    graph = helper.make_graph(
        [node], "one", fed, [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs if o], initializers
    )
    opsets = [helper.make_opsetid("", call.opset)] + ([helper.make_opsetid(call.domain, 1)] if call.domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()


def attempt(call):
    """Outputs, or the error."""
    options = hotset.SessionOptions()
    options.intra_op_num_threads = 1
    feeds = {f"x{i}": np.array(a, order="C") for i, a in enumerate(call.inputs) if a is not None and i not in call.constant}
    try:
        with hotset.InferenceSession(model_of(call), options) as session:
            return session.run(None, feeds)
    except hotset.Error as error:
        return error


def check(call, what):
    start = time.monotonic()
    result = attempt(call)
    assert time.monotonic() - start < 10, what
    if isinstance(result, hotset.Error):
        text = str(result)
        assert not isinstance(result, hotset.InternalError), (what, text)
        assert "node 'node'" in text or "has no NumPy counterpart" in text or isinstance(result, hotset.OutOfMemory), (what, text)
        assert "\n" not in text
    else:
        assert len(result) == call.outputs - call.unnamed
    return result


def cast(array, dtype):
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(np.float32).astype(dtype)


def with_input(call, i, array):
    inputs = list(call.inputs)
    inputs[i] = array
    return dataclasses.replace(call, inputs=inputs)


def shapes_of(array):
    """The array in other shapes: scalars, other ranks, longer, shorter and empty dimensions."""
    flat = array.reshape(-1)
    yield flat[:1].reshape(()) if flat.size else np.zeros((), array.dtype)
    yield flat
    yield array[None]
    yield array.reshape((1,) * (8 - array.ndim) + array.shape)
    yield np.zeros((0,), array.dtype)
    if array.ndim:
        yield flat[: array.shape[-1]]
    for axis in range(array.ndim):
        yield np.concatenate([array, array[(slice(None),) * axis + (slice(0, 1),)]], axis)
        yield np.take(array, range(array.shape[axis] - 1), axis)
        yield np.take(array, [], axis)


def values_of(array):
    if array.dtype in (np.int64, np.int32):
        for value in INTEGERS:
            if np.iinfo(array.dtype).min <= value <= np.iinfo(array.dtype).max and abs(value) != 1000:
                yield np.full_like(array, value)
    elif array.dtype.kind == "f":
        for value in FLOATS:
            yield np.full_like(array, value)
    elif array.dtype == np.uint8:
        yield np.full_like(array, 255)


by_call = pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c.name}-{c.opset}")


def test_every_operator_has_a_call():
    rooms = pathlib.Path(__file__).resolve().parents[2] / "native/ops"
    entries = {
        (domain, op)
        for source in rooms.glob("*.cpp")
        for domain, op in re.findall(r'\{"([a-z.]*)", "(\w+)", \d+', source.read_text())
        if domain != "hotset"
    }
    assert entries == {(c.domain, c.op) for c in CALLS}


@by_call
def test_the_call_is_valid(call):
    result = attempt(call)
    assert not isinstance(result, hotset.Error), str(result)


@by_call
def test_number_of_inputs(call):
    required = call.required or len(call.inputs)
    for n in range(len(call.inputs)):
        result = check(dataclasses.replace(call, inputs=call.inputs[:n]), f"{n} inputs")
        assert n >= required or isinstance(result, hotset.Error), f"{n} inputs were taken"
    for i, array in enumerate(call.inputs):
        if array is not None:
            check(with_input(call, i, None), f"no input {i}")
    many = dataclasses.replace(call, inputs=call.inputs + [np.float32(0)] * 70)
    if call.op not in ("Concat", "Max", "Min", "Sum"):
        assert isinstance(check(many, "70 more inputs"), hotset.Error)
    if call.outputs == 1:
        result = check(dataclasses.replace(call, unnamed=True, outputs=2), "output 0 without a name")
        assert isinstance(result, hotset.Error) or call.op == "Split"
    for n in (call.outputs + 1, 80):
        result = check(dataclasses.replace(call, outputs=n), f"{n} outputs")
        assert n < 80 or isinstance(result, hotset.Error)


@by_call
def test_types(call):
    for i, array in enumerate(call.inputs):
        for dtype in [*TYPES, *UNUSUAL] if array is not None else []:
            changed = with_input(call, i, cast(array, dtype))
            if dtype in UNUSUAL:
                changed = dataclasses.replace(changed, constant=(*call.constant, i))
            check(changed, f"input {i} as {np.dtype(dtype)}")


@by_call
def test_shapes(call):
    for i, array in enumerate(call.inputs):
        for other in shapes_of(np.asarray(array)) if array is not None else []:
            if other.ndim > 8 or (i in call.constant and other.dtype == ml_dtypes.int4 and other.ndim == 0):
                continue
            check(with_input(call, i, other), f"input {i} of shape {other.shape}")
            if i not in call.constant:
                check(dataclasses.replace(with_input(call, i, other), constant=(*call.constant, i)), f"constant {i} of shape {other.shape}")


@by_call
def test_values(call):
    for i, array in enumerate(call.inputs):
        for other in values_of(np.asarray(array)) if array is not None else []:
            check(with_input(call, i, other), f"input {i} full of {other.flat[0]}")
            check(dataclasses.replace(with_input(call, i, other), constant=(*call.constant, i)), f"constant {i} full of {other.flat[0]}")


@by_call
def test_attributes(call):
    for name, value in call.attributes.items():
        kinds = [type(value)] if not isinstance(value, list) else [list]
        if isinstance(value, int):
            values = INTEGERS
        elif isinstance(value, float):
            values = FLOATS
        elif isinstance(value, str):
            values, kinds = TEXTS, [bytes]
        elif isinstance(value, list):
            values = [[], [0] * 70, [-1], [9], [2**63 - 1] * len(value), [-(2**63)] * len(value), value * 2, value[:1] * len(value)]
        else:
            values = [
                helper.make_tensor("v", 1, [2], [1.0, 2.0]),
                helper.make_tensor("v", 1, [0], []),
                helper.make_tensor("v", 8, [1], [b"x"]),
            ]
        check(dataclasses.replace(call, attributes={k: v for k, v in call.attributes.items() if k != name}), f"no {name}")
        for other in values:
            check(dataclasses.replace(call, attributes=call.attributes | {name: other}), f"{name} {other}")
        for other in OTHER_KINDS:
            same = type(other) in kinds and not (isinstance(other, list) and isinstance(other[0], float))
            if not same:
                result = check(dataclasses.replace(call, attributes=call.attributes | {name: other}), f"{name} {other}")
                assert isinstance(result, hotset.Error) and name in str(result), f"{name} {other} was taken"


def test_messages_say_what_where_and_why():
    calls = {c.name: c for c in CALLS}
    for name, change, code, text in [
        ("Gather", {"inputs": [np.zeros((2, 3), np.float32)]}, hotset.InvalidModel, r"node 'node' \(Gather\): input 1 is missing"),
        ("Add", {"inputs": [np.zeros(2, np.float32)] * 3}, hotset.InvalidModel, r"\(Add\): 3 inputs, expected at most 2"),
        ("Identity", {"outputs": 2}, hotset.InvalidModel, r"\(Identity\): 2 outputs, expected at most 1"),
        ("Gather", {"attributes": {"axis": 1.5}}, hotset.InvalidModel, r"\(Gather\): attribute axis is a float, expected an int"),
    ]:
        result = attempt(dataclasses.replace(calls[name], **change))
        assert isinstance(result, code) and re.search(text, str(result)), str(result)
