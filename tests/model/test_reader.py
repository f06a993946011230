# SPDX-License-Identifier: Apache-2.0
"""The ONNX reader against the onnx package: every element type and storage, functions, subgraphs, data files, broken files."""

import json
import subprocess
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")
from google.protobuf.message import DecodeError  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("local", 1)]
TYPES = [t for t in TensorProto.DataType.values() if 0 < t <= TensorProto.FLOAT8E8M0 and t != TensorProto.STRING]


@pytest.fixture(scope="module")
def dump(native_build):
    def run(path, *arguments):
        command = [native_build / "tests" / "model-test_reader_dump", *arguments, path]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def text(value) -> str:
    """A name as the dump prints it: its UTF-8 bytes as latin-1."""
    return (value if isinstance(value, bytes) else value.encode()).decode("latin-1")


def make_model(nodes, inputs=("x",), outputs=("y",), initializers=(), functions=()):
    infos = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", "4", 2]) for n in names] for names in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *infos, initializer=list(initializers))
    return helper.make_model(graph, opset_imports=OPSETS, functions=list(functions), ir_version=10)


def tensor_bytes(tensor, folder) -> bytes:
    """The packed bytes of a tensor, as the onnx package finds them."""
    if tensor.data_location == TensorProto.EXTERNAL:
        from onnx.external_data_helper import load_external_data_for_tensor

        tensor = TensorProto.FromString(tensor.SerializeToString())
        load_external_data_for_tensor(tensor, str(folder))
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    kinds, field = typed_storage(tensor.data_type)
    return np.array(getattr(tensor, field), kinds[0]).astype(kinds[1]).tobytes()


def typed_storage(kind):
    """((type of an entry, its bytes in the tensor), field) of a tensor stored in a typed field."""
    if kind in (TensorProto.FLOAT, TensorProto.COMPLEX64):
        return (np.float32, np.float32), "float_data"
    if kind in (TensorProto.DOUBLE, TensorProto.COMPLEX128):
        return (np.float64, np.float64), "double_data"
    if kind in (TensorProto.UINT32, TensorProto.UINT64):
        return (np.uint64, np.uint32 if kind == TensorProto.UINT32 else np.uint64), "uint64_data"
    if kind == TensorProto.INT64:
        return (np.int64, np.int64), "int64_data"
    return (np.int64, f"u{max(1, element_bits(kind) // 8)}"), "int32_data"


def element_bits(kind) -> int:
    if kind in (TensorProto.UINT4, TensorProto.INT4, TensorProto.FLOAT4E2M1):
        return 4
    return 8 * np.dtype(helper.tensor_dtype_to_np_dtype(kind)).itemsize


def check_tensor(tensor, seen, folder):
    assert seen["dtype"] == tensor.data_type and seen["dims"] == list(tensor.dims), tensor.name
    assert seen["crc"] == zlib.crc32(tensor_bytes(tensor, folder)), tensor.name


def expected_attribute(attribute):
    kind = attribute.type
    kinds = onnx.AttributeProto
    if kind == kinds.FLOAT:
        return float(attribute.f)
    if kind == kinds.FLOATS:
        return [float(f) for f in attribute.floats]
    if kind == kinds.STRING:
        return text(attribute.s)
    if kind == kinds.STRINGS:
        return [text(s) for s in attribute.strings]
    return attribute.i if kind == kinds.INT else list(attribute.ints)


def seen_attribute(value, kind):
    if kind == onnx.AttributeProto.FLOAT:
        return float.fromhex(value)
    return [float.fromhex(f) for f in value] if kind == onnx.AttributeProto.FLOATS else value


