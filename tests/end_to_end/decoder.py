# SPDX-License-Identifier: Apache-2.0
"""Runs exported decoders in steps, growing their caches or writing them in place, and judges logits and caches."""

import re

import numpy as np

import hotset
from end_to_end.gpt_oss_builder import NUMPY
from reference.attention import resident

# Largest difference allowed, relative to the largest magnitude of the expected array, by the type of the activations. A float32 run
# differs from exact arithmetic by the order of its sums, the others by a rounding after every operator through all layers.
BOUND = {"f32": 2e-4, "f16": 8e-3, "bf16": 5e-2}

TYPES = {"tensor(float)": "f32", "tensor(float16)": "f16", "tensor(bfloat16)": "bf16"}


def open_session(path, activation="float", threads=2, device="cpu"):
    options = hotset.SessionOptions()
    options.add_session_config_entry("hotset.device", device)
    options.intra_op_num_threads = threads
    options.add_session_config_entry("hotset.cpu_activation", activation)
    return hotset.InferenceSession(path, options)


class Decoder:
    """`batch` sequences of one length; step() feeds more of their tokens (batch, n) and returns the logits.

    run: function(feed) -> every output by name. inputs: name -> element type, None for integers.
    windows: layer -> (rows of its cache, window) of the layers with a windowed cache; the others grow, or have `rows` from the start.
    """

    def __init__(self, run, inputs, kv_shape, windows, batch=1, rows=0):
        self.run, self.windows, self.length = run, windows, 0
        self.positions = "position_ids" in inputs
        kv_heads, head_size = kv_shape
        self.past, self.outputs = {}, {}
        for name, kind in inputs.items():
            if name.startswith("past_key_values."):
                capacity = windows[layer_of(name)][0] if layer_of(name) in windows else rows
                self.past[name] = np.zeros((batch, kv_heads, capacity, head_size), NUMPY[kind])

    def step(self, ids):
        start, self.length = self.length, self.length + ids.shape[1]
        feed = {"input_ids": ids, "attention_mask": np.ones((len(ids), self.length), np.int64), **self.past}
        if self.positions:
            feed["position_ids"] = np.arange(start, self.length)[None].repeat(len(ids), 0)
        self.outputs = self.run(feed)
        self.past = {name: self.outputs[present(name)] for name in self.past}
        return self.outputs["logits"]

    def states(self):
        """The rows in use of every cache, by output name."""
        rows = {layer: resident(self.length, *window) for layer, window in self.windows.items()}
        return {present(name): array[:, :, : rows.get(layer_of(name), self.length)] for name, array in self.past.items()}


def layer_of(name):
    return int(re.search(r"\d+", name).group())


def present(name):
    """The output that is this input in the next step."""
    return name.replace("past_key_values.", "cache." if ".layers." in name else "present.")


def input_types(session):
    return {arg.name: TYPES.get(arg.type) for arg in session.get_inputs()}


def run_growing(session):
    """Outputs are new arrays."""
    names = [arg.name for arg in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(None, feed), strict=True))


def run_in_place(session):
    """Every cache is written where it lies."""
    binding = session.io_binding()

    def run(feed):
        written = {}
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
            if name.startswith("past_key_values."):
                binding.bind_ortvalue_output(present(name), hotset.OrtValue(array))
                written[present(name)] = array
        binding.bind_output("logits")
        session.run_with_iobinding(binding)
        names = [*written, "logits"]
        results = dict(zip(names, binding.get_outputs(), strict=True))
        for name, array in written.items():
            assert np.shares_memory(results[name].numpy(), array)
        return {"logits": results["logits"].numpy()} | written

    return run


def error(got, expected, least=1e-30):
    """Largest difference, relative to the largest magnitude expected, or to `least`."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    if not expected.size:
        return 0.0
    difference = np.abs(got - expected).max()
    assert np.isfinite(difference)
    return difference / max(np.abs(expected).max(), least)


def assert_same_choice(got, expected, bound):
    """The tokens that greedy decoding takes are equal where the expected logits tell them apart."""
    second, first = np.sort(np.asarray(expected, np.float64), -1)[..., -2:].reshape(-1, 2).T
    certain = first - second > 2 * bound * np.abs(expected).max()
    choice = [np.argmax(np.asarray(logits, np.float64), -1).reshape(-1) for logits in (got, expected)]
    assert np.array_equal(choice[0][certain], choice[1][certain])
    return certain.mean()
