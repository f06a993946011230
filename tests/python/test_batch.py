# SPDX-License-Identifier: Apache-2.0
"""Batches of prompts of different lengths: every sequence is what it is alone."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import hotset
from hotset.generator import model_folder

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
WINDOW = 128
LENGTHS = [1, 2, 15, 16, 60, 127, 128, 129, 250, 384]


def alone(generator, prompts, n, **settings):
    return [list(generator.stream_ids(prompt, n, **settings)) for prompt in prompts]


def batched(generator, prompts, n, **settings):
    tokens = [[] for _ in prompts]
    for index, token in generator.stream_batch_ids(prompts, n, **settings):
        tokens[index].append(token)
    return tokens


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(7)
    return [rng.integers(1, 4096, n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module", params=["in place", "growing", "slack"])
def generator(request, tmp_path_factory):
    """Exact activations; full-length caches in place, growing, and a windowed cache longer than its window."""
    source = model_folder("demo")
    folder = tmp_path_factory.mktemp("batch")
    document = json.loads((source / "genai_config.json").read_text())
    if request.param == "growing":
        document["search"]["past_present_share_buffer"] = False
    if request.param == "slack":
        document["model"]["decoder"]["sliding_window"]["cache_slack"] = 37
    (folder / "genai_config.json").write_text(json.dumps(document))
    for name in ("model.onnx", "model.onnx.data", "tokenizer.json"):
        shutil.copy(source / name, folder / name)
    options = hotset.SessionOptions()
    options.add_session_config_entry("hotset.cpu_activation", "float")
    with hotset.Generator(folder, options, max_length=640) as generator:
        yield generator


def test_as_alone(generator, prompts):
    expected = alone(generator, prompts, 24)
    assert batched(generator, prompts, 24) == expected
    assert batched(generator, prompts[::-1], 24) == expected[::-1]
    assert [stats.prompt_tokens for stats in generator.batch_stats] == LENGTHS[::-1]
    assert all(stats.new_tokens >= len(tokens) for stats, tokens in zip(generator.batch_stats, expected[::-1], strict=True))


def test_short_prompts(generator, prompts):
    """No prompt is long enough to be split: logits come from the rows of the padded run."""
    assert batched(generator, prompts[:3], 12) == alone(generator, prompts[:3], 12)


def test_sequences_of_different_ends(generator, prompts):
    """The batch shrinks from both ends and in the middle, over the window."""
    limits = [140, 3, 20, 1, 150, 9, 40, 2, 30, 5]
    expected = [list(generator.stream_ids(prompt, limit)) for prompt, limit in zip(prompts, limits, strict=True)]
    assert batched(generator, prompts, limits) == expected
    expected = [list(generator.stream_ids(prompt, limit)) for prompt, limit in zip(prompts, limits[::-1], strict=True)]
    assert batched(generator, prompts, limits[::-1]) == expected


@pytest.mark.parametrize("n", [1, 5])
def test_equal_lengths(generator, n):
    same = [[i + 1] * n for i in range(4)]
    assert batched(generator, same, 10) == alone(generator, same, 10)


def test_window_wraps(generator):
    same = [list(range(1, 1 + n)) for n in (1, 100, 131, 3 * WINDOW)]
    assert batched(generator, same, 150) == alone(generator, same, 150)


@pytest.fixture(scope="module")
def demo_generator():
    with hotset.Generator("demo") as generator:
        yield generator


def test_text(demo_generator):
    prompts = ["In the beginning", "import os\n", "a", "Caf\u00e9 " * 12]
    texts = [demo_generator.generate(prompt, 40) for prompt in prompts]
    assert demo_generator.generate_batch(prompts, 40) == texts
    stop = texts[0][20:24]
    expected = [demo_generator.generate(prompt, 40, stop=stop) for prompt in prompts]
    assert demo_generator.generate_batch(prompts, 40, stop=stop) == expected
    assert demo_generator.batch_stats[0].finish_reason == "stop" and demo_generator.batch_stats[0].new_tokens < 40


@pytest.fixture(scope="module")
def exact_generator():
    """Sums of a row depend on the number of rows in their last bits; with int8 activations the next layer may round to another code."""
    options = hotset.SessionOptions()
    options.add_session_config_entry("hotset.cpu_activation", "float")
    with hotset.Generator("demo", options) as generator:
        yield generator


def test_settings_of_each_sequence(exact_generator):
    prompts = ["In the beginning"] * 4
    together = exact_generator.generate_batch(prompts, 20, temperature=[0, 1.5, 1.5, 1.5], top_k=0, seed=[1, 7, 7, 8])
    seeds, temperatures = (1, 7, 7, 8), (0, 1.5, 1.5, 1.5)
    assert together == [
        exact_generator.generate(prompts[0], 20, temperature=t, top_k=0, seed=s) for t, s in zip(temperatures, seeds, strict=True)
    ]
    assert together[1] == together[2] != together[3]
    spread = exact_generator.generate_batch(prompts, 20, temperature=1.5, top_k=0, seed=7)
    assert spread[:2] == [together[1], together[3]] and len(set(spread)) == 4
    assert exact_generator.generate_batch(prompts, 20, repetition_penalty=1.3)[3] == exact_generator.generate(
        prompts[0], 20, repetition_penalty=1.3
    )


def test_wrong_calls(demo_generator):
    for arguments, word in (
        (("text",), "list of prompts"),
        ((5,), "list of prompts"),
        (([5],), "prompt"),
        ((["a", "b"], [1]), "max_new_tokens has 1 values for 2"),
        ((["a"], 0), "max_new_tokens"),
    ):
        with pytest.raises(hotset.InvalidArgument, match=word):
            demo_generator.stream_batch(*arguments)
    for settings in ({"temperature": [1.0]}, {"temperature": -1}, {"seed": -1}, {"top_p": [0.5, 2]}):
        with pytest.raises(hotset.InvalidArgument):
            demo_generator.stream_batch(["a", "b"], **settings)
    assert demo_generator.generate_batch([]) == []


def test_one_generation_at_a_time(demo_generator):
    batch = demo_generator.stream_batch_ids(["a", "b"], 9)
    next(batch)
    assert demo_generator.generate("a", 2)
    with pytest.raises(hotset.InvalidState, match="another generation"):
        next(batch)
    batch = demo_generator.stream_batch(["a", "b"], 900)
    next(batch)
    demo_generator.cancel()
    with pytest.raises(hotset.Cancelled):
        list(batch)
    assert len(demo_generator.generate_batch(["a", "b"], 2)) == 2


def test_graphs_that_read_the_padding(demo_generator, monkeypatch):
    from hotset import batch_decoding

    monkeypatch.setattr(batch_decoding, "_MIX_PADDING", ("GroupQueryAttention",))
    with pytest.raises(NotImplementedError, match="different lengths"):
        demo_generator.generate_batch([[1], [1, 2]], 2)
    assert len(demo_generator.generate_batch([[1, 3], [1, 2]], 2)) == 2


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/genai_config.json")))
def test_models_of_exporters(name):
    options = hotset.SessionOptions()
    options.add_session_config_entry("hotset.cpu_activation", "float")
    with hotset.Generator(GOLDEN / name, options, max_length=64) as generator:
        rng = np.random.default_rng(1)
        prompts = [rng.integers(1, generator.config.vocab_size, n).tolist() for n in (1, 3, 7, 16, 30)]
        limits = [20, 3, 9, 30, 5]
        expected = [list(generator.stream_ids(prompt, limit)) for prompt, limit in zip(prompts, limits, strict=True)]
        assert batched(generator, prompts, limits) == expected
