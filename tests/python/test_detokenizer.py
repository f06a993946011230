# SPDX-License-Identifier: Apache-2.0
"""Streaming text: whole characters, nothing lost, stop strings."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.detokenizer import ByteLevelDetokenizer, Detokenizer, StopStrings, create_detokenizer


def decode_bytes(ids):
    return bytes(ids).decode("utf-8", "replace")


def pieces_of(ids, decode=decode_bytes, context=(), stream=None):
    stream = stream or Detokenizer(decode, context)
    return [stream.push(token) for token in ids] + [stream.flush()]


@given(st.text(max_size=40))
def test_characters_are_whole(text):
    pieces = pieces_of(text.encode())
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.binary(max_size=60))
def test_any_bytes_give_the_text_of_the_whole(data):
    assert "".join(pieces_of(data)) == decode_bytes(data)


@settings(max_examples=100)
@given(st.data())
def test_real_tokenizer(demo_tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, demo_tokenizer.get_vocab_size() - 1), max_size=50))
    expected = demo_tokenizer.decode(ids)
    assert "".join(pieces_of(ids, demo_tokenizer.decode)) == expected
    stream = create_detokenizer(demo_tokenizer, [])
    assert isinstance(stream, ByteLevelDetokenizer)
    assert "".join(pieces_of(ids, stream=stream)) == expected


def test_added_tokens(demo_tokenizer):
    """Special ones are left out, others are text as it stands."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(demo_tokenizer.to_str())
    tokenizer.add_tokens(["\u2603 snow", " \u0120"])
    tokenizer.add_special_tokens(["<|call|>"])
    ids = tokenizer.encode("a<|call|>\u2603 snow b \u0120 c").ids
    assert "".join(pieces_of(ids, stream=create_detokenizer(tokenizer, []))) == tokenizer.decode(ids) == "a\u2603 snow b \u0120 c"


def test_prompt_that_ends_within_a_character(demo_tokenizer):
    ids = demo_tokenizer.encode("caf\u00e9 \u2603").ids
    assert "".join(pieces_of(ids[-1:], stream=create_detokenizer(demo_tokenizer, ids[:-1]))) == "\u2603"


def test_context_decides_about_a_leading_blank():
    def decode(ids):  # as sentencepiece does it
        return "".join(" " + "abc"[i] for i in ids)[1:]

    assert "".join(pieces_of([1, 2], decode, context=[0])) == " b c"
    assert "".join(pieces_of([1, 2], decode)) == "b c"


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "found"),
    [
        (["END"], ["a", "E", "N", "D", "b"], "a", True),
        (["END"], ["a", "E", "N", "x"], "aENx", False),
        (["END"], ["aEN"], "aEN", False),
        (["ab", "b"], ["xab"], "x", True),
        (["aab"], ["a", "a", "a", "b"], "a", True),
        ([], ["a", "b"], "ab", False),
    ],
)
def test_stop_strings(stops, pieces, text, found):
    stream, out = StopStrings(stops), ""
    for piece in pieces:
        out += stream.push(piece)
        if stream.found:
            break
    else:
        out += stream.flush()
    assert (out, stream.found) == (text, found)
