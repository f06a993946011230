# SPDX-License-Identifier: Apache-2.0
"""Approximate routing with a bounded cache of experts: those in it are at hand, others are cold."""

import numpy as np
import pytest

import hotset
from moe_files import PREFIX, make_layers, options

K, EXPERTS = 3, 24


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    return make_layers(tmp_path_factory.mktemp("layers"), hidden=256, inter=96, experts=EXPERTS, k=K, layers=1)


@pytest.fixture(scope="module")
def x(layers):
    return np.random.default_rng(1).standard_normal((1, layers.hidden)).astype(np.float32)


def open_session(layers, threshold=0.0, rank=2, **entries):
    made = options(host_expert_bytes=layers.total_bytes // 2, allow_file_backing=1, **entries)
    made.add_session_config_entry("hotset.approximate_on_cpu", "1")
    made.add_session_config_entry(PREFIX + "tail_substitution_threshold", str(threshold))
    made.add_session_config_entry(PREFIX + "tail_substitution_min_rank", str(rank))
    session = hotset.InferenceSession(layers.path, made)
    assert session.plan()["expert_store"]["home"] == "cached"
    return session


def exact(layers, x, logits):
    with hotset.InferenceSession(layers.path, options()) as session:
        return session.run(None, {"x": x, "r0": logits})[0]


def routed(**chosen):
    """Logits of a row: e0=5 gives expert 0 the logit 5; all others are far below."""
    logits = np.full((1, EXPERTS), -60, np.float32)
    for name, logit in chosen.items():
        logits[0, int(name[1:])] = logit
    return logits


def changes(session):
    (layer,) = session.expert_stats()
    return layer["skipped"], layer["substituted"]


def test_an_expert_at_hand_replaces_a_cold_one(layers, x):
    with open_session(layers, threshold=0.5) as session:

        def run(logits):
            return session.run(None, {"x": x, "r0": logits})[0]

        warm = routed(e0=5, e1=4, e2=3)
        np.testing.assert_array_equal(run(warm), exact(layers, x, warm))  # nothing is at hand yet
        assert changes(session) == (0, 0)
        close = routed(e0=5, e1=4, e7=3, e2=2.8)
        np.testing.assert_allclose(run(close), exact(layers, x, routed(e0=5, e1=4, e2=2.8)), rtol=1e-4, atol=1e-6)
        assert changes(session) == (0, 1) and session.expert_stats()[0]["routes"][7] == 1  # as the router chose
        far = routed(e0=5, e1=4, e7=3, e2=2.4)
        np.testing.assert_array_equal(run(far), exact(layers, x, far))
        assert changes(session) == (0, 1)
        np.testing.assert_array_equal(run(close), exact(layers, x, close))  # now 7 is at hand itself
        assert changes(session) == (0, 1)
        early = routed(e0=5, e9=4, e1=3.9, e2=3.8)
        np.testing.assert_array_equal(run(early), exact(layers, x, early))  # before the first rank that may be replaced
        assert changes(session) == (0, 1)


def test_only_cold_experts_are_dropped(layers, x):
    warm, mixed = routed(e0=5, e1=4, e2=3), routed(e0=5, e1=3, e9=2)
    for cold_only, dropped, left in (("1", 1, routed(e0=5, e1=3)), ("0", 2, routed(e0=5))):
        with open_session(layers, min_expert_weight=0.0, skip_tail_cold_only=cold_only) as session:
            session.run(None, {"x": x, "r0": warm})
            assert changes(session) == (0, 0)
        with open_session(layers, min_expert_weight=0.4, skip_tail_cold_only=cold_only) as session:
            for expert in range(3):  # each alone, and first of its token, so that it is never dropped
                session.run(None, {"x": x, "r0": routed(**{f"e{expert}": 9, "e20": -50, "e21": -50})})
            before = changes(session)[0]
            y = session.run(None, {"x": x, "r0": mixed})[0]
            assert changes(session) == (before + dropped, 0)
            np.testing.assert_allclose(y, exact(layers, x, left), rtol=1e-4, atol=1e-6)
