# SPDX-License-Identifier: Apache-2.0
"""The GPT-OSS files that exporters wrote (tests/golden/README.md): float activations reproduce exact arithmetic, step by step."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import hotset
from end_to_end.decoder import BOUND, Decoder, assert_same_choice, error, input_types, open_session, run_growing, run_in_place
from hotset.generator import model_folder
from reference.graph import Executor

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
GPT_OSS = ["demo", "gpt_oss-genai-int4-cpu", "gpt_oss-genai-int4-cuda", "gpt_oss-genai-fp16-cuda"]
OTHERS = ["qwen3_moe-mobius-int4-cpu", "qwen3_moe-transformers-fp16-cuda"]


class Model:
    def __init__(self, name, device="cpu"):
        self.folder = model_folder("demo") if name == "demo" else GOLDEN / name
        with np.load(GOLDEN / name / "reference.npz") as arrays:
            self.reference = dict(arrays)
        config = self.folder / "genai_config.json"
        decoder = json.loads(config.read_text())["model"]["decoder"] if config.exists() else {}
        self.kv_shape = decoder.get("num_key_value_heads", 2), decoder.get("head_size", 16)
        sliding = decoder.get("sliding_window", {"layers": []})
        self.windows = {layer: (sliding["window_size"] + sliding["cache_slack"], sliding["window_size"]) for layer in sliding["layers"]}
        self.session = open_session(self.folder / "model.onnx", device=device)
        self.types = input_types(self.session)
        self.bound = BOUND[next(kind for kind in self.types.values() if kind)]

    def decoder(self, in_place=False):
        run = (run_in_place if in_place else run_growing)(self.session)
        return Decoder(run, self.types, self.kv_shape, self.windows, rows=64 if in_place else 0)

    def oracle(self):
        types = {name: kind and "f32" for name, kind in self.types.items()}
        return Decoder(Executor(self.folder / "model.onnx").run, types, self.kv_shape, self.windows)

    def chunks(self):
        """(tokens, expected logits) of the prompt and of every step."""
        yield self.reference["prompt_ids"], self.reference["f32_logits_prefill"]
        for i, token in enumerate(self.reference["generated_ids"]):
            if f"f32_logits_step_{i}" in self.reference:
                yield np.array([token]), self.reference[f"f32_logits_step_{i}"]

    def check(self, decoder, whole):
        """Every chunk at once, or its tokens one by one."""
        for ids, expected in self.chunks():
            if whole:
                logits = decoder.step(ids[None])
            else:
                logits = np.concatenate([decoder.step(token.reshape(1, 1)).copy() for token in ids], 1)
            assert error(logits, expected) < self.bound
            assert_same_choice(logits, expected, self.bound)


@pytest.fixture(scope="module", params=GPT_OSS)
def model(request):
    return Model(request.param)


@pytest.fixture(scope="module")
def exact_states(model):
    """Caches after the last step of an exact run: those stored are of int8 activations in part, and of half precision."""
    oracle = model.oracle()
    for ids, expected in model.chunks():
        assert error(oracle.step(ids[None]), expected) < 1e-5
    return oracle.states()


@pytest.mark.parametrize("in_place", [False, True], ids=["growing", "in_place"])
@pytest.mark.parametrize("whole", [True, False], ids=["one_chunk", "by_token"])
def test_logits_and_states(model, exact_states, in_place, whole):
    decoder = model.decoder(in_place)
    model.check(decoder, whole)
    for name, state in decoder.states().items():
        assert error(state, exact_states[name]) < model.bound, name


def test_a_sequence_starts_anew(model):
    """The session keeps nothing of the last one, and it is the same where the caches lie."""
    prompt = model.reference["prompt_ids"][None]
    logits = model.decoder().step(prompt)
    assert np.array_equal(model.decoder(in_place=True).step(prompt), logits)
    assert np.array_equal(model.decoder().step(prompt), logits)


@pytest.mark.parametrize("whole", [True, False], ids=["one_chunk", "by_token"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_exports(name, whole):
    other = Model(name)
    other.check(other.decoder(), whole)


@pytest.mark.gpu
@pytest.mark.parametrize("whole", [True, False], ids=["one_chunk", "by_token"])
@pytest.mark.parametrize("in_place", [False, True], ids=["growing", "in_place"])
@pytest.mark.parametrize("name", GPT_OSS)
def test_on_a_gpu(name, in_place, whole):
    model = Model(name, "cuda:0")
    model.check(model.decoder(in_place), whole)


@pytest.mark.gpu
@pytest.mark.parametrize("name", OTHERS)
def test_other_exports_on_a_gpu(name):
    """Nodes without a device kernel run on the CPU."""
    other = Model(name, "cuda:0")
    other.check(other.decoder(), whole=True)


@pytest.mark.parametrize("level", hotset.doctor()["cpu"]["tiers"])
@pytest.mark.parametrize("name", ["gpt_oss-genai-int4-cpu", "gpt_oss-genai-fp16-cuda"])
def test_every_instruction_set(name, level):
    code = f"from end_to_end.test_exported_models import Model; model = Model({name!r}); model.check(model.decoder(), True)"
    path = os.pathsep.join(filter(None, [str(GOLDEN.parent), os.environ.get("PYTHONPATH")]))
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"HOTSET_CPU": level, "PYTHONPATH": path}, check=True)
