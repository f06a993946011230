# SPDX-License-Identifier: Apache-2.0
"""Prompts far beyond the context are refused before they are tokenised, and no prompt that fits is."""

import itertools
import subprocess
import sys
import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

import hotset
from hotset import generator as generator_module
from hotset.prompt_bound import longest_text

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
HEX = [f"<0x{byte:02X}>" for byte in range(256)]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLIT = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{N}|\s+"), "isolated"), BYTES])
METASPACE = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])


def ids(tokens):
    return {token: i for i, token in enumerate(tokens)}


def byte_level(normalizer=None, pre_tokenizer=BYTES, alphabet=ALPHABET, **settings):
    """Merges make tokens of up to 8 letters a and of both bytes of an e with an acute accent."""
    merges = [("a", "a"), ("aa", "aa"), ("aaaa", "aaaa"), ("\u00c3", "\u00a9")]
    merges = [pair for pair in merges if alphabet is ALPHABET]
    tokenizer = Tokenizer(models.BPE(ids([*alphabet, *map("".join, merges)]), merges, **settings))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def with_added(tokenizer, **flags):
    tokenizer.add_special_tokens([AddedToken("<|a rather long marker|>", **flags)])
    return tokenizer


def with_truncation(tokenizer):
    tokenizer.enable_truncation(4)
    return tokenizer


def sentence_pieces():
    tokenizer = Tokenizer(models.BPE(ids([*HEX, "\u2581", "a", "aa", "\u2581a"]), [("a", "a"), ("\u2581", "a")], byte_fallback=True))
    tokenizer.normalizer = METASPACE
    return tokenizer


def unigram():
    return Tokenizer(models.Unigram([("<unk>", 0.0), *((piece, -5.0) for piece in HEX), ("aaaa", -1.0)], unk_id=0, byte_fallback=True))


BOUNDED = {
    "bytes": byte_level(),
    "split": byte_level(pre_tokenizer=SPLIT),
    "nfc": byte_level(normalizers.NFC(), SPLIT),
    "nfc in a sequence": byte_level(normalizers.Sequence([normalizers.NFC(), normalizers.Replace("x", "aa")])),
    "added token": with_added(byte_level()),
    "byte fallback": sentence_pieces(),
    "unigram": unigram(),
}

BOUNDLESS = {
    "blanks vanish": byte_level(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), BYTES])),
    "matches vanish": byte_level(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split("a", "removed"), BYTES])),
    "characters vanish": byte_level(pre_tokenizer=None),
    "bytes vanish": byte_level(alphabet=ALPHABET[:200]),
    "compatibility forms": byte_level(normalizers.NFKC()),
    "stripped": byte_level(normalizers.Strip()),
    "shortened": byte_level(normalizers.Replace("aa", "a")),
    "shortened by pattern": byte_level(normalizers.Replace(Regex("a+"), "aaaa")),
    "truncated": with_truncation(byte_level()),
    "blanks before an added token": with_added(byte_level(), lstrip=True),
    "blanks after an added token": with_added(byte_level(), rstrip=True),
    "unknown characters in one token": Tokenizer(models.BPE(ids(["a", "?"]), [], unk_token="?", fuse_unk=True)),
    "suffix": byte_level(end_of_word_suffix="</w>"),
    "words": Tokenizer(models.WordLevel(ids(["a", "?"]), unk_token="?")),
    "word pieces": Tokenizer(models.WordPiece(ids(["a", "?"]), unk_token="?", max_input_chars_per_word=10)),
}

# Decomposed, composed and singleton characters, blanks, the added token, long runs.
PIECES = st.sampled_from(
    ["a", "aaaaaaaa", "e\u0301", "\u00e9", "\u1f82", "\u212a", "\u0344", "\U0001d160", " ", "\n", "1", "x", "<|a rather long marker|>"]
)
TEXTS = st.one_of(st.lists(PIECES, max_size=60).map("".join), st.text(max_size=40))


@pytest.mark.parametrize("name", BOUNDED)
@given(text=TEXTS)
@example(text="a" * 4096)
@example(text="<|a rather long marker|>" * 50)
@example(text="\u03b9\u0308\u0301" * 300)
def test_no_text_has_fewer_tokens_than_the_bound_says(name, text):
    tokenizer = BOUNDED[name]
    n_tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    assert len(text) <= longest_text(tokenizer, n_tokens)


@pytest.mark.parametrize("name", BOUNDLESS)
def test_tokenizers_that_may_drop_text_have_no_bound(name):
    assert longest_text(BOUNDLESS[name], 100) is None


def test_bound_of_the_demo_model(demo_tokenizer):
    longest = max(len(token) for token in demo_tokenizer.get_vocab())
    assert longest_text(demo_tokenizer, 1) == pytest.approx(longest, abs=longest)
    assert longest_text(demo_tokenizer, 2000) == 2000 * longest_text(demo_tokenizer, 1)


def test_decompositions_have_at_most_two_characters_for_each_byte():
    """Why composition is allowed for with a factor of 2."""
    for code in itertools.chain(range(0xD800), range(0xE000, 0x110000)):
        character = chr(code)
        assert len(unicodedata.normalize("NFD", character)) <= 2 * len(character.encode())


class Untouchable:
    """A tokenizer that may be described, not used."""

    def __init__(self, tokenizer):
        self.to_str = tokenizer.to_str

    def encode(self, text):
        raise AssertionError("the prompt was tokenised")


@pytest.fixture
def small(demo):
    with hotset.Generator("demo", max_length=16) as generator:
        yield generator


def test_a_huge_prompt_is_not_tokenised(small):
    assert small.longest_prompt() == generator_module.LONG_PROMPT
    small._tokenizer = Untouchable(small.tokenizer)
    text = "a" * 100_000_000
    begin = time.process_time()
    for call in (small.encode, small.generate, lambda text: small.generate_batch([[5], text])):
        with pytest.raises(
            hotset.InvalidArgument, match=r"prompt has 100000000 characters, which are more than 15 tokens, max_length is 16 \(up"
        ):
            call(text)
    assert time.process_time() - begin < 1


def test_a_long_prompt_that_may_fit_is_tokenised(small):
    with pytest.raises(hotset.InvalidArgument, match=r"prompt has \d+ tokens"):
        small.encode("a " * (generator_module.LONG_PROMPT // 2))


def test_endless_token_ids(small):
    with pytest.raises(hotset.InvalidArgument, match="prompt has too many tokens, max_length is 16"):
        small.encode(itertools.repeat(5))
    with pytest.raises(hotset.InvalidArgument, match="prompt has 17 tokens"):
        small.encode([5] * 17)
    assert small.encode(iter([5] * 15)) == [5] * 15


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_endless_standard_input():
    """The command reads no more than could fit, and says so while the pipe still runs."""
    writer = subprocess.Popen(
        [sys.executable, "-c", "while True: print('abcdefg ' * 1000, flush=True)"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        command = [sys.executable, "-m", "hotset", "generate", "demo"]
        done = subprocess.run(command, stdin=writer.stdout, capture_output=True, text=True, timeout=600)
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.stdout.close()
        writer.wait()
    assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    assert "characters, which are more than" in done.stderr
