# SPDX-License-Identifier: Apache-2.0
"""Usage counters, profiles and their options through a session: what is seeded, refused, saved and logged."""

import json
import logging
import os
import struct
import threading
import zlib

import numpy as np
import onnx
import pytest

import hotset
from session.test_expert_stats import E, H, chosen, feed, model

NODES = ["main#0#MoE", "main#1#MoE"]
POPULARITY = "session.moe.offload.popularity_file"
COUNTING = ("session.enable_moe_expert_counting", "1")


def open_session(entries=(), source=None, log=None, **attributes):
    options = hotset.SessionOptions()
    options.log_severity_level = 1
    options.set_log(lambda level, text: log is not None and log.append((level, text)))
    for key, value in entries:
        options.add_session_config_entry(key, str(value))
    session = hotset.InferenceSession(model(n_nodes=2, **attributes) if source is None else source, options)
    if log is not None:
        log.clear()  # of what was said about the model
    return session


def moep(rows, keys=NODES, tokens=5):
    """A profile as the format's description says."""
    data = b"MOEP" + struct.pack("<IIIQQ", 1, len(keys), 0, tokens, 0)
    for key, row in zip(keys, rows, strict=True):
        name = key.encode()
        data += struct.pack("<II", len(name), len(row)) + name + bytes(-len(name) % 4) + np.asarray(row, "<f4").tobytes()
    return data + struct.pack("<I", zlib.crc32(data))


def strp(layers, experts, ranking):
    inverse = np.full((layers, experts), -1, "<i4")
    for position, pair in enumerate(ranking):
        inverse[pair] = position
    pairs = np.asarray(ranking, "<u2").reshape(-1, 2)
    return struct.pack("<4s5I", b"STRP", 1, layers, experts, 4, len(ranking)) + pairs.tobytes() + inverse.tobytes()


def counters(session):
    return np.array([layer["counters"] for layer in session.expert_stats()])


def update(c, logits, k=2, alpha=0.9, beta=0.1):
    """The rule of the counters for one run."""
    return alpha * c + beta * chosen(logits, k) / len(logits)


@pytest.mark.parametrize(
    ("entries", "alpha", "beta"),
    [
        ([], 0.9, 0.1),
        ([("hotset.adapt_alpha", ".5")], 0.5, 0.5),
        ([COUNTING, ("session.moe_expert_counter_alpha", "0.6"), ("session.moe_expert_counter_beta", "0.4")], 0.6, 0.4),
        ([("session.enable_moe_expert_statistics", "1"), ("session.moe_expert_counter_beta", "0.05")], 0.9, 0.05),
        ([("session.moe.offload.mode", "AUTO"), ("session.moe_expert_counter_alpha", "0")], 0, 1),
    ],
)
def test_counters_follow_the_rule(entries, alpha, beta):
    session = open_session(entries)
    expected = np.zeros(E)
    for run in range(6):
        x = feed(1 + 7 * (run % 3), run)
        session.run(None, x)
        expected = update(expected, x["logits"], 2, alpha, beta)
        np.testing.assert_allclose(counters(session), [expected, expected], rtol=1e-12)
    assert session.stats()["expert_tokens"] == 2 * (1 + 8 + 15) and session.stats()["approximate"] is False


def test_a_failed_run_commits_nothing():
    session = open_session()
    session.run(None, feed(3))
    before = session.stats()
    binding = session.io_binding()
    for name, array in feed(3).items():
        binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_output("y1", hotset.OrtValue(np.zeros(3, np.float32)))
    with pytest.raises(hotset.InvalidArgument):
        session.run_with_iobinding(binding)
    terminated = hotset.RunOptions()
    terminated.terminate = True
    with pytest.raises(hotset.Cancelled):
        session.run(None, feed(3), terminated)
    after = session.stats()
    assert after["experts"] == before["experts"] and after["expert_tokens"] == 3


