# SPDX-License-Identifier: Apache-2.0
"""How long a text may be for a number of tokens, known without tokenising it: megabytes take seconds and much memory."""

import json

# A character has at least one byte, and canonical composition (NFC) leaves at least half as many bytes as the text had characters:
# the full decomposition of a composed character has at most twice as many characters as that one has bytes (tests/python/
# test_prompt_bound.py looks at all of them), and a text has at most as many characters as its full decomposition.
_NFC_FACTOR = 2


def longest_text(tokenizer, n_tokens):
    """Characters of the longest text that `tokenizer` (tokenizers.Tokenizer) may turn into `n_tokens` tokens; None when there is
    no bound: some tokenizers drop parts of a text, or make one token of any number of unknown characters."""
    settings = json.loads(tokenizer.to_str())
    factor = _normalizer_factor(settings.get("normalizer"))
    if factor is None or settings.get("truncation") or not _splits_only(settings.get("pre_tokenizer")):
        return None
    added = settings.get("added_tokens") or []
    if any(token["lstrip"] or token["rstrip"] for token in added):  # they swallow blanks around them
        return None
    byte_level = "ByteLevel" in _kinds(settings.get("pre_tokenizer"))
    vocabulary = _vocabulary_that_drops_nothing(settings["model"], byte_level)
    if vocabulary is None:
        return None
    # A byte-level alphabet writes each byte as one character, of one or two bytes: never fewer than the text has.
    longest = max(len(token.encode()) for token in [*vocabulary, *(token["content"] for token in added)])
    return longest * factor * n_tokens


def _normalizer_factor(normalizer):
    """How many characters of the text one byte of the normalised text stands for at most; None: unknown."""
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "NFC":
        return _NFC_FACTOR
    if kind == "Prepend":
        return 1
    if kind == "Replace":
        old, new = normalizer["pattern"].get("String"), normalizer["content"]
        grows = old is not None and len(new) >= len(old) and len(new.encode()) >= len(old.encode())
        return 1 if grows else None
    if kind == "Sequence":
        factors = [_normalizer_factor(part) for part in normalizer["normalizers"]]
        return None if None in factors or factors.count(_NFC_FACTOR) > 1 else max(factors, default=1)
    return None


def _splits_only(pre_tokenizer):
    """Whether a pre-tokenizer keeps every character."""
    if pre_tokenizer is None:
        return True
    kind = pre_tokenizer["type"]
    if kind == "Sequence":
        return all(_splits_only(part) for part in pre_tokenizer["pretokenizers"])
    if kind in ("Split", "Punctuation"):
        return pre_tokenizer["behavior"] != "Removed"
    return kind in ("ByteLevel", "Metaspace", "Digits")


def _kinds(pre_tokenizer):
    if pre_tokenizer is None:
        return set()
    return {pre_tokenizer["type"]}.union(*map(_kinds, pre_tokenizer.get("pretokenizers", ())))


def _vocabulary_that_drops_nothing(model, byte_level):
    """The tokens of a model in which every byte has a token, alone or as a character of the byte-level alphabet; else None."""
    if model["type"] == "BPE" and not model.get("continuing_subword_prefix") and not model.get("end_of_word_suffix"):
        vocabulary = model["vocab"].keys()
    elif model["type"] == "Unigram":
        vocabulary = {token for token, _ in model["vocab"]}
    else:
        return None
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return vocabulary
    from tokenizers.pre_tokenizers import ByteLevel

    return vocabulary if byte_level and all(character in vocabulary for character in ByteLevel.alphabet()) else None
