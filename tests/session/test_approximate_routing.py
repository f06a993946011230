# SPDX-License-Identifier: Apache-2.0
"""Approximate routing in sessions without a GPU: what it drops, against float64, where it acts, and what it reports.

Nothing is cached in these sessions, so every expert counts as cold: test_approximate_cache.py is about replacement."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hotset

E, H, INTER = 12, 16, 8
PREFIX = "session.moe.offload."
ON = ("hotset.approximate_on_cpu", "1")


def weights(op):
    rng = np.random.default_rng(3)
    shapes = (E, INTER, H), (E, H, INTER)
    if op == "MoE":
        return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return [rng.integers(0, 256, shape, np.uint8) for shape in shapes]


def model(op, k, normalize=0, given=False):
    fc1, fc2 = weights(op)
    if op == "MoE":
        constants, names = {"fc1": fc1, "fc2": fc2}, ["x", "logits", "fc1", "", "fc2"]
    else:
        scales = [np.full((E, INTER), 2**-6, np.float32), np.full((E, H), 2**-6, np.float32)]
        constants = {"fc1": fc1, "s1": scales[0], "fc2": fc2, "s2": scales[1]}
        names = ["x", "logits", "fc1", "s1", "", "fc2", "s2"] + [""] * 7 + ["given"] * given
    attributes = {} if op == "MoE" else {"expert_weight_bits": 8, "weights_prepacked": 0}
    node = helper.make_node(
        op, names, ["y"], "layer", domain="com.microsoft", k=k, normalize_routing_weights=normalize, activation_type="relu", **attributes
    )
    inputs = {"x": ["n", H], "logits": ["n", E]} | ({"given": ["n", E]} if given else {})
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", H])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def open_session(source, entries=(ON,), log=None):
    options = hotset.SessionOptions()
    options.intra_op_num_threads = 1
    options.set_log(lambda level, text: log is not None and log.append(text))
    for key, value in entries:
        options.add_session_config_entry(key, str(value))
    return hotset.InferenceSession(source, options)


def routes(logits, given, k, normalize):
    """ids and float64 weights [n][k] of the router."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    mass = np.exp(logits - logits.max(1, keepdims=True)) if given is None else given
    w = np.take_along_axis(mass / (mass.sum(1, keepdims=True) if given is None else 1), ids, 1).astype(np.float64)
    return ids, w / w.sum(1, keepdims=True) if normalize else w


def skip(w, threshold):
    """Routes of less than the threshold go, never the first; the sum stays."""
    keep = ~(w < threshold)
    keep[:, 0] = True
    kept = w * keep
    left = kept.sum(1, keepdims=True)
    untouched = left[:, 0] <= 0
    kept = kept * np.divide(w.sum(1, keepdims=True), left, where=left > 0, out=np.zeros_like(left))
    kept[untouched], keep[untouched] = w[untouched], True
    return kept, int((~keep).sum())


def outputs(op, x, ids, w):
    fc1, fc2 = weights(op)
    scale = 1.0 if op == "MoE" else 2.0**-6
    fc1, fc2 = [(m.astype(np.float64) - (0 if op == "MoE" else 128)) * scale for m in (fc1, fc2)]
    y = np.zeros(x.shape)
    for t, row in enumerate(x.astype(np.float64)):
        for e, weight in zip(ids[t], w[t], strict=True):
            y[t] += weight * (fc2[e] @ np.maximum(fc1[e] @ row, 0))
    return y


SESSIONS = {}


@hypothesis.settings(deadline=None, max_examples=150)
@hypothesis.given(
    op=st.sampled_from(["MoE", "QMoE"]),
    k=st.sampled_from([1, 2, 4, E]),
    normalize=st.sampled_from([0, 1]),
    with_given=st.booleans(),
    n=st.integers(1, 9),
    threshold=st.sampled_from([0.02, 0.1, 0.25, 0.6, 1.0]),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_dropped_routes_follow_the_text(op, k, normalize, with_given, n, threshold, seed, spread):
    with_given = with_given and op == "QMoE"
    key = op, k, normalize, with_given, threshold
    if key not in SESSIONS:
        SESSIONS[key] = open_session(model(op, k, normalize, with_given), [ON, (PREFIX + "min_expert_weight", threshold)])
    session = SESSIONS[key]
    rng = np.random.default_rng(seed)
    x, logits = rng.standard_normal((n, H)).astype(np.float32), (spread * rng.standard_normal((n, E))).astype(np.float32)
    given = rng.uniform(0, 1, (n, E)).astype(np.float32) if with_given else None
    ids, w = routes(logits.astype(np.float64), None if given is None else given.astype(np.float64), k, normalize)
    hypothesis.assume(np.abs(w - threshold).min() > 1e-5)  # float32 may decide otherwise
    before = session.expert_stats()[0]
    (y,) = session.run(None, {"x": x, "logits": logits} | ({"given": given} if with_given else {}))
    after = session.expert_stats()[0]
    changed, n_skipped = skip(w, threshold)
    expected = outputs(op, x, ids, changed)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * max(np.abs(expected).max(), 1))
    assert after["skipped"] - before["skipped"] == n_skipped and after["substituted"] == 0
    assert after["routes_total"] - before["routes_total"] == n * k  # as the router chose