def test_runs_at_once_are_each_counted():
    """In which order runs are committed decides who has how much, but not what all have together."""
    n_threads, n_runs = 4, 25
    session = open_session([("hotset.adapt_alpha", "0.99")])
    feeds = [feed(1, seed) for seed in range(n_threads)]

    def work(x):
        for _ in range(n_runs):
            session.run(None, x)

    threads = [threading.Thread(target=work, args=(x,)) for x in feeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(counters(session).sum(1), 2 * (1 - 0.99 ** (n_threads * n_runs)), rtol=1e-9)
    np.testing.assert_array_equal(counters(session)[0], counters(session)[1])
    assert session.expert_stats()[0]["routes"] == (sum(chosen(x["logits"], 2) for x in feeds) * n_runs).tolist()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([("session.moe_expert_counter_alpha", "0.5")], ["session.moe_expert_counter_alpha", "session.enable_moe_expert_counting"]),
        ([("session.moe_expert_counter_beta", "0.05")], ["session.moe_expert_counter_beta"]),
        ([("session.moe_expert_counter_state_file", "a")], ["session.moe_expert_counter_state_file"]),
        ([COUNTING, ("session.moe_expert_counter_beta", "0.2")], ["sum is more than 1"]),
        ([COUNTING, ("session.moe_expert_counter_alpha", "1")], ["session.moe_expert_counter_alpha", "less than 1"]),
        ([("hotset.adapt_alpha", "1")], ["hotset.adapt_alpha", "less than 1"]),
        ([COUNTING, ("session.moe_expert_counter_alpha", "0.5"), ("hotset.adapt_alpha", "0.6")], ["two names", "0.5", "0.6"]),
        ([COUNTING, ("session.moe_expert_counter_state_file", "a"), (POPULARITY, "b")], ["two names"]),
    ],
)
def test_options_that_contradict_are_refused(entries, words):
    with pytest.raises(hotset.InvalidArgument) as error:
        open_session(entries)
    assert all(word in str(error.value) for word in words)


ALPHA, BETA, FILE = (f"session.moe_expert_counter_{name}" for name in ("alpha", "beta", "state_file"))
AS_ONNXRUNTIME = [
    *[[("session.enable_moe_expert_counting", value)] for value in ("0", "1", "", "true", " 1")],
    *[[("session.enable_moe_expert_statistics", value), (ALPHA, "0.5")] for value in ("0", "1")],
    *[[COUNTING, (ALPHA, value)] for value in ("0", "0.9", "-0", "1e-60", "1", "1.5", "-1", " .5", "+.5", "0x1p-1", "nan", "inf", "")],
    *[[COUNTING, (ALPHA, alpha), (BETA, beta)] for alpha, beta in (("1", "0"), (".6", ".4"), (".6", ".5"), ("0", "1"))],
    *[[COUNTING, (BETA, value)] for value in ("0", "0.1", "0.2", "x")],
    *[[(key, value)] for key, value in ((ALPHA, "0.5"), (BETA, "0.1"), (FILE, "x"))],
    [COUNTING, (FILE, "")],
    [COUNTING, (FILE, "no/such/file")],
]
HEADER = "moe_expert_state 1\n"
STATE_FILES = [
    "",
    HEADER,
    "moe_expert_state 1",
    "moe_expert_state 1 \n",
    "moe_expert_state 2\n",
    HEADER + "\n",
    *[
        HEADER + line + "\n"
        for line in (
            '"main" 0 MoE 2 12',
            '"main" 0 MoE 2 12\r',
            ' "main"\t0  MoE +2 +1.5 ',
            '"main" 00 MoE 02 1e300',
            '"main" 0 MoE 6 1',
            '"main" 0 QMoE 1 1',
            '"main" 2 MoE 1 1',
            '"other" 0 MoE 1 1',
            "main 0 MoE 1 1 1",
            '"main" 0 MoE 1',
            '"main" 0 MoE 1 1 1',
            '"main" 0 MoE 1 0x10',
            '"main" 0 MoE 1 1e400',
            '"main" 0 MoE 1 -1',
            '"main" 0 MoE 1 nan',
            '"main" 0 MoE 1 1\n"main" 0 MoE 1 1',
            '"main" 0 MoE 1 1\n\n"main" 0 MoE 2 1',
        )
    ],
]


