# SPDX-License-Identifier: Apache-2.0
"""Generator: the demo model's text, lengths, windows, settings, errors."""

import json
import re
import shutil
import threading

import numpy as np
import pytest

import hotset
from hotset.decoding import DecodeLoop
from hotset.genai_config import read_genai_config
from hotset.tensor import copy_out


@pytest.fixture(scope="module")
def generator():
    with hotset.Generator("demo") as generator:
        yield generator


def variant(demo, folder, change):
    """A copy of the demo folder with a changed genai_config.json; the model files are linked."""
    folder.mkdir()
    for file in demo.iterdir():
        if file.name == "genai_config.json":
            document = json.loads(file.read_text())
            change(document)
            (folder / file.name).write_text(json.dumps(document))
        elif file.is_file():
            shutil.copyfile(file, folder / file.name) if file.suffix == ".json" else (folder / file.name).symlink_to(file)
    return folder


def test_greedy_tokens_are_those_of_the_reference(generator, reference, certain_tokens):
    for prompt in (reference["prompt_ids"], reference["prompt_ids"].tolist()):
        assert list(generator.stream_ids(prompt, len(certain_tokens))) == certain_tokens


def test_exact_greedy_tokens(demo, exact, reference, exact_tokens):
    with hotset.Generator(demo, exact) as generator:
        assert list(generator.stream_ids(reference["prompt_ids"], len(exact_tokens))) == exact_tokens


def test_exact_logits(demo, exact, reference):
    """The loop's own logits of the last position, step for step on the reference's tokens."""
    with hotset.Generator(demo, exact) as generator:
        loop = DecodeLoop(generator.session, generator.config, 64, generator.run_options)
        loop.start(reference["prompt_ids"])
        steps = [("f32_logits_prefill", None), *((f"f32_logits_step_{i}", token) for i, token in enumerate(reference["generated_ids"]))]
        for name, token in steps:
            if token is not None:
                loop.step(token)
            expected = reference[name][:, -1:]
            logits = copy_out(loop.logits)
            assert logits.shape == expected.shape
            assert np.abs(logits - expected).max() <= 2e-4 * np.abs(expected).max(), name


def test_exact_tokens_over_the_window(exact, demo):
    """200 tokens pass the window of 128; in-place caches and caches carried by hand give the same tokens."""
    with hotset.Generator(demo, exact) as generator:
        prompt = generator.encode("In the beginning God created the heaven and the earth.")
        tokens = list(generator.stream_ids(prompt, 200))
        ids, new, expected = list(prompt), prompt, []
        feed = {}
        for arg in generator.session.get_inputs():
            if arg.name.startswith("past_key_values."):
                feed[arg.name] = np.zeros((1, 2, 128 if "sliding" in arg.shape[2] else 0, 64), np.float32)
        names = [arg.name for arg in generator.session.get_outputs()]
        while len(expected) < len(tokens):
            feed |= {"input_ids": np.array([new]), "attention_mask": np.ones((1, len(ids)), np.int64)}
            results = dict(zip(names, generator.session.run(None, feed), strict=True))
            new = [int(results.pop("logits")[0, -1].argmax())]
            expected += new
            ids += new
            feed |= {name.replace("present.", "past_key_values."): value for name, value in results.items()}
        assert tokens == expected[: len(tokens)]


@pytest.mark.parametrize("n_prompt", [1, 60, 127, 128, 129, 300])
def test_prompt_lengths_around_the_window(exact, demo, n_prompt):
    """A prompt at once, and its last tokens fed one by one, continue alike."""
    rng = np.random.default_rng(n_prompt)
    ids = rng.integers(1, 4096, n_prompt).tolist()
    with hotset.Generator(demo, exact) as generator:
        at_once = list(generator.stream_ids(ids, 12))
        head = list(generator.stream_ids(ids, 4))
        tail = list(generator.stream_ids(ids + head, 8))
        assert at_once == (head + tail)[: len(at_once)]


def test_max_length_below_the_window(demo, generator):
    expected = list(generator.stream_ids("In the beginning", 20))
    with hotset.Generator(demo, max_length=40) as short:
        assert list(short.stream_ids("In the beginning", 20)) == expected