def check_node(node, seen, opsets, folder):
    domain = "" if node.domain == "ai.onnx" else node.domain
    assert (seen["op"], seen["domain"]) == (node.op_type, domain)
    assert seen["name"] == text(node.name or next(o for o in node.output if o))
    assert seen["opset"] == opsets.get(domain, 1)
    assert seen["inputs"] == [text(i) for i in node.input] and seen["outputs"] == [text(o) for o in node.output]
    assert sorted(seen["attributes"]) == sorted(text(a.name) for a in node.attribute)
    for attribute in node.attribute:
        value = seen["attributes"][text(attribute.name)]
        if attribute.type == onnx.AttributeProto.TENSOR:
            check_tensor(attribute.t, value, folder)
        elif attribute.type == onnx.AttributeProto.GRAPH:
            check_graph(attribute.g, value, opsets, folder)
        else:
            assert seen_attribute(value, attribute.type) == expected_attribute(attribute), attribute.name


def check_graph(graph, seen, opsets, folder):
    constants = seen["constants"]
    initializers = {text(t.name): t for t in graph.initializer if t.data_type != TensorProto.STRING}
    for name, tensor in initializers.items():
        check_tensor(tensor, constants[name], folder)
    nodes = []
    for node in graph.node:
        if node.op_type != "Constant":
            nodes.append(node)
        elif node.output[0]:
            (attribute,) = node.attribute
            kept = constants[text(node.output[0])]
            if attribute.name == "value":
                check_tensor(attribute.t, kept, folder)
            else:
                kind = np.int64 if "int" in attribute.name else np.float32
                value = np.array(helper.get_attribute_value(attribute), kind)
                assert kept["dims"] == list(value.shape) and kept["crc"] == zlib.crc32(value.tobytes())
    assert len(seen["nodes"]) == len(nodes)
    for node, found in zip(nodes, seen["nodes"], strict=True):
        check_node(node, found, opsets, folder)
    assert [i[0] for i in seen["inputs"]] == [text(i.name) for i in graph.input if text(i.name) not in initializers]
    assert [o[0] for o in seen["outputs"]] == [text(o.name) for o in graph.output]
    declared = {text(v.name): v for v in [*graph.input, *graph.output]}
    for name, dtype, shape in seen["inputs"]:
        tensor = declared[name].type.tensor_type
        assert dtype == tensor.elem_type and (shape is not None) == tensor.HasField("shape")
        for dim, d in zip(shape or [], tensor.shape.dim, strict=True):
            number = d.dim_value if d.HasField("dim_value") else int(d.dim_param) if d.dim_param.isdigit() else text(d.dim_param)
            assert dim == number


def check_model(dump, path, model=None):
    """For models whose functions all have kernels."""
    model = model or onnx.load(str(path), load_external_data=False)
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    for argument in ([], ["--bytes"]):
        if argument and any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer):
            continue  # a model given as bytes has no folder
        seen = dump(path, *argument)
        assert seen["code"] == 0, seen
        check_graph(model.graph, seen["graph"], opsets, path.parent)
    return seen


def save(tmp_path, model, name="m.onnx"):
    path = tmp_path / name
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 1), (0, 4)])
def test_element_types(dump, tmp_path, shape, raw):
    tensors = []
    random = np.random.default_rng(3)
    for kind in TYPES:
        tensor = TensorProto(name=f"t{kind}", data_type=kind, dims=shape)
        n_bytes = (int(np.prod(shape)) * element_bits(kind) + 7) // 8
        if raw:
            tensor.raw_data = random.bytes(n_bytes)
        else:
            (_, kept), field = typed_storage(kind)
            count = n_bytes // np.dtype(kept).itemsize
            values = random.integers(0, 100, count).astype(kept)
            if field == "int32_data":  # the low bytes count, whatever the sign
                values = np.where(random.random(count) < 0.5, values.view(f"i{np.dtype(kept).itemsize}"), -values.astype(np.int32))
            getattr(tensor, field).extend(values.tolist())
        tensors.append(tensor)
    check_model(dump, save(tmp_path, make_model([helper.make_node("Op", ["x", *(t.name for t in tensors)], ["y"])], initializers=tensors)))


