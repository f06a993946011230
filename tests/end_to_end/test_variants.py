# SPDX-License-Identifier: Apache-2.0
"""GPT-OSS decoders of many sizes, weight formats and cache forms, with random weights: float activations against exact arithmetic."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from end_to_end.decoder import BOUND, Decoder, assert_same_choice, error, input_types, open_session, run_growing, run_in_place
from end_to_end.gpt_oss_builder import Config, router_logits, write
from reference.graph import Executor, widen

WINDOW = 4
PROMPTS = [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 5]
INT4 = Config(dense_bits=4, expert_bits=4)
INT8 = Config(dense_bits=8, expert_bits=8)
PREPACKED = dataclasses.replace(INT4, expert_prepacked=True, hidden=64, inter=128)


def variant(base=Config(), **changes):
    return dataclasses.replace(base, **changes)


VARIANTS = {
    "float": Config(),
    "float f16": variant(io="f16"),
    "float bf16": variant(io="bf16"),
    "float tied": variant(tied=True),
    "int4": INT4,
    "int4 f16": variant(INT4, io="f16"),
    "int4 bf16": variant(INT4, io="bf16"),
    "int4 said raw": variant(INT4, says_prepacked=True),
    "int8": INT8,
    "int8 f16": variant(INT8, io="f16"),
    "int8 experts, int4 rest": variant(INT8, dense_bits=4),
    "int4 experts, float rest": variant(INT4, dense_bits=0),
    "block 16": variant(INT4, dense_block=16, expert_block=16),
    "block 64": variant(INT4, dense_block=64, expert_block=64, hidden=128, inter=64),
    "block 128": variant(INT4, dense_block=128, expert_block=128, hidden=128, inter=128),
    "block above K": variant(INT4, dense_block=128, expert_block=128, hidden=64, inter=32),
    "int8 block 16": variant(INT8, dense_block=16, expert_block=16),
    "int8 block 128": variant(INT8, dense_block=128, expert_block=128, hidden=128, inter=128),
    "per channel": variant(INT4, expert_block=0),
    "per channel int8": variant(INT8, expert_block=0),
    "asymmetric": variant(INT4, dense_zeros=True, expert_zeros=True),
    "asymmetric int8": variant(INT8, dense_zeros=True, expert_zeros=True),
    "asymmetric per channel": variant(INT4, dense_zeros=True, expert_zeros=True, expert_block=0),
    "asymmetric per channel int8": variant(INT8, expert_zeros=True, expert_block=0),
    "asymmetric, odd blocks": variant(INT4, dense_zeros=True, expert_zeros=True, hidden=96, inter=96, experts=5),
    "prepacked": PREPACKED,
    "prepacked, said": variant(PREPACKED, says_prepacked=True),
    "prepacked square": variant(PREPACKED, inter=64),
    "prepacked square, said": variant(PREPACKED, inter=64, says_prepacked=True),
    "prepacked square FC1": variant(PREPACKED, hidden=128, inter=64),
    "prepacked int8": variant(PREPACKED, dense_bits=8, expert_bits=8, inter=64),
    "prepacked f16": variant(PREPACKED, io="f16", inter=64, dense_prepacked=True),
    "prepacked bf16": variant(PREPACKED, io="bf16", inter=64, dense_prepacked=True),
    "prepacked asymmetric": variant(PREPACKED, dense_prepacked=True, dense_zeros=True, expert_zeros=True, dense_block=64, expert_block=64),
    "prepacked per channel": variant(PREPACKED, expert_block=0),
    "square FC2": variant(INT4, inter=64),
    "square FC1": variant(INT4, hidden=64, inter=32),
    "said raw, square": variant(INT4, inter=64, says_prepacked=True),
    "tied int4": variant(INT4, tied=True),
    "tied asymmetric": variant(INT4, tied=True, dense_zeros=True),
    "tied, padded rows": variant(INT4, tied=True, hidden=48, inter=48, dense_zeros=True),
    "tied f16": variant(INT4, tied=True, io="f16"),
    "G11": variant(INT4, form="G11"),
    "G11 f16": variant(INT4, form="G11", io="f16"),
    "G11 asymmetric": variant(INT4, form="G11", dense_zeros=True),
    "slack": variant(slack=3),
    "slack f16": variant(INT4, slack=1, io="f16"),
    "pruned head": variant(INT4, pruned=True),
    "pruned head bf16": variant(io="bf16", pruned=True),
    "unaligned": variant(INT4, lead_bytes=1),
    "unaligned f16": variant(io="f16", lead_bytes=3),
    "all experts": variant(experts=4, k=4),
    "one of 33 experts": variant(INT4, experts=33, k=1),
    "one head": variant(heads=1, kv_heads=1, head_size=32, hidden=32),
    "eight heads of 8": variant(INT4, heads=8, kv_heads=1, head_size=8),
    "head size 64": variant(INT4, heads=2, kv_heads=2, head_size=64),
    "one layer": variant(layers=1),
    "three layers": variant(INT4, layers=3),
    "odd sizes": variant(hidden=56, inter=24, vocabulary=37, experts=7, k=3),
}  # fmt: skip


def make(folder, config, seed):
    """The runtime's and the oracle's decoders of one file: functions of (batch, rows of cache)."""
    path = write(folder, config, seed)
    session, executor = open_session(path), Executor(path)
    windows = {layer: (config.window + config.slack, config.window) for layer in range(0, config.layers, 2)} if config.windowed else {}
    types, shape = input_types(session), (config.kv_heads, config.head_size)
    replayed = None
    if config.io != "f32":  # a rounding can decide between two experts: the oracle takes the choice of the runtime
        (folder / "exposed").mkdir(exist_ok=True)
        replayed = open_session(write(folder / "exposed", config, seed, router_logits(config)))

    def ours(batch, rows=0):
        return Decoder(run_in_place(session) if rows else run_growing(session), types, shape, windows, batch, rows)

    def exact(batch):
        """step() also judges the router."""
        wide = {name: kind and "f32" for name, kind in types.items()}
        if not replayed:
            return Decoder(executor.run, wide, shape, windows, batch)
        shadow = Decoder(run_growing(replayed), types, shape, windows, batch)

        def run(feed):
            shadow.step(feed["input_ids"])
            choice = {name: shadow.outputs[name] for name in router_logits(config)}
            outputs = executor.run(feed, choice)
            for name, logits in choice.items():
                assert error(widen(logits), executor.values[name], least=1) < BOUND[config.io], name
            return outputs

        return Decoder(run, wide, shape, windows, batch)

    return ours, exact


def check(folder, config, chunks, batch=1, seed=0):
    """A sequence in chunks of the given sizes: caches that grow, caches in place, and single tokens all agree with the oracle."""
    ours, exact = make(folder, config, seed)
    rng = np.random.default_rng(seed + 1)
    chunks = [rng.integers(0, config.vocabulary, (batch, n)) for n in chunks]
    bound = BOUND[config.io]
    growing, in_place, single, oracle = ours(batch), ours(batch, rows=64), ours(batch), exact(batch)
    for ids in chunks:
        logits, expected = growing.step(ids), oracle.step(ids)
        assert error(logits, expected) < bound
        assert_same_choice(logits, expected, bound)
        assert np.array_equal(in_place.step(ids), logits)
        for token in ids.T:
            last = single.step(np.ascontiguousarray(token[:, None]))
        assert error(last, expected[:, -1:]) < bound
    for name, expected in oracle.states().items():
        for decoder in (growing, in_place, single):
            assert error(decoder.states()[name], expected) < bound, name


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(tmp_path, name):
    """Prompt lengths around the window take turns; enough steps follow to wrap it twice."""
    n = list(VARIANTS).index(name)
    check(tmp_path, VARIANTS[name], [PROMPTS[n % 6], *[1] * (2 * WINDOW + 1)], seed=n)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["int4", "float f16", "slack", "G11", "pruned head bf16"])
def test_prompt_lengths_and_batches(tmp_path, name, batch, prompt):
    more = [2, 1, WINDOW + 3, 1] if batch == 1 else []  # the operator continues with several rows in batch 1 only
    check(tmp_path, VARIANTS[name], [prompt, *[1] * (WINDOW + 2), *more], batch, seed=prompt)


@st.composite
def configs(draw):
    io, prepacked = draw(st.sampled_from(["f32", "f32", "f16", "bf16"])), draw(st.booleans())
    # few terms a sum: roundings of half types do not average out
    sizes = st.sampled_from([64, 128]) if prepacked else st.integers(2 if io == "f32" else 8, 32).map(lambda n: 4 * n)
    kv_heads, experts = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    widths = st.sampled_from([4, 8] if prepacked else [0, 2, 4, 8])
    return Config(
        io=io,
        form=draw(st.sampled_from(["G18", "G18", "G11"])),
        hidden=draw(sizes),
        inter=draw(sizes),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_size=draw(st.sampled_from([8, 16, 24, 32, 64])),
        layers=draw(st.integers(1, 3)),
        experts=experts,
        k=draw(st.integers(1, min(experts, 4))),
        window=draw(st.integers(1, 9)),
        slack=draw(st.integers(0, 4)),
        vocabulary=draw(st.integers(16, 80)),
        dense_bits=draw(widths),
        dense_block=draw(st.sampled_from([16, 32, 64, 128])),
        dense_zeros=draw(st.booleans()),
        dense_prepacked=prepacked,
        dense_int8=draw(st.booleans()),
        expert_bits=draw(widths),
        expert_block=draw(st.sampled_from([0, 16, 32, 64, 128])),
        expert_zeros=draw(st.booleans()),
        expert_prepacked=prepacked,
        says_prepacked=draw(st.booleans()),
        tied=draw(st.booleans()),
        pruned=draw(st.booleans()),
        lead_bytes=draw(st.integers(0, 3)),
    )


@settings(max_examples=40, deadline=None)
@given(configs(), st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_random_variant(tmp_path_factory, config, chunks, seed):
    check(tmp_path_factory.mktemp("model"), config, chunks, seed=seed)


# no 8-bit weights: onnxruntime always quantises the activations they meet
@pytest.mark.parametrize("name", ["float", "int4", "per channel", "G11", "tied int4", "pruned head"])
def test_onnxruntime_reads_the_files_alike(tmp_path, name):
    """The builder writes what another runtime understands, too."""
    config = VARIANTS[name]
    path = write(tmp_path, config)
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    session = open_session(path)
    names = [arg.name for arg in session.get_outputs()]
    assert [arg.name for arg in theirs.get_outputs()] == names
    runs = run_growing(session), lambda feed: dict(zip(names, theirs.run(names, feed), strict=True))
    windows = {0: (WINDOW, WINDOW)} if config.windowed else {}
    ours, reference = (Decoder(run, input_types(session), (config.kv_heads, config.head_size), windows) for run in runs)
    for n in (2 * WINDOW + 1, 1, 1):
        ids = np.arange(n)[None] % config.vocabulary
        assert error(ours.step(ids), reference.step(ids)) < 1e-4


def test_sequences_and_shapes_interleave(tmp_path):
    """Runs of other lengths and batch sizes between the steps of a sequence leave it alone, in one thread or several."""
    session = open_session(write(tmp_path, INT4))
    ids = np.arange(3 * WINDOW + 5)[None]

    def decoder(batch=1):
        return Decoder(run_growing(session), input_types(session), (INT4.kv_heads, INT4.head_size), {0: (WINDOW, WINDOW)}, batch)

    whole, three = decoder().step(ids), ids[:, :5].repeat(3, 0)

    def one_by_one(_):
        sequence, logits = decoder(), []
        for i, token in enumerate(ids[0]):
            logits.append(sequence.step(token.reshape(1, 1)))
            if i % 3 == 0:
                assert np.array_equal(decoder().step(ids), whole)
                assert error(decoder(batch=3).step(three), whole[:, :5].repeat(3, 0)) < BOUND["f32"]
        return np.concatenate(logits, 1)

    with ThreadPoolExecutor(3) as pool:
        for logits in pool.map(one_by_one, range(3)):
            assert error(logits, whole) < BOUND["f32"]


def logits_of(path, activation, ids, config, threads=2):
    session = open_session(path, activation, threads)
    windows = {layer: (config.window, config.window) for layer in range(0, config.layers, 2)}
    return Decoder(run_growing(session), input_types(session), (config.kv_heads, config.head_size), windows).step(ids)


def test_activation_option(tmp_path):
    """auto quantises activations where the node says accuracy_level 4 and nowhere else; float never does."""
    ids, logits = np.arange(9)[None], {}
    for wanted in (False, True):
        for activation in ("auto", "float", "int8"):
            path = write(tmp_path, dataclasses.replace(INT4, dense_int8=wanted))
            logits[wanted, activation] = logits_of(path, activation, ids, INT4)
    exact = logits[False, "float"]
    assert np.array_equal(logits[False, "auto"], exact)
    assert np.array_equal(logits[True, "float"], exact)
    for key in ((True, "auto"), (True, "int8"), (False, "int8")):
        assert 1e-4 < error(logits[key], exact) < 0.5


def test_threads_do_not_change_the_answer(tmp_path):
    path, ids = write(tmp_path, INT4), np.arange(3 * WINDOW + 5)[None]
    one = logits_of(path, "float", ids, INT4, threads=1)
    for threads in (2, 3):
        assert np.array_equal(logits_of(path, "float", ids, INT4, threads), one)