def is_taken(module, entries):
    options = module.SessionOptions()
    options.log_severity_level = 4
    try:
        for key, value in entries:
            options.add_session_config_entry(key, value)
        module.InferenceSession(model(n_nodes=2), options, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


@pytest.mark.parametrize("entries", AS_ONNXRUNTIME, ids=str)
def test_onnxruntime_takes_and_refuses_the_same_options(entries):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert is_taken(hotset, entries) == is_taken(onnxruntime, entries)


@pytest.mark.parametrize("content", STATE_FILES)
def test_onnxruntime_takes_and_refuses_the_same_state_files(tmp_path, content):
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "state.txt"
    path.write_text(content, newline="")
    entries = [COUNTING, (FILE, str(path))]
    assert is_taken(hotset, entries) == is_taken(onnxruntime, entries)


@pytest.mark.parametrize("key", ["session.enable_moe_expert_counting", "session.enable_moe_expert_statistics"])
@pytest.mark.parametrize("value", ["", "true", "2", " 1"])
def test_switches_are_0_or_1(key, value):
    with pytest.raises(hotset.InvalidArgument, match=key):
        hotset.SessionOptions().add_session_config_entry(key, value)


def seeds(rows, k=2):
    rows = np.asarray(rows, float)
    return np.minimum(1, rows * k / np.maximum(rows.sum(1, keepdims=True), 1e-300))


ROWS = np.float32([[0.5, 0, 0.25, 0.125, 0, 4], [0, 0, 0, 0, 0, 0]])
TEXT = 'moe_expert_state 1\n"main" 0 MoE 0 0.5\n"main" 0 MoE 2 0.25\r\n"main" 0 MoE 3 0.125\n"main" 0 MoE 5 4\n'
RANKING = [(1, 3), (0, 0), (0, 5), (1, 0)]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (moep(ROWS), ROWS),
        (moep(ROWS[::-1], NODES[::-1]), ROWS),
        (TEXT.encode(), ROWS),
        (strp(2, E, RANKING), [[0.75, 0, 0, 0, 0, 0.5], [0.25, 0, 0, 1, 0, 0]]),
    ],
    ids=["MOEP", "MOEP in another order", "text", "STRP"],
)
def test_profiles_seed_the_counters(tmp_path, content, rows):
    path = tmp_path / "profile"
    path.write_bytes(content)
    session = open_session([(POPULARITY, path)])
    np.testing.assert_allclose(counters(session), seeds(rows), rtol=1e-6)
    assert session.expert_stats()[0]["routes_total"] == 0
    x = feed(1)
    expected = update(counters(session)[0], x["logits"])
    session.run(None, x)
    np.testing.assert_allclose(counters(session)[0], expected, rtol=1e-12)
    alias = open_session([COUNTING, ("session.moe_expert_counter_state_file", path)])
    np.testing.assert_allclose(counters(alias), seeds(rows), rtol=1e-6)


def test_node_names_do_not_depend_on_the_rewriting_of_the_graph(tmp_path):
    """A node that is fused away before the experts must not rename them: the same file serves both."""
    proto = onnx.load_model_from_string(model(n_nodes=2))
    proto.graph.node.insert(0, onnx.helper.make_node("Identity", ["x"], ["unused"]))
    source = proto.SerializeToString()
    path = tmp_path / "profile"
    path.write_bytes(moep(ROWS, ["main#1#MoE", "main#2#MoE"]))
    for fuse in "01":
        np.testing.assert_allclose(counters(open_session([(POPULARITY, path), ("hotset.fuse", fuse)], source)), seeds(ROWS), rtol=1e-6)


