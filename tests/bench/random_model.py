# SPDX-License-Identifier: Apache-2.0
"""Writes a whole decoder of a real model's shape with random int4 weights: what a benchmark needs and nobody has to download.

usage: python tests/bench/random_model.py FOLDER --shape qwen3-30b-a3b|gpt-oss-20b|gpt-oss-120b|mixtral-8x7b
           [--layers N] [--distinct-layers N] [--context N] [--io f16|bf16|f32] [--seed N]

FOLDER/model.onnx and model.onnx.data: QMoE and MatMulNBits in the raw int4 layout with blocks of 32, scales in the type of the
activations, caches of any length (shared past and present buffers included), logits of the last token only. --distinct-layers lets
layer l share the bytes of layer l modulo N in the file, so that a model may be larger than the disk; a session that copies weights
still holds every layer. Weights repeat a pool of random bytes: their values do not matter, their number does.
"""

import argparse
import pathlib
import re
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from onnx import TensorProto, external_data_helper, helper  # noqa: E402

from end_to_end.gpt_oss_builder import Builder, Config  # noqa: E402

POOL = 64 << 20

SHAPES = {
    "qwen3-30b-a3b": dict(hidden=2048, inter=768, heads=32, kv_heads=4, head_size=128, layers=48, experts=128, k=8, vocabulary=151936,
                          window=-1, form="G11"),
    "gpt-oss-20b": dict(hidden=2880, inter=2880, heads=64, kv_heads=8, head_size=64, layers=24, experts=32, k=4, vocabulary=201088,
                        window=128, form="G11"),
    "gpt-oss-120b": dict(hidden=2880, inter=2880, heads=64, kv_heads=8, head_size=64, layers=36, experts=128, k=4, vocabulary=201088,
                         window=128, form="G11"),
    "mixtral-8x7b": dict(hidden=4096, inter=14336, heads=32, kv_heads=8, head_size=128, layers=32, experts=8, k=2, vocabulary=32000,
                         window=-1, form="G11"),
}  # fmt: skip


class DataFile:
    """Takes bytes at its end, as the bytearray of the small builder does."""

    def __init__(self, path):
        self.file, self.size = open(path, "wb"), 0

    def __len__(self):
        return self.size

    def __iadd__(self, raw):
        self.file.write(raw)
        self.size += len(raw)
        return self


class PooledBuilder(Builder):
    """Builder whose tensors are parts of pools of random bytes instead of numbers drawn one by one."""

    def __init__(self, config, path, distinct_layers, seed):
        super().__init__(config, seed)
        self.data = DataFile(path)
        self.distinct, self.places = distinct_layers, {}
        self.codes = self.rng.integers(0, 256, POOL, np.uint8)
        self.normal = self.rng.standard_normal(1 << 20, np.float32)

    def write(self, name, dtype, shape, chunks):
        """A tensor whose bytes come in chunks, or the place of the layer that shares them."""
        key = re.sub(r"layers\.(\d+)\.", lambda m: f"layers.{int(m[1]) % self.distinct}.", name)
        if key not in self.places:
            start = len(self.data)
            for chunk in chunks:
                self.data += memoryview(chunk).cast("B")
            self.places[key] = start, len(self.data) - start
            self.data += bytes(-len(self.data) % 64)
        tensor = TensorProto(name=name, data_type=dtype, dims=shape, raw_data=b"0")
        external_data_helper.set_external_data(tensor, "model.onnx.data", *self.places[key])
        tensor.ClearField("raw_data")
        self.initializers.append(tensor)
        return name

    def repeated(self, pool, count):
        """`count` elements from a pool, from a random place on."""
        start = int(self.rng.integers(len(pool)))
        while count:
            part = pool[start : start + count]
            yield part
            count, start = count - len(part), 0

    def packed(self, name, *shape):
        return self.write(name, TensorProto.UINT8, shape, self.repeated(self.codes, int(np.prod(shape))))

    def random(self, name, *shape, scale=1.0, mean=0.0):
        pool = (mean + scale * self.normal).astype(self.c.io_type)
        return self.write(name, helper.np_dtype_to_tensor_dtype(self.c.io_type), shape, self.bytes_of(pool, shape))

    def bytes_of(self, pool, shape):
        for part in self.repeated(pool, int(np.prod(shape))):
            yield part.view(np.uint8)

    def scale_tensor(self, name, k, *shape):
        pool = self.scales(4, k, 1 << 20)
        return self.write(name, helper.np_dtype_to_tensor_dtype(self.c.io_type), shape, self.bytes_of(pool, shape))

    def dense_weight(self, base, n, k, shared=False):
        blocks = k // 32
        return [self.packed(f"{base}.weight_Q4", n, blocks, 16), self.scale_tensor(f"{base}.weight_scales", k, n, blocks)]

    def expert_tensors(self, base, rows, columns):
        experts = self.c.experts
        names = [self.packed(f"{base}.qweight", experts, rows, columns // 2)]
        names.append(self.scale_tensor(f"{base}.scales", columns, experts, rows, columns // 32))
        return [*names, self.random(f"{base}.bias", experts, rows, scale=0.1)], ""


def write(folder, shape, *, layers=None, distinct_layers=None, context=4096, io="f16", seed=0):
    """Writes the model and returns its path. `shape`: a key of SHAPES or a dict of Config's fields."""
    fields = dict(SHAPES[shape] if isinstance(shape, str) else shape)
    fields["layers"] = layers or fields["layers"]
    config = Config(io=io, context=context, dense_bits=4, expert_bits=4, pruned=True, **fields)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    builder = PooledBuilder(config, folder / "model.onnx.data", distinct_layers or config.layers, seed)
    (folder / "model.onnx").write_bytes(builder.model().SerializeToString())
    builder.data.file.close()
    return folder / "model.onnx"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--layers", type=int, help="default: as many as the real model has")
    parser.add_argument("--distinct-layers", type=int, help="layers with bytes of their own in the file; default: all")
    parser.add_argument("--context", type=int, default=4096, help="rows of the rotary tables")
    parser.add_argument("--io", choices=["f16", "bf16", "f32"], default="f16", help="type of activations and scales")
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args())
    path = write(given.pop("folder"), given.pop("shape"), **given)
    data = path.with_name("model.onnx.data").stat()
    print(f"{path}: {data.st_size / 2**30:.2f} GiB of weights in the file")


if __name__ == "__main__":
    main()