def test_attributes_and_names(dump, tmp_path):
    node = helper.make_node(
        "Op", ["", "x", ""], ["y", ""], domain="ai.onnx", f=0.1, i=-(2**63), s="größe", fs=[1.5, float("inf")], ints=[1, -(2**40)],
        ss=["a", "", "\x00"], t=numpy_helper.from_array(np.arange(3)),
    )  # fmt: skip
    constants = [
        helper.make_node("Constant", [], ["c0"], value=numpy_helper.from_array(np.float32(2))),
        helper.make_node("Constant", [], ["c1"], value_int=7),
        helper.make_node("Constant", [], ["c2"], value_floats=[0.5, 2.5]),
        helper.make_node("Constant", [], ["ü"], value_ints=[3]),
        helper.make_node("Constant", [], ["c4"], value_float=3.0),
    ]
    use = helper.make_node("Use", ["y", "c0", "c1", "c2", "ü", "c4"], ["z"], name="日本")
    check_model(dump, save(tmp_path, make_model([*constants, node, use], outputs=("z",))))


def external(name, array, location, offset=None, length=None):
    tensor = numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_external_data(dump, tmp_path):
    random = np.random.default_rng(0)
    (tmp_path / "a.data").write_bytes(random.bytes(1001))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b.data").write_bytes(random.bytes(40))
    tensors = [
        external("w0", np.zeros(10, np.float32), "a.data", 13, 40),
        external("w1", np.zeros((2, 5), np.float32), "b/b.data"),
        external("w2", np.zeros(4, np.float16), "a.data", 993),
        external("w3", np.zeros((), np.int64), "./a.data", 0, 8),
    ]
    use = [helper.make_node("Op", ["x", *(t.name for t in tensors)], ["y"])]
    seen = check_model(dump, save(tmp_path, make_model(use, initializers=tensors)))
    assert seen["files"] == 3
    # Another model reads the same file.
    check_model(dump, save(tmp_path, make_model([helper.make_node("Op", ["x", "w0"], ["y"])], initializers=tensors[:1]), "other.onnx"))
    planned = dump(tmp_path / "m.onnx", "--plan")
    assert planned["code"] == 0 and all(c["crc"] is None for c in planned["graph"]["constants"].values())
    (tmp_path / "b" / "b.data").unlink()
    missing = dump(tmp_path / "m.onnx", "--plan")
    assert missing["code"] == 2 and "tensor 'w1'" in missing["text"] and "b.data" in missing["text"]


def test_subgraphs(dump, tmp_path):
    inner = helper.make_graph(
        [helper.make_node("Add", ["x", "k"], ["s"]), helper.make_node("Mul", ["s", "w"], ["r"])],
        "inner", [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["n"])], [numpy_helper.from_array(np.float32(3), "k")],
    )  # fmt: skip
    model = make_model(
        [helper.make_node("Cast", ["x"], ["c"], to=9), helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)],
        initializers=[numpy_helper.from_array(np.float32(5), "w")],
    )
    onnx.checker.check_model(model)
    seen = dump(save(tmp_path, model))
    branch = seen["graph"]["nodes"][1]["attributes"]["then_branch"]
    assert seen["graph"]["nodes"][1]["captures"] == ["x"] and branch["captures"] == ["x"]
    assert sorted(branch["constants"]) == ["k", "w"]
    check_model(dump, save(tmp_path, model))


