# SPDX-License-Identifier: Apache-2.0
"""InferenceSession: description, run, hints, lifetimes."""

import gc
import threading

import numpy as np
import pytest

import hotset


@pytest.fixture
def session(add_path):
    with hotset.InferenceSession(add_path) as session:
        yield session


X = np.arange(6, dtype=np.float32).reshape(1, 2, 3)


def test_description(session):
    (x,) = session.get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["n", None, 3])
    assert repr(x) == "NodeArg(name='x', type='tensor(float)', shape=['n', None, 3])"
    assert [y.name for y in session.get_outputs()] == ["y", "z"]
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_overridable_initializers() == []


def test_metadata(session):
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.version, meta.domain) == ("tests", 3, "example.org")
    assert (meta.description, meta.graph_name, meta.graph_description) == ("a model", "graph", "a graph")
    assert meta.custom_metadata_map == {"key": "value"}
    assert meta.opsets == {"ai.onnx": 17}


def test_run(session):
    y, z = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, X + np.float32([1, 2, 3]))
    np.testing.assert_array_equal(z, X * X)
    (z,) = session.run(["z"], {"x": X})
    np.testing.assert_array_equal(z, X * X)
    z, y = session.run(["z", "y"], {"x": X[:, :1]})
    assert y.shape == z.shape == (1, 1, 3)


def test_no_rows(session):
    y, z = session.run(None, {"x": np.empty((0, 4, 3), np.float32)})
    assert y.shape == z.shape == (0, 4, 3)


def test_model_as_bytes(add_model):
    for model in (add_model, bytearray(add_model), memoryview(add_model)):
        session = hotset.InferenceSession(model)
        del model
        np.testing.assert_array_equal(session.run(["z"], {"x": X})[0], X * X)


def test_results_own_their_memory(add_path):
    session = hotset.InferenceSession(add_path)
    y, z = session.run(None, {"x": X})
    rows = y[0, 1:]
    expected = rows.copy()
    assert y.flags.writeable and y.flags.c_contiguous
    session.close()
    del session, y
    gc.collect()
    z[...] = 7
    np.testing.assert_array_equal(rows, expected)


def test_reads_inputs_in_place(session):
    x = X.copy()
    x.flags.writeable = False
    session.run(None, {"x": x})


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (X.tolist(), "numpy.asarray"),
        (X.astype(np.float64), "astype('float32')"),
        (np.asfortranarray(np.ones((2, 2, 3), np.float32)), "numpy.ascontiguousarray"),
        (np.ones((2, 2, 6), np.float32)[..., ::2], "numpy.ascontiguousarray"),
        (X.astype(">f4"), "astype('float32')"),
        (np.array(["a"]), "not a tensor type"),
    ],
)
def test_conversions_are_refused_with_a_hint(session, value, hint):
    with pytest.raises(hotset.InvalidArgument) as error:
        session.run(None, {"x": value})
    assert hint in str(error.value) and isinstance(error.value, ValueError)


def test_wrong_calls_name_what_is_wrong(session):
    for feed, word in (
        ({}, "x"),
        ({"x": X, "q": X}, "q"),
        ({"x": np.ones((2, 3), np.float32)}, "x"),
        ({"x": np.ones((1, 1, 4), np.float32)}, "x"),
    ):
        with pytest.raises(hotset.InvalidArgument, match=word):
            session.run(None, feed)
    with pytest.raises(hotset.InvalidArgument, match="nowhere"):
        session.run(["nowhere"], {"x": X})
    with pytest.raises(hotset.InvalidArgument, match="int"):
        session.run(None, {1: X})
    session.run(None, {"x": X})  # still usable


def test_file_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.onnx") as error:
        hotset.InferenceSession(tmp_path / "absent.onnx")
    assert isinstance(error.value, hotset.Error)
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\xff" * 100)
    with pytest.raises(hotset.InvalidModel):
        hotset.InferenceSession(damaged)
    with pytest.raises(ValueError, match="NUL"):
        hotset.InferenceSession("a\0b")


def test_closed(add_path):
    session = hotset.InferenceSession(add_path)
    session.close()
    session.close()
    for use in (lambda: session.run(None, {"x": X}), session.plan, session.io_binding, session.get_modelmeta):
        with pytest.raises(hotset.InvalidState, match="closed"):
            use()


def test_threads_share_a_session(session):
    failures = []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal((seed + 1, 5, 3)).astype(np.float32)
        for _ in range(50):
            if not np.array_equal(session.run(["z"], {"x": x})[0], x * x):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_close_while_running(add_path):
    """Closing takes effect when the last running call has returned."""
    session = hotset.InferenceSession(add_path)
    x = np.ones((64, 1000, 3), np.float32)
    stopped = []

    def work():
        try:
            while True:
                session.run(None, {"x": x})
        except hotset.InvalidState:
            stopped.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    session.run(None, {"x": x})
    session.close()
    thread.join(600)
    assert stopped


def test_cancel(session):
    run_options = hotset.RunOptions()
    run_options.terminate = True
    with pytest.raises(hotset.Cancelled):
        session.run(None, {"x": X}, run_options)
    run_options.terminate = False
    session.run(None, {"x": X}, run_options)


def test_reports(session):
    session.run(None, {"x": X})
    assert {"purpose", "where", "bytes", "bound"} <= session.memory_plan()[0].keys()
    assert session.stats()["runs"] == 1
    assert session.expert_stats() == []
    assert session.trace() == []


def test_plan_of_a_file(add_path):
    report = hotset.plan(add_path)
    assert {"memory", "nodes", "experts", "options"} <= report.keys()


def test_doctor():
    assert "cpu" in str(hotset.doctor()).lower()


def test_providers(add_path, caplog):
    with pytest.raises(hotset.InvalidArgument, match="Nonsense"):
        hotset.InferenceSession(add_path, providers=["NonsenseProvider"])
    if "CUDAExecutionProvider" not in hotset.get_available_providers():
        session = hotset.InferenceSession(add_path, providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"])
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert "CUDAExecutionProvider is not available" in caplog.text