def feed(n, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((n, H)).astype(np.float32), "logits": (spread * rng.standard_normal((n, E))).astype(np.float32)}


def test_off_unless_asked_for():
    x = feed(4)
    source = model("MoE", 4)
    exact = open_session(source, [])
    (y,) = exact.run(None, x)
    assert exact.stats()["approximate"] is False
    for entries in ([(PREFIX + "min_expert_weight", 0.9)], [ON], [(PREFIX + "tail_substitution_threshold", 3)]):
        session = open_session(source, entries)
        np.testing.assert_array_equal(session.run(None, x)[0], y)
        assert session.stats()["approximate"] is False and session.expert_stats()[0]["skipped"] == 0
    session = open_session(source, [ON, (PREFIX + "min_expert_weight", 0.9)])
    assert np.abs(session.run(None, x)[0] - y).max() > 1e-3
    assert session.stats()["approximate"] is True and session.expert_stats()[0]["skipped"] == 4 * 3


def test_the_keys_without_effect_are_named():
    log = []
    open_session(model("MoE", 4), [(PREFIX + "min_expert_weight", 0.5)], log)
    assert len(log) == 1 and PREFIX + "min_expert_weight" in log[0]
    log.clear()
    open_session(model("MoE", 4), [ON, (PREFIX + "min_expert_weight", 0.5), (PREFIX + "async_max_tokens", 3)], log)
    assert not log


@pytest.mark.parametrize(("entries", "most"), [([], 31), ([(PREFIX + "async_max_tokens", 3)], 3), ([(PREFIX + "async_max_tokens", 0)], 0)])
def test_calls_of_many_tokens_are_left_alone(entries, most):
    session = open_session(model("MoE", 4), [ON, (PREFIX + "min_expert_weight", 0.9), *entries])
    for n in (1, most, most + 1, 200):
        if n == 0:
            continue
        before = session.expert_stats()[0]["skipped"]
        session.run(None, feed(n))
        assert session.expert_stats()[0]["skipped"] - before == (3 * n if n <= most else 0)


def test_dropped_experts_are_not_touched():
    """NaN and infinity in the weights of an expert that is dropped do not reach the result."""
    proto = onnx.load_model_from_string(model("MoE", 3))
    for initializer in proto.graph.initializer:
        array = numpy_helper.to_array(initializer).copy()
        array[1], array[2] = np.nan, np.inf
        initializer.CopyFrom(numpy_helper.from_array(array, initializer.name))
    logits = np.full((2, E), -9, np.float32)
    logits[:, :3] = [3, 2, 1]
    x = feed(2)["x"]
    session = open_session(proto.SerializeToString(), [ON, (PREFIX + "min_expert_weight", 0.5)])
    (y,) = session.run(None, {"x": x, "logits": logits})
    ids, w = routes(logits.astype(np.float64), None, 3, 0)
    np.testing.assert_allclose(y, outputs("MoE", x, ids[:, :1], w.sum(1, keepdims=True)), rtol=1e-4, atol=1e-5)


def test_negative_weights_are_left_alone_with_one_warning():
    log = []
    session = open_session(model("QMoE", 3, 0, True), [ON, (PREFIX + "min_expert_weight", 0.5)], log)
    x = feed(2)
    given = np.full((2, E), 0.25, np.float32)
    given[1] = -0.25
    for _ in range(2):
        (y,) = session.run(None, x | {"given": given})
    ids, w = routes(x["logits"].astype(np.float64), given.astype(np.float64), 3, 0)
    w[0] = [0.75, 0, 0]
    np.testing.assert_allclose(y, outputs("QMoE", x["x"], ids, w), rtol=1e-4, atol=1e-5)
    assert session.expert_stats()[0]["skipped"] == 2 * 2 and len(log) == 1 and "negative" in log[0]


@pytest.mark.parametrize(("k", "rank", "is_refused"), [(4, 3, False), (4, 4, True), (4, None, True), (8, None, False)])
def test_a_rank_that_no_route_has_is_refused(k, rank, is_refused):
    entries = [(PREFIX + "tail_substitution_threshold", "0.5")] + ([] if rank is None else [(PREFIX + "tail_substitution_min_rank", rank)])
    open_session(model("MoE", k), entries)  # no effect
    if not is_refused:
        open_session(model("MoE", k), [ON, *entries]).run(None, feed(2))
        return
    with pytest.raises(hotset.InvalidArgument) as error:
        open_session(model("MoE", k), [ON, *entries])
    text = str(error.value)
    assert "OFFLOAD_BAD_RANK" in text and "'layer'" in text and f"k is {k}" in text


def test_environment(monkeypatch):
    monkeypatch.setenv("ORT_QMOE_MIN_EXPERT_WEIGHT", "0.9")
    session = open_session(model("MoE", 4))
    session.run(None, feed(1))
    assert session.expert_stats()[0]["skipped"] == 3
    session = open_session(model("MoE", 4), [ON, (PREFIX + "min_expert_weight", "0")])
    session.run(None, feed(1))
    assert session.expert_stats()[0]["skipped"] == 0
