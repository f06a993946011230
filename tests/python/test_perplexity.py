# SPDX-License-Identifier: Apache-2.0
"""The demo model predicts held-out text as well as it does elsewhere: int8 and exact activations."""

import pathlib

import numpy as np
import pytest

import hotset

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "demo"
WINDOWS, TOKENS = 16, 256
EXPECTED = {  # tests/golden/demo/README.md
    ("auto", "scripture"): 23.71,
    ("auto", "code"): 16.42,
    ("auto", "docs"): 16.25,
    ("float", "scripture"): 23.69,
    ("float", "code"): 16.41,
    ("float", "docs"): 16.29,
}


def perplexity(session, ids):
    """Over windows of the text, each from an empty cache."""
    feed = {"attention_mask": np.ones((1, TOKENS), np.int64)}
    for arg in session.get_inputs():
        if arg.name.startswith("past_key_values."):
            feed[arg.name] = np.zeros((1, 2, 128 if "sliding" in arg.shape[2] else 0, 64), np.float32)
    losses = []
    for window in ids[: WINDOWS * TOKENS].astype(np.int64).reshape(WINDOWS, 1, TOKENS):
        (logits,) = session.run(["logits"], feed | {"input_ids": window})
        logits = logits[0, :-1].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        log_sum = np.log(np.exp(logits).sum(-1))
        losses.append(log_sum - logits[np.arange(TOKENS - 1), window[0, 1:]])
    return np.exp(np.mean(losses))


@pytest.mark.parametrize(("activation", "text"), EXPECTED)
def test_perplexity(demo, activation, text):
    options = hotset.SessionOptions()
    options.add_session_config_entry("hotset.cpu_activation", activation)
    session = hotset.InferenceSession(demo / "model.onnx", options)
    assert perplexity(session, np.load(GOLDEN / f"heldout_{text}.npy")) == pytest.approx(EXPECTED[activation, text], rel=0.005)