def test_max_length_ends_the_text(demo):
    with hotset.Generator(demo, max_length=10) as generator:
        n_prompt = len(generator.encode("In the beginning"))
        tokens = list(generator.stream_ids("In the beginning"))
        assert len(tokens) == 10 - n_prompt
        assert generator.stats.finish_reason == "length"
        assert generator.stats.prompt_tokens == n_prompt
        with pytest.raises(hotset.InvalidArgument, match=r"prompt has 10 tokens, max_length is 10 \(up to 2048"):
            generator.stream([1] * 10)
    for length in (0, 2049):
        with pytest.raises(hotset.InvalidArgument, match="max_length"):
            hotset.Generator(demo, max_length=length)


def test_whole_context(generator):
    tokens = list(generator.stream_ids([1] * 2040))
    assert len(tokens) <= 8 and (generator.stats.finish_reason == "stop" or len(tokens) == 8)
    with pytest.raises(hotset.InvalidArgument, match="2048"):
        generator.stream([1] * 2048)


def test_growing_caches_give_the_same_text(demo, tmp_path, exact):
    """Without past_present_share_buffer full-length layers alternate between two buffers."""
    folder = variant(demo, tmp_path / "growing", lambda document: document["search"].update(past_present_share_buffer=False))
    with hotset.Generator(folder, exact) as growing, hotset.Generator(demo, exact) as shared:
        for prompt in ("In the beginning", "import os\n"):
            assert growing.generate(prompt, 150) == shared.generate(prompt, 150)


def test_slack_of_the_windowed_cache_does_not_change_the_text(demo, tmp_path, exact):
    folder = variant(demo, tmp_path / "slack", lambda document: document["model"]["decoder"]["sliding_window"].update(cache_slack=37))
    with hotset.Generator(folder, exact) as slack, hotset.Generator(demo, exact) as plain:
        assert list(slack.stream_ids("def main():\n", 180)) == list(plain.stream_ids("def main():\n", 180))


def test_text_is_the_decoded_tokens(generator):
    ids = list(generator.stream_ids("In the beginning", 60))
    pieces = list(generator.stream("In the beginning", 60))
    assert "".join(pieces) == generator.tokenizer.decode(ids) == generator.generate("In the beginning", 60)
    assert len(pieces) > 10 and all(pieces)


def test_stop_string_and_token(generator):
    text = generator.generate("In the beginning", 60)
    stop = text[20:24]
    assert generator.generate("In the beginning", 60, stop=stop) == text[: text.index(stop)]
    assert generator.stats.finish_reason == "stop"
    ids = list(generator.stream_ids("In the beginning", 60))
    assert list(generator.stream_ids("In the beginning", 60, stop_token_ids=[ids[5]])) == ids[: ids.index(ids[5])]


def test_end_of_text_tokens_as_a_list(demo, tmp_path, generator):
    ids = list(generator.stream_ids("In the beginning", 20))
    folder = variant(demo, tmp_path / "eos", lambda document: document["model"].update(eos_token_id=[0, ids[4]]))
    with hotset.Generator(folder) as other:
        assert list(other.stream_ids("In the beginning", 20)) == ids[: ids.index(ids[4])]
        assert other.stats.finish_reason == "stop"


def test_sampling(generator):
    def tokens(**settings):
        return list(generator.stream_ids("In the beginning", 30, **settings))

    greedy = tokens()
    sampled = tokens(temperature=1.5, top_k=0, seed=7)
    assert sampled == tokens(temperature=1.5, top_k=0, seed=7) != tokens(temperature=1.5, top_k=0, seed=8)
    assert tokens(temperature=0) == greedy == tokens(top_k=1) == tokens(top_p=1e-9) == tokens(temperature=1.5, do_sample=False)
    assert sampled != greedy
    penalised = tokens(repetition_penalty=1e9)
    assert len(set(penalised)) == len(penalised) and not set(penalised) & set(generator.encode("In the beginning"))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"repetition_penalty": 0},
        {"seed": -1},
        {"top_k": "many"},
        {"temperature": float("nan")},
    ],
    ids=str,
)
def test_settings_are_checked(generator, settings):
    with pytest.raises(hotset.InvalidArgument):
        generator.stream("a", **settings)


def test_prompts(generator):
    assert generator.encode("") == [0] == generator.encode([])
    assert generator.encode(np.array([1, 2], np.uint16)) == [1, 2]
    for prompt, word in (([4096], "4096"), ([-1], "-1"), (5, "int"), ("a\ud800", "surrogate")):
        with pytest.raises(hotset.InvalidArgument, match=word):
            generator.stream(prompt)
    with pytest.raises(hotset.InvalidArgument, match="max_new_tokens"):
        generator.stream("a", 0)


