# SPDX-License-Identifier: Apache-2.0
"""One program, two imports: everything here must do the same under onnxruntime and hotset."""

import numpy as np
import pytest

import hotset

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(params=["onnxruntime", "hotset"])
def ort(request):
    return {"onnxruntime": onnxruntime, "hotset": hotset}[request.param]


X = np.arange(6, dtype=np.float32).reshape(1, 2, 3)


def test_session(ort, add_model, add_path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.enable_mem_pattern = True
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    for model in (add_model, str(add_path), add_path):
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        y, z = session.run(None, {"x": X})
        np.testing.assert_array_equal(y, X + np.float32([1, 2, 3]))
        np.testing.assert_array_equal(session.run(["z"], {"x": X}, ort.RunOptions())[0], z)
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert ort.InferenceSession(add_model, sess_options=options, providers=[("CPUExecutionProvider", {})]).get_inputs()


def test_description(ort, add_model):
    session = ort.InferenceSession(add_model)
    assert [str(arg) for arg in session.get_inputs()] == ["NodeArg(name='x', type='tensor(float)', shape=['n', None, 3])"]
    assert [(arg.name, arg.type, arg.shape) for arg in session.get_outputs()] == [(n, "tensor(float)", ["n", None, 3]) for n in "yz"]
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.version, meta.domain, meta.description) == ("tests", 3, "example.org", "a model")
    assert (meta.graph_name, meta.graph_description, meta.custom_metadata_map) == ("graph", "a graph", {"key": "value"})


def test_demo_description_is_the_same(demo):
    theirs, ours = (module.InferenceSession(demo / "model.onnx") for module in (onnxruntime, hotset))
    assert [str(arg) for arg in ours.get_inputs()] == [str(arg) for arg in theirs.get_inputs()]
    assert [str(arg) for arg in ours.get_outputs()] == [str(arg) for arg in theirs.get_outputs()]


def test_an_output_asked_for_twice(ort, add_model):
    y, z, again = ort.InferenceSession(add_model).run(["y", "z", "y"], {"x": X})
    np.testing.assert_array_equal(y, X + np.float32([1, 2, 3]))
    np.testing.assert_array_equal(z, X * X)
    np.testing.assert_array_equal(again, y)


def decoder_feeds(session, ids, mask, past):
    """Feeds of the demo model; growing caches have `past` rows of random values."""
    rng = np.random.default_rng(0)
    feeds = {"input_ids": np.array([ids]), "attention_mask": np.array([mask])}
    for arg in session.get_inputs():
        if arg.name.startswith("past"):
            rows = 128 if "sliding" in arg.shape[2] else past
            feeds[arg.name] = rng.normal(size=(1, 2, rows, 64)).astype(np.float32)
    return feeds


@pytest.mark.parametrize("mask", [[0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1], [0, 4, 0, 0, 0, 0]], ids=str)
def test_masks_count_by_their_row_sums(ort, demo, mask):
    """All that an exported graph reads of attention_mask is row sums and width: padding is on the right, wherever the ones are."""
    session = ort.InferenceSession(demo / "model.onnx")
    want, got = (session.run(["logits"], decoder_feeds(session, [5], m, 5))[0] for m in ([1, 1, 1, 1, 0, 0], mask))
    np.testing.assert_array_equal(got, want)


def test_a_padded_prompt_is_padded_on_the_right(demo):
    """onnxruntime refuses it where caches are windowed; here its valid rows are those of the prompt alone."""
    session = hotset.InferenceSession(demo / "model.onnx")
    want = session.run(["logits"], decoder_feeds(session, [5, 6], [1, 1], 0))[0]
    for mask in ([1, 1, 0], [0, 1, 1]):
        got = session.run(["logits"], decoder_feeds(session, [5, 6, 7], mask, 0))[0]
        np.testing.assert_allclose(got[:, :2], want, atol=1e-4)
    for mask, refusal in (([0, 0, 0], "seqlens_k"), ([2, 1, 1], "seqlens_k"), ([1, 1], "total_sequence_length")):
        with pytest.raises(hotset.InvalidArgument, match=refusal):
            session.run(["logits"], decoder_feeds(session, [5, 6, 7], mask, 0))


def test_errors(ort, add_model):
    session = ort.InferenceSession(add_model)
    with pytest.raises(ValueError, match="x"):
        session.run(None, {})
    for feed in ({"x": X[0]}, {"x": X.astype(np.float64)}, {"x": X, "q": X}):
        with pytest.raises(Exception, match="x|q"):
            session.run(None, feed)
    with pytest.raises(Exception, match="absent.onnx"):
        ort.InferenceSession("absent.onnx")


def test_values_and_bindings(ort, add_model):
    session = ort.InferenceSession(add_model, providers=["CPUExecutionProvider"])
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert (value.shape(), value.data_type(), value.device_name(), value.is_tensor()) == ([1, 2, 3], "tensor(float)", "cpu", True)
    (z,) = session.run_with_ort_values(["z"], {"x": value})
    np.testing.assert_array_equal(z.numpy(), X * X)
    out = ort.OrtValue.ortvalue_from_shape_and_type([1, 2, 3], np.float32, "cpu", 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("z", out)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out.numpy(), X * X)
    z, y = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(y, X + np.float32([1, 2, 3]))
    assert [o.shape() for o in binding.get_outputs()] == [[1, 2, 3]] * 2
    y = np.empty_like(X)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y, X + np.float32([1, 2, 3]))


def test_cancelled_run(ort, add_model):
    session = ort.InferenceSession(add_model)
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(Exception):  # noqa: B017  the classes differ
        session.run(None, {"x": X}, options)
    options.terminate = False
    session.run(None, {"x": X}, options)
