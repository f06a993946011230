# SPDX-License-Identifier: Apache-2.0
"""Models for the tests of the package: the demo model and small graphs made on the spot."""

import pathlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hotset
from hotset.generator import model_folder

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "demo"


@pytest.fixture(scope="session")
def demo():
    return model_folder("demo")


@pytest.fixture(scope="session")
def reference():
    with np.load(GOLDEN / "reference.npz") as arrays:
        return dict(arrays)


def argmax_tokens(reference, kind):
    """Greedy tokens by one of the oracle's logits, with the context of generated_ids: valid up to the first that differs from those."""
    steps = [reference[f"{kind}logits_prefill"], *(reference[f"{kind}logits_step_{i}"] for i in range(len(reference["generated_ids"]) - 1))]
    return [int(logits[0, -1].argmax()) for logits in steps]


@pytest.fixture(scope="session")
def certain_tokens(reference):
    """Greedy tokens of the demo model on which every way of computing agrees: the next choice is a tie within rounding."""
    kinds = zip(*(argmax_tokens(reference, kind) for kind in ("", "opt_", "f32_")), strict=True)
    agreed = [len(set(tokens)) == 1 for tokens in kinds]
    tokens = reference["generated_ids"][: agreed.index(False)].tolist()
    assert len(tokens) == 6
    return tokens


@pytest.fixture(scope="session")
def exact_tokens(reference):
    """Greedy tokens with float activations, one longer."""
    tokens = argmax_tokens(reference, "f32_")
    return tokens[: 1 + [a == b for a, b in zip(tokens, reference["generated_ids"], strict=True)].index(False)]


@pytest.fixture
def exact():
    """Options under which every activation is a float."""
    options = hotset.SessionOptions()
    options.add_session_config_entry("hotset.cpu_activation", "float")
    return options


def make_model(nodes, inputs, outputs, initializers=(), opset=17, **fields):
    """A model from (name, type, shape) triples."""
    values = [[helper.make_tensor_value_info(*value) for value in group] for group in (inputs, outputs)]
    graph = helper.make_graph(nodes, "graph", *values, list(initializers), doc_string="a graph")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **fields)
    onnx.checker.check_model(model)
    return model


@pytest.fixture(scope="session")
def add_model():
    """y = x + w for x of shape (n, ?, 3) and a scalar-like w, with an unused-by-y second result z = x * x."""
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["y"]), helper.make_node("Mul", ["x", "x"], ["z"])],
        [("x", TensorProto.FLOAT, ["n", None, 3])],
        [("y", TensorProto.FLOAT, ["n", None, 3]), ("z", TensorProto.FLOAT, ["n", None, 3])],
        [helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])],
        producer_name="tests",
        model_version=3,
        domain="example.org",
        doc_string="a model",
    )
    helper.set_model_props(model, {"key": "value"})
    return model.SerializeToString()


@pytest.fixture(scope="session")
def add_path(add_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "add \u00fc.onnx"
    path.write_bytes(add_model)
    return path


@pytest.fixture(scope="session")
def identity_model():
    """y = x for a type and shape."""

    def make(code, shape=("a", "b")):
        return make_model(
            [helper.make_node("Identity", ["x"], ["y"])], [("x", code, shape)], [("y", code, shape)], opset=23
        ).SerializeToString()

    return make


@pytest.fixture(scope="session")
def demo_tokenizer(demo):
    import tokenizers

    return tokenizers.Tokenizer.from_file(str(demo / "tokenizer.json"))
