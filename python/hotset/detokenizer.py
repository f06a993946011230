# SPDX-License-Identifier: Apache-2.0
"""Text of a token stream, piece by piece, without splitting a character over two pieces."""

_REPLACEMENT = "\ufffd"  # what decoders put for bytes that are no character (yet)
_MAX_PENDING = 8  # tokens after which bytes that never became a character are let go; a character has at most 4 bytes


class Detokenizer:
    """Decoders need context (a leading blank depends on what stood before), so a window of recent tokens is decoded anew."""

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

    def push(self, piece):
        text = self._held + piece
        cuts = [at for at in map(text.find, self._strings) if at >= 0]
        if cuts:
            self.found, self._held = True, ""
            return text[: min(cuts)]
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