def test_one_sequence_at_a_time(generator):
    first = generator.stream_ids("In the beginning", 10)
    next(first)
    second = generator.stream_ids("import os", 10)
    next(second)
    with pytest.raises(hotset.InvalidState, match="another generation"):
        next(first)
    assert len(list(second)) <= 9


def test_cancel_from_another_thread(generator):
    stream = generator.stream_ids("In the beginning", 2000)
    next(stream)
    thread = threading.Thread(target=generator.cancel)
    thread.start()
    thread.join()
    with pytest.raises(hotset.Cancelled):
        for _ in stream:
            pass
    assert generator.generate("In the beginning", 3)


def test_stats(generator):
    list(generator.stream_ids("In the beginning", 30))
    stats = generator.stats
    assert stats.new_tokens == 30 and stats.first_token_s > 0 and stats.decode_s > 0
    assert stats.tokens_per_second == pytest.approx(29 / stats.decode_s)


def test_folders_that_are_no_models(tmp_path, demo):
    with pytest.raises(FileNotFoundError, match="genai_config.json"):
        hotset.Generator(tmp_path)
    (tmp_path / "genai_config.json").write_text("{")
    with pytest.raises(hotset.InvalidModel, match="not JSON"):
        hotset.Generator(tmp_path)
    (tmp_path / "genai_config.json").write_text('{"model": {}}')
    with pytest.raises(hotset.InvalidModel, match="decoder"):
        hotset.Generator(tmp_path)
    (tmp_path / "genai_config.json").write_text((demo / "genai_config.json").read_text())
    with pytest.raises(hotset.NotFound, match="model.onnx"):
        hotset.Generator(tmp_path)


@pytest.mark.parametrize(
    "place, value, text",
    [
        (("inputs", "past_key_names"), "x", "past_key_names is 'x', expected a name with %d"),
        (("inputs", "past_value_names"), "past.%s%n", "expected a name with %d"),
        (("outputs", "present_key_names"), 5, "model.decoder.outputs.present_key_names is 5"),
        (("num_hidden_layers",), 10**9, "num_hidden_layers is 1000000000, expected a whole number from 1 to"),
        (("num_key_value_heads",), -2, "num_key_value_heads is -2"),
        (("head_size",), 10**15, "head_size"),
    ],
)
def test_fields_out_of_bounds(demo, tmp_path, place, value, text):
    def change(document):
        section = document["model"]["decoder"]
        for key in place[:-1]:
            section = section[key]
        section[place[-1]] = value

    folder = variant(demo, tmp_path / "model", change)
    with pytest.raises(hotset.InvalidModel, match=re.escape(text)) as failure:
        hotset.Generator(folder)
    assert "genai_config.json" in str(failure.value)


def test_caches_that_no_memory_holds(demo, tmp_path):
    folder = variant(demo, tmp_path / "model", lambda document: document["model"].update(context_length=10**15))
    with pytest.raises(hotset.OutOfMemory, match="choose a smaller max_length"):
        hotset.Generator(folder, max_length=10**14).generate("a", 1)


def test_inputs_that_the_config_does_not_describe(demo, tmp_path):
    folder = variant(demo, tmp_path / "short", lambda document: document["model"]["decoder"].update(num_hidden_layers=3))
    with hotset.Generator(folder) as generator:
        with pytest.raises(hotset.InvalidModel, match="past_key_values.3.key"):
            generator.generate("a", 1)


def test_session_options_of_the_folder(demo, tmp_path):
    def change(document):
        document["model"]["decoder"]["session_options"].update(intra_op_num_threads=1, **{"session.somebody_elses": "1"})

    folder = variant(demo, tmp_path / "options", change)
    assert read_genai_config(folder).session_entries == {"intra_op_num_threads": "1", "session.somebody_elses": "1"}
    options = hotset.SessionOptions()
    options.intra_op_num_threads = 2
    with hotset.Generator(folder, options) as generator:  # the caller's value wins, and the caller's object is left alone
        assert generator.session.get_session_options().get_session_config_entry("intra_op_num_threads") == "2"
    with hotset.Generator(folder) as generator:
        assert generator.session.get_session_options().get_session_config_entry("intra_op_num_threads") == "1"


def test_chat_template(demo, tmp_path):
    pytest.importorskip("jinja2")
    folder = variant(demo, tmp_path / "chat", lambda document: None)
    with hotset.Generator(folder) as generator:
        with pytest.raises(hotset.NotFound, match="chat template"):
            generator.chat_prompt([])
        (folder / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ eos_token }}")
        assert generator.chat_prompt([{"role": "user", "content": "hi"}]) == "<user>hi<|endoftext|>"