def test_names_of_nodes_in_branches(tmp_path):
    """scope/<index of the If>/<length>:<attribute>, and the node's index in its branch, at any depth."""
    proto = onnx.load_model_from_string(model(n_nodes=1))
    (node,) = proto.graph.node
    value = onnx.helper.make_tensor_value_info("y0", onnx.TensorProto.FLOAT, ["n", H])

    def branch(name, nodes):
        return onnx.helper.make_graph(nodes, name, [], [value])

    def renamed(name, output):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name, copy.output[:] = name, [output]
        return copy

    def choose(then_nodes, else_nodes):
        return onnx.helper.make_node("If", ["flag"], ["y0"], then_branch=branch("then", then_nodes), else_branch=branch("else", else_nodes))

    inner = choose([renamed("a", "y0")], [onnx.helper.make_node("Identity", ["x"], ["y0"])])
    twice = [renamed("b", "b"), onnx.helper.make_node("Neg", ["b"], ["y0"])]
    del proto.graph.node[:]
    proto.graph.node.extend([onnx.helper.make_node("Neg", ["x"], ["unused"]), choose([inner], twice)])
    proto.graph.input.append(onnx.helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []))
    keys = ["main/1/11:then_branch/0/11:then_branch#0#MoE", "main/1/11:else_branch#0#MoE"]
    path = tmp_path / "profile"
    path.write_bytes(moep(ROWS, keys))
    session = open_session([(POPULARITY, path)], proto.SerializeToString())
    names = {layer["node"]: layer["counters"] for layer in session.expert_stats()}
    np.testing.assert_allclose([names["a"], names["b"]], seeds(ROWS), rtol=1e-6)
    x = feed(1)
    session.run(None, x | {"flag": np.array(False)})
    names = {layer["node"]: layer["counters"] for layer in session.expert_stats()}
    np.testing.assert_allclose(names["a"], seeds(ROWS)[0], rtol=1e-6)  # a layer that did not run keeps its counters
    np.testing.assert_allclose(names["b"], update(0, x["logits"]), rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "begins with"),
        (b"GGUF....", "'MOEP', 'STRP' or 'moe_expert_state'"),
        (moep(ROWS)[:-1], "checksum"),
        (moep(ROWS[:1], NODES[:1]), "1 nodes with experts, this model has 2"),
        (moep(ROWS, [NODES[0], "main#5#MoE"]), "another model: this one has no node 'main#5#MoE'"),
        (moep(ROWS, [NODES[0], "main#1#QMoE"]), "no node 'main#1#QMoE'"),
        (moep(ROWS[:, :5]), "another model: it has 5 experts for 'main#0#MoE' with 6 experts"),
        (moep([ROWS[0], [np.nan] * E]), "expert 0 of node 'main#1#MoE' has popularity nan"),
        (TEXT.encode() + b'"main" 7 MoE 0 1\n', "line 6: unknown node 'main' 7"),
        (b"moe_expert_state 2\n", "line 1: header"),
        (strp(3, E, [(0, 0)]), "3 layers of 6 experts, but the model has 2 nodes"),
        (strp(2, 7, [(0, 0)]), "2 layers of 7 experts, but the model has 'main#0#MoE' with 6"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(tmp_path, content, word):
    path = tmp_path / "profile.bin"
    path.write_bytes(content)
    with pytest.raises(hotset.InvalidArgument) as error:
        open_session([(POPULARITY, path)])
    text = str(error.value)
    assert "OFFLOAD_PROFILE_INVALID" in text and str(path) in text and word in text and "\n" not in text


def test_a_profile_that_is_not_there(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(hotset.NotFound, match="OFFLOAD_PROFILE_INVALID"):
            open_session([(POPULARITY, path)])


def test_paths_begin_at_the_folder_of_the_model(tmp_path):
    (tmp_path / "model.onnx").write_bytes(model(n_nodes=2))
    (tmp_path / "known.bin").write_bytes(moep(ROWS))
    entries = [(POPULARITY, "known.bin"), ("hotset.popularity_save_file", "saved.bin")]
    with open_session(entries, tmp_path / "model.onnx") as session:
        np.testing.assert_allclose(counters(session), seeds(ROWS), rtol=1e-6)
        options = hotset.SessionOptions()
        options.add_session_config_entry(POPULARITY, "absent.bin")
        with pytest.raises(hotset.NotFound):
            hotset.plan(tmp_path / "model.onnx", options)
        session.run(None, feed(2))
        expected = counters(session)
    del session
    again = open_session([(POPULARITY, "saved.bin")], tmp_path / "model.onnx")
    np.testing.assert_allclose(counters(again), seeds(expected), rtol=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["known.bin", "model.onnx", "saved.bin"]


def test_counters_are_saved_when_a_session_ends(tmp_path):
    path = tmp_path / "counters.bin"
    session = open_session([("hotset.popularity_save_file", path)])
    session.close()
    assert not path.exists()  # nothing to save
    session = open_session([("hotset.popularity_save_file", path)])
    for seed in range(4):
        session.run(None, feed(3, seed))
    rows = counters(session)
    session.close()
    assert path.read_bytes() == moep(np.float32(rows), tokens=12)
    log = []
    session = open_session([("hotset.popularity_save_file", tmp_path / "no" / "folder.bin")], log=log)
    session.run(None, feed(1))
    session.close()
    assert len(log) == 1 and log[0][0] == 2 and "hotset.popularity_save_file" in log[0][1]


def test_saved_profiles(tmp_path):
    session = open_session()
    path = tmp_path / "expert-profile.bin"
    with pytest.raises(hotset.InvalidState, match="nothing to save"):
        session.save_expert_profile(path)
    routes = np.zeros(E)
    for seed in range(3):
        x = feed(4, seed)
        session.run(None, x)
        routes += chosen(x["logits"], 2)
        session.save_expert_profile(path)
    assert path.read_bytes() == moep(np.float32([routes / 12] * 2), tokens=12)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    np.testing.assert_allclose(counters(open_session([(POPULARITY, path)]))[0], routes / 12, rtol=1e-6)  # routes of a token: k together
    with pytest.raises(hotset.NotFound, match="no/such"):
        session.save_expert_profile(tmp_path / "no/such/profile.bin")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
def test_only_regular_files_are_replaced(tmp_path):
    session = open_session()
    session.run(None, feed(4))
    pipe, target, link = tmp_path / "pipe", tmp_path / "target.bin", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(target.name)
    for path in (pipe, tmp_path):
        with pytest.raises(hotset.Error, match="not a regular file"):
            session.save_expert_profile(path)
    assert pipe.is_fifo()
    for _ in range(2):  # a link to nothing, then to a file
        session.save_expert_profile(link)
        assert link.is_symlink() and target.read_bytes()[:4] == b"MOEP"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "pipe", "target.bin"]


def test_statistics_are_logged(caplog):
    log = []
    session = open_session([("session.enable_moe_expert_statistics", "1")], log=log)
    x = feed(5)
    session.run(None, x)
    expected = {str(e): int(n) for e, n in enumerate(chosen(x["logits"], 2)) if n}
    assert [level for level, _ in log] == [1, 1]
    for index, (_, text) in enumerate(log):
        record = json.loads(text)
        assert record["event"] == "moe_expert_counters" and record["node_index"] == index and record["scope"] == "main"
        assert (record["op_type"], record["node"], record["rows"]) == ("MoE", f"layer{index}", 5) and record["routes"] == expected
    log.clear()
    terminated = hotset.RunOptions()
    terminated.terminate = True
    with pytest.raises(hotset.Cancelled):
        session.run(None, x, terminated)
    assert not log
    quiet = open_session(log=log)
    quiet.run(None, x)
    assert not log
    with caplog.at_level(logging.WARNING, "hotset"):  # a level above info asks for no records
        options = hotset.SessionOptions()
        options.add_session_config_entry("session.enable_moe_expert_statistics", "1")
        options.log_severity_level = 2
        hotset.InferenceSession(model(), options).run(None, x)
    assert not caplog.records


def test_logged_statistics_have_a_bound():
    log = []
    session = open_session([("session.enable_moe_expert_statistics", "1")], model(n_nodes=1027), log)
    session.run(None, feed(1))
    assert len(log) == 1025 and [level for level, _ in log[-2:]] == [1, 2]
    assert json.loads(log[-1][1])["event"] == "moe_expert_counters_truncated"
