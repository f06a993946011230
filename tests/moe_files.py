# SPDX-License-Identifier: Apache-2.0
"""Models of QMoE layers in a chain, with their weights in one file beside them: random int4 codes, blocks of 32, float32 scales."""

import dataclasses
import os
import pathlib

import numpy as np
from onnx import TensorProto, helper

import hotset

PREFIX = "session.moe.offload."


@dataclasses.dataclass
class Layers:
    """Every layer reads its routes from a graph input of its own, r0, r1 ..., so a caller decides which experts are used."""

    path: pathlib.Path
    hidden: int
    inter: int
    experts: int
    k: int
    layers: int

    @property
    def expert_bytes(self):
        return (3 * self.inter * self.hidden // 2) + 3 * self.inter * self.hidden // 32 * 4

    @property
    def total_bytes(self):
        return self.layers * self.experts * self.expert_bytes

    @property
    def data(self):
        return self.path.with_suffix(".bin")

    def feeds(self, rng, rows=1, experts=None):
        """Random rows; routes to random experts, or in layer i to those of experts[i] for all rows."""
        feeds = {"x": rng.standard_normal((rows, self.hidden), np.float32)}
        for layer in range(self.layers):
            logits = rng.standard_normal((rows, self.experts), np.float32)
            if experts is not None:
                logits[:, experts[layer]] += 100
            feeds[f"r{layer}"] = logits
        return feeds


def make_layers(folder, hidden=1024, inter=1024, experts=32, k=4, layers=4, shift=0, seed=0):
    """Writes the model and its data, and sees to it that they are on the disk: pages not yet written cannot be dropped.

    shift: bytes in front of each tensor, so that none begins at a block of the disk.
    """
    made = Layers(pathlib.Path(folder) / "layers.onnx", hidden, inter, experts, k, layers)
    rng = np.random.default_rng(seed)
    initializers, nodes = [], []
    with open(made.data, "wb") as file:

        def external(name, array):
            file.write(b"\0" * (-file.tell() % 64 + shift))
            proto = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
            proto.data_location = TensorProto.EXTERNAL
            for key, value in (("location", made.data.name), ("offset", file.tell()), ("length", array.nbytes)):
                proto.external_data.add(key=key, value=str(value))
            array.tofile(file)
            initializers.append(proto)

        value = "x"
        for layer in range(layers):
            names = [f"{part}_{layer}" for part in ("w1", "s1", "w2", "s2")]
            for weights, scales, n, columns in ((*names[:2], 2 * inter, hidden), (*names[2:], hidden, inter)):
                external(weights, rng.integers(0, 256, (experts, n, columns // 2), np.uint8))
                external(scales, (rng.random((experts, n, columns // 32), np.float32) + 0.5) * np.float32(0.1 / columns**0.5))
            inputs = [value, f"r{layer}", names[0], names[1], "", names[2], names[3]]
            value = f"y{layer}" if layer < layers - 1 else "y"
            nodes.append(
                helper.make_node(
                    "QMoE", inputs, [value], name=f"moe{layer}", domain="com.microsoft", k=k, activation_type="swiglu", swiglu_fusion=1,
                    normalize_routing_weights=1, expert_weight_bits=4, block_size=32, weights_prepacked=0,
                )
            )  # fmt: skip
        file.flush()
        os.fsync(file.fileno())
    fed = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", hidden])]
    fed += [helper.make_tensor_value_info(f"r{layer}", TensorProto.FLOAT, ["rows", experts]) for layer in range(layers)]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", hidden])
    graph = helper.make_graph(nodes, "layers", fed, [out], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made.path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return made


def options(threads=2, **entries):
    """host_expert_bytes=..., allow_file_backing=... are offload keys; host_pages and file_io are keys of hotset."""
    made = hotset.SessionOptions()
    made.intra_op_num_threads = threads
    for key, value in entries.items():
        made.add_session_config_entry(("hotset." if key in ("host_pages", "file_io") else PREFIX) + key, str(value))
    return made