def test_functions_match_the_inliner_of_onnx(dump, tmp_path):
    from onnx.inliner import inline_local_functions

    scale = helper.make_function(
        "local", "Scale", ["a", "b"], ["r"],
        [helper.make_node("Constant", [], ["k"], value_float=2.0), helper.make_node("Mul", ["a", "k"], ["m"]),
         helper.make_node("Gemm", ["m", "a", "b"], ["r"])],
        [helper.make_opsetid("", 21)], ["alpha"], [helper.make_attribute("beta", 0.5)],
    )  # fmt: skip
    for name in ("alpha", "beta"):
        attribute = scale.node[2].attribute.add(name=name, type=onnx.AttributeProto.FLOAT)
        attribute.ref_attr_name = name
    both = helper.make_function(
        "local", "Both", ["a"], ["p", "q"],
        [helper.make_node("Scale", ["a"], ["t"], domain="local", alpha=3.0), helper.make_node("Scale", ["t", "a"], ["p"], domain="local"),
         helper.make_node("Neg", ["t"], ["q"])],
        OPSETS,
    )  # fmt: skip
    nodes = [
        helper.make_node("Both", ["x"], ["u", "v"], domain="local"),
        helper.make_node("Both", ["u"], ["w"], domain="local"),
        helper.make_node("Add", ["v", "w"], ["y"]),
    ]
    model = make_model(nodes, functions=[both, scale])
    onnx.checker.check_model(model)
    seen = dump(save(tmp_path, model))["graph"]
    expected = [n for n in inline_local_functions(model).graph.node if n.op_type != "Constant"]
    assert [n["op"] for n in seen["nodes"]] == [n.op_type for n in expected]
    names = {}  # theirs -> ours, one to one
    for ours, theirs in zip(seen["nodes"], expected, strict=True):
        assert [n for n in ours["outputs"] if n] and len(ours["inputs"]) == len(theirs.input)
        for mine, other in zip([*ours["inputs"], *ours["outputs"]], [*theirs.input, *theirs.output], strict=True):
            assert names.setdefault(other, mine) == mine
        values = {a.name: a.f for a in theirs.attribute}
        if theirs.op_type == "Gemm":
            values = {"beta": 0.5} | values  # the package's inliner forgets a function's defaults
        assert {k: float.fromhex(v) for k, v in ours["attributes"].items()} == values
    assert len(set(names.values())) == len(names) and names["y"] == "y" and names["x"] == "x"


BASE = make_model(
    [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], alpha=0.5, name="first"),
        helper.make_node("Constant", [], ["k"], value_ints=[1, 2]),
        helper.make_node("Twice", ["h"], ["t"], domain="local", n=3),
        helper.make_node("Sum", ["t", "k", ""], ["y"]),
    ],
    initializers=[numpy_helper.from_array(np.arange(6, dtype=np.float32), "w"), helper.make_tensor("b", TensorProto.INT4, [3], [1, -2, 3])],
    functions=[helper.make_function("local", "Twice", ["a"], ["r"], [helper.make_node("Add", ["a", "a"], ["r"])], OPSETS)],
).SerializeToString()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, len(BASE) - 1), st.integers(0, 255), st.sampled_from("sdi")), max_size=3))
def test_mutants(dump, tmp_path, edits):
    """A broken file is refused with one line; what is read has the structure that the onnx package sees in it."""
    data = bytearray(BASE)
    for at, byte, kind in edits:
        at = min(at, len(data) - 1)
        if kind == "s":
            data[at] = byte
        elif kind == "d":
            del data[at]
        else:
            data.insert(at, byte)
    path = tmp_path / "mutant.onnx"
    path.write_bytes(data)
    seen = dump(path)
    if seen["code"]:
        assert seen["text"] and "\n" not in seen["text"] and "mutant.onnx" in seen["text"]
        return
    try:
        model = onnx.ModelProto.FromString(bytes(data))
    except DecodeError:
        return  # in a message that no operator needs: the reader does not look into it
    assert [i[0] for i in seen["graph"]["inputs"]] == [
        text(i.name) for i in model.graph.input if i.name not in {t.name for t in model.graph.initializer}
    ]
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.STRING:
            assert seen["graph"]["constants"][text(tensor.name)]["dims"] == list(tensor.dims)


def test_demo_model(dump, source_root):
    """The model shipped in the package, node by node."""
    path = source_root / "python" / "hotset" / "models" / "demo" / "model.onnx"
    if not path.exists():
        pytest.skip("no demo model in the source tree")
    check_model(dump, path)
