# SPDX-License-Identifier: Apache-2.0
"""Text of a token stream, piece by piece, without splitting a character over two pieces."""

import codecs

_REPLACEMENT = "\ufffd"  # what decoders put for bytes that are no character (yet)
_MAX_PENDING = 8  # tokens after which bytes that never became a character are let go; a character has at most 4 bytes


def _byte_alphabet():
    """The characters that byte-level vocabularies write for bytes: printable Latin-1 stands for itself, the rest lies from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(itself)]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def create_detokenizer(tokenizer, context):
    """For a tokenizers.Tokenizer and the tokens before the stream."""
    if type(tokenizer.decoder).__name__ == "ByteLevel":
        return ByteLevelDetokenizer(tokenizer, context)
    return Detokenizer(tokenizer.decode, context)


class ByteLevelDetokenizer:
    """Tokens are bytes here, so their text is plain UTF-8, and a token of whole characters costs one look-up."""

    def __init__(self, tokenizer, context=()):
        self._id_to_token = tokenizer.id_to_token
        self._bytes = {token: b"" for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
        self._texts = {}  # of tokens that are whole characters
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_inside = False  # of a character
        for token in context[-_MAX_PENDING:]:
            self.push(token)

    def push(self, token):
        """The text that became certain with this token."""
        if not self._is_inside:
            text = self._texts.get(token)
            if text is not None:
                return text
        data = self._bytes.get(token)
        if data is None:
            data = self._bytes[token] = self._look_up(token)
        was_inside = self._is_inside
        text = self._utf8.decode(data)
        self._is_inside = self._utf8.getstate()[0] != b""
        if not was_inside and not self._is_inside:
            self._texts[token] = text
        return text

    def _look_up(self, token):
        characters = self._id_to_token(token) or ""
        try:
            return bytes(map(_BYTES.__getitem__, characters))
        except KeyError:  # an added token in plain text
            return characters.encode()

    def flush(self):
        """What is left at the end, incomplete characters included."""
        return self._utf8.decode(b"", final=True)


class Detokenizer:
    """For any decoder. Its output depends on context (a leading blank on what stood before), so a window of tokens is decoded anew."""

    def __init__(self, decode, context=()):
        self._decode = decode
        self._window = list(context)[-_MAX_PENDING:]
        self._n_done = len(self._window)  # tokens of the window whose text is out
        self._shown = len(decode(self._window)) if self._window else 0

    def push(self, token):
        """The text that became certain with this token."""
        self._window.append(token)
        text = self._decode(self._window)
        if not text.endswith(_REPLACEMENT) or len(self._window) - self._n_done > _MAX_PENDING:
            piece = text[self._shown :]
            self._window = self._window[self._n_done :]
            self._n_done = len(self._window)
            self._shown = len(self._decode(self._window))
            return piece
        text = text.rstrip(_REPLACEMENT)
        piece = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return piece

    def flush(self):
        """What is left at the end, incomplete characters included."""
        return self._decode(self._window)[self._shown :]


class StopStrings:
    """Passes text through until one of the strings appears, holding back what may be the beginning of one."""

    def __init__(self, strings):
        self._strings = tuple(strings)
        self._held = ""
        self.found = False
        self.string = ""  # the one that was found

    def push(self, piece):
        if not self._strings:
            return piece
        text = self._held + piece
        cuts = [(at, string) for string in self._strings if (at := text.find(string)) >= 0]
        if cuts:
            cut, self.string = min(cuts)
            self.found, self._held = True, ""
            return text[:cut]
        keep = 0
        for string in self._strings:
            for size in range(min(len(string) - 1, len(text)), keep, -1):
                if text.endswith(string[:size]):
                    keep = size
                    break
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self):
        held, self._held = self._held, ""
        return held
