# SPDX-License-Identifier: Apache-2.0
"""Wherever experts lie, a run gives the same bits; budgets are kept or refused; faults of files are statuses."""

import threading
import time

import numpy as np
import pytest

import helpers
import hotset
from moe_files import make_layers, options

ROWS = (1, 1, 2, 7, 33, 150, 1, 1)


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """No tensor begins at a block of the disk; 24 experts of 105 KB in each of 3 layers."""
    return make_layers(tmp_path_factory.mktemp("layers"), hidden=256, inter=224, experts=24, k=3, layers=3, shift=36)


@pytest.fixture(scope="module")
def cases(layers):
    rng = np.random.default_rng(5)
    return [layers.feeds(rng, rows) for rows in ROWS]


@pytest.fixture(scope="module")
def expected(layers, cases):
    with hotset.InferenceSession(layers.path, options()) as session:
        return [session.run(None, case)[0] for case in cases]


def half(layers):
    return {"host_expert_bytes": layers.total_bytes // 2, "allow_file_backing": 1}


HOMES = {
    "huge": lambda layers: {"host_pages": "huge"},
    "map": lambda layers: {"host_pages": "map"},
    "bound for all": lambda layers: {"host_expert_bytes": layers.total_bytes, "allow_file_backing": 1},
    "huge within a bound": lambda layers: {"host_expert_bytes": 2 * layers.total_bytes, "host_pages": "huge"},
    "half": half,
    "least": lambda layers: {"host_expert_bytes": 0, "allow_file_backing": 1},
    "half, pages": lambda layers: {**half(layers), "file_io": "map"},
    "half, huge": lambda layers: {**half(layers), "host_pages": "huge"},
}
HOME_OF = {"huge": "cached", "huge within a bound": "cached", "half": "cached", "least": "cached", "half, pages": "paged"}
HOME_OF["half, huge"] = "cached"


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("threads", [1, 3])
def test_same_bits(layers, cases, expected, home, threads):
    with hotset.InferenceSession(layers.path, options(threads, **HOMES[home](layers))) as session:
        assert session.plan()["expert_store"]["home"] == HOME_OF.get(home, "mapped")
        for case, want in zip(cases, expected, strict=True):
            np.testing.assert_array_equal(session.run(None, case)[0], want)
        store = session.stats()["expert_store"]
        assert store["failures"] == 0 and store["resident_bytes"] <= store["bound_bytes"]
        if home in ("half", "least"):
            assert store["misses"] > 0 and store["evictions"] > 0 and store["bytes_read"] > 0


def test_decoding_finds_its_experts(layers):
    """Experts that fit are read once."""
    rng = np.random.default_rng(6)
    with hotset.InferenceSession(layers.path, options(**half(layers))) as session:
        for _ in range(6):
            session.run(None, layers.feeds(rng, 1, [[1, 2, 3], [4, 5, 6], [7, 8, 9]]))
        store = session.stats()["expert_store"]
    assert store["misses"] == 3 * 3 * 2 and store["hits"] == 5 * store["misses"] and store["evictions"] == 0


@pytest.mark.parametrize("home", ["half", "half, pages", "huge"])
def test_profile_fills_the_cache(layers, tmp_path, home):
    """What a profile says is hot is read before it is asked for: the first run misses nothing. Without a profile, nothing is guessed."""
    rng = np.random.default_rng(8)
    hot = [[20, 21, 22], [4, 5, 6], [7, 8, 23]]
    with hotset.InferenceSession(layers.path, options(**HOMES[home](layers))) as session:
        session.run(None, layers.feeds(rng, 1, hot))
        session.save_expert_profile(tmp_path / "profile")
        parts = 3 * 3 * 2 if home != "huge" else 3 * 24 * 2
        if home != "huge":
            assert session.stats()["expert_store"]["fills"] == 0 and session.stats()["expert_store"]["misses"] == parts
    chosen = options(**HOMES[home](layers), popularity_file=tmp_path / "profile")
    with hotset.InferenceSession(layers.path, chosen) as session:
        end = time.monotonic() + 60
        while session.stats()["expert_store"]["fills"] < parts and time.monotonic() < end:
            time.sleep(0.005)
        session.run(None, layers.feeds(rng, 1, hot))
        store = session.stats()["expert_store"]
    assert store["fills"] == parts and store["misses"] == 0 and store["evictions"] == 0
    assert store["hits"] == 3 * 3 * 2 or (home == "huge" and store["hits"] <= 3 * 3 * 2)  # 0 once plain tables serve


def test_long_prompts_leave_the_cache_alone(layers):
    """What decoding uses stays while a prompt goes through all experts."""
    rng = np.random.default_rng(7)
    hot = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    with hotset.InferenceSession(layers.path, options(**half(layers))) as session:
        for _ in range(3):
            session.run(None, layers.feeds(rng, 1, hot))
        session.run(None, layers.feeds(rng, 200))
        before = session.stats()["expert_store"]
        session.run(None, layers.feeds(rng, 1, hot))
        after = session.stats()["expert_store"]
    assert after["misses"] - before["misses"] <= 3


def test_runs_at_once(layers, cases, expected):
    failures = []
    for home in ("least", "half", "half, pages", "huge"):
        with hotset.InferenceSession(layers.path, options(**HOMES[home](layers))) as session:

            def work(first, session=session, home=home):
                for i in range(len(cases)):
                    i = (first + i) % len(cases)
                    if not np.array_equal(session.run(None, cases[i])[0], expected[i]):
                        failures.append((home, i))

            threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
    assert not failures


# ---- budgets -----------------------------------------------------------------------------------------------------------


def refusal(layers, **entries):
    with pytest.raises(hotset.BudgetTooSmall) as caught:
        hotset.InferenceSession(layers.path, options(**entries))
    text = str(caught.value)
    assert "\n" not in text and "OFFLOAD_HOST_MEMORY" in text
    return text


def test_budgets_below_what_is_needed(layers):
    text = refusal(layers, host_expert_bytes=layers.total_bytes - 1)
    assert str(layers.total_bytes) in text and "allow_file_backing=1" in text
    least = hotset.plan(layers.path, options(host_expert_bytes=0, allow_file_backing=1))["expert_store"]["minimum_bytes"]
    assert str(least) in refusal(layers, host_expert_bytes=least - 1, allow_file_backing=1)
    with hotset.InferenceSession(layers.path, options(host_expert_bytes=least, allow_file_backing=1)) as session:
        assert session.plan()["expert_store"]["bound_bytes"] == least
    with pytest.raises(hotset.BudgetTooSmall):
        hotset.plan(layers.path, options(host_expert_bytes=1, allow_file_backing=1))


def test_working_bytes(layers, cases, expected):
    """Long calls go in smaller pieces with less workspace; one row must fit."""
    longest = ROWS.index(max(ROWS))

    def workspace(session):
        rows = {row["purpose"]: row["bytes"] for row in session.memory_plan()}
        return rows["workspace of nodes"] + rows["packing scratch of nodes"]

    with hotset.InferenceSession(layers.path, options()) as session:
        session.run(None, cases[longest])
        unbounded = workspace(session)
    bound = unbounded * 2 // 3
    with hotset.InferenceSession(layers.path, options(host_working_bytes=bound)) as session:
        helpers.assert_close(session.run(None, cases[longest])[0], expected[longest])  # fewer rows at a time round in another order
        assert workspace(session) <= bound + (64 << 10)  # beside it: routes, and a pointer for each matrix
    with pytest.raises(hotset.BudgetTooSmall, match="host_working_bytes.*one row needs"):
        hotset.InferenceSession(layers.path, options(host_working_bytes=1000))


def test_plan_before_and_after(layers, cases):
    """What the plan of the file promises is what the session does."""
    chosen = options(**half(layers))
    planned = hotset.plan(layers.path, chosen)
    with hotset.InferenceSession(layers.path, chosen) as session:
        made = session.plan()
        assert made["expert_store"] == planned["expert_store"]
        rows = {row["purpose"]: row for row in session.memory_plan()}
        assert rows["expert weights"]["where"] == "file" and rows["expert weights"]["bytes"] == layers.total_bytes
        assert rows["expert cache"]["bytes"] == 0 and rows["expert cache"]["bound"] <= layers.total_bytes // 2
        for case in cases:
            session.run(None, case)
        rows = {row["purpose"]: row for row in session.memory_plan()}
        assert 0 < rows["expert cache"]["bytes"] <= rows["expert cache"]["bound"]


def test_derived_folder_stays_as_it_is(layers, cases, expected, tmp_path):
    """Every layout is computed in the file's bytes: nothing is derived, so nothing is written and no folder is made or wanted."""
    (tmp_path / "empty").mkdir()
    for folder in ("missing", "empty"):
        with hotset.InferenceSession(layers.path, options(**half(layers), derived_cache_dir=tmp_path / folder)) as session:
            np.testing.assert_array_equal(session.run(None, cases[2])[0], expected[2])
    assert [entry.name for entry in tmp_path.iterdir()] == ["empty"] and not list((tmp_path / "empty").iterdir())


def test_models_given_as_bytes(tmp_path):
    """Their experts are in memory whatever the budget: one that they do not fit is refused."""
    rng = np.random.default_rng(0)
    inputs = [np.ones((1, 64), np.float32), np.ones((1, 4), np.float32), rng.standard_normal((4, 64, 64), np.float32), None]
    inputs += [rng.standard_normal((4, 64, 64), np.float32)]
    model = helpers.node_model("MoE", inputs, {"k": 2}, domain="com.microsoft", constant=(2, 4))
    hotset.InferenceSession(model, options(host_expert_bytes=2 * 4 * 64 * 64 * 4))
    with pytest.raises(hotset.BudgetTooSmall, match="given as bytes"):
        hotset.InferenceSession(model, options(host_expert_bytes=2 * 4 * 64 * 64 * 4 - 1, allow_file_backing=1))
