# SPDX-License-Identifier: Apache-2.0
"""Streaming text: whole characters, nothing lost, stop strings."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.detokenizer import Detokenizer, StopStrings


def decode_bytes(ids):
    return bytes(ids).decode("utf-8", "replace")


def pieces_of(ids, decode=decode_bytes, context=()):
    stream = Detokenizer(decode, context)
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


@settings(max_examples=50)
@given(st.data())
def test_real_tokenizer(demo_tokenizer, data):
    ids = data.draw(st.lists(st.integers(1, demo_tokenizer.get_vocab_size() - 1), max_size=50))
    assert "".join(pieces_of(ids, demo_tokenizer.decode)) == demo_tokenizer.decode(ids)


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
