# SPDX-License-Identifier: Apache-2.0
"""The script that writes models of real shapes for benchmarks."""

import sys
from pathlib import Path

import numpy as np
import pytest

import hotset

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import random_model  # noqa: E402

TINY = dict(hidden=64, inter=32, heads=4, kv_heads=2, head_size=16, layers=4, experts=6, k=2, vocabulary=96, window=-1, form="G11")


@pytest.mark.parametrize("io", ["f16", "bf16", "f32"])
def test_writes_a_model_that_runs(tmp_path, io):
    path = random_model.write(tmp_path, TINY, io=io, context=32)
    session = hotset.InferenceSession(path)
    feeds = {"input_ids": np.array([[1, 2, 3]]), "attention_mask": np.ones((1, 3), np.int64)}
    for value in session.get_inputs()[2:]:
        feeds[value.name] = np.zeros((1, 2, 0, 16), random_model.Config(io=io).io_type)
    (logits,) = session.run(["logits"], feeds)
    assert logits.shape == (1, 1, 96)
    assert np.isfinite(logits.astype(np.float32)).all() and logits.astype(np.float32).std() > 0.01


def test_layers_may_share_bytes(tmp_path):
    sizes = []
    for distinct in (1, 2, 4):
        path = random_model.write(tmp_path / str(distinct), TINY, distinct_layers=distinct, context=32)
        assert len(hotset.InferenceSession(path).get_inputs()) == 2 + 2 * TINY["layers"]
        sizes.append(path.with_name("model.onnx.data").stat().st_size)
    layer = sizes[1] - sizes[0]
    assert layer > 0 and sizes[2] - sizes[1] == 2 * layer
