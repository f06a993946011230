# SPDX-License-Identifier: Apache-2.0
"""The decode loop of several sequences of different lengths: one run of the graph a step serves all of them.

                 prompts                                 step
input_ids        (b, n)  prompts, padded on the right    (b, 1)  the last token of each
attention_mask   (b, n)  ones where the prompt is        (b, longest)  row sums are the lengths, the rest does not matter
position_ids     (b, n)  0 1 2 ...                       (b, 1)  the own position of each
logits           row len - 1 of each                     (b, 1, vocab)

A sequence that is done leaves the batch: the caches of those behind it move up, later steps compute without it.

Long prompts fill the caches without logits first, all but their last token; a prompt of one token is fed twice then, at the
same position.
"""

import numpy as np

from ._errors import InvalidArgument, Unsupported, check
from ._native import ffi, lib, text
from .decoding import SPLIT_PROMPT, DecodeLoop, view
from .tensor import numpy_dtype

# Operators through which a padded position would reach the following tokens.
_MIX_PADDING = ("Attention", "MultiHeadAttention", "CausalConvWithState", "LinearAttention", "GatedDeltaNet")


def check_mixed_lengths(session, states_mix):
    """Raises Unsupported when the graph gives right padding a meaning."""
    found = [name for name in session.plan()["operators"] if name.rpartition("::")[2] in _MIX_PADDING]
    if found or states_mix:
        reason = ", ".join(found) or "other states"
        raise Unsupported(
            "prompts of different lengths need a graph whose only memory is GroupQueryAttention; "
            f"this one has {reason}: generate from prompts of one length, or one by one"
        )


class BatchDecodeLoop(DecodeLoop):
    """Runs prompts, then a token of each again and again; `row(i)` is the view of the logits of sequence i."""

    def __init__(self, session, config, max_length, run_options, n_sequences):
        super().__init__(session, config, max_length, run_options, n_sequences)
        self._session = session
        self._columns = np.arange(max_length)
        self._logits_row = ffi.new("hotset_tensor *")

    def start(self, prompts):
        """Runs the prompts, lists of token ids, from empty caches."""
        lengths = [len(ids) for ids in prompts]
        if len(prompts) != self.n_sequences or min(lengths) < 1 or max(lengths) > self.max_length:
            raise InvalidArgument(f"{len(prompts)} prompts of {lengths} tokens for {self.n_sequences} sequences of 1..{self.max_length}")
        is_mixed = min(lengths) < max(lengths)
        if is_mixed:
            check_mixed_lengths(self._session, any(not state.is_cache for state in self._states))
        for state in self._states:
            state.start()
        self._lengths = np.zeros(len(prompts), np.int64)
        self.length = 0
        if max(lengths) >= SPLIT_PROMPT or (is_mixed and self._has_last_row_only):
            check(lib.hotset_binding_drop_output(self._binding, self._logits_name))
            self._feed([ids[:-1] or ids for ids in prompts])
            self._lengths = np.array(lengths, np.int64) - 1
        check(lib.hotset_binding_set_output(self._binding, self._logits_name, ffi.NULL))
        if self.length:
            self.step([ids[-1] for ids in prompts])
        else:
            self._feed(prompts)
            self._read_logits(self._lengths - 1)

    def step(self, tokens):
        """Appends one token to every sequence."""
        self._token[: len(tokens), 0] = tokens
        self._token_view.shape[0] = len(tokens)
        self._set(text(self._ids_name), self._token_view)
        if self._position is not None:
            positions = np.ascontiguousarray(np.broadcast_to(self._lengths[:, None], (*self._position.shape[:-2], len(tokens), 1)))
            self._feed_positions(positions)
        self._lengths += 1
        self._run_rows(1)
        self._read_logits(np.zeros(len(tokens), np.int64))

    def keep(self, rows):
        """Goes on with the sequences `rows`, ascending numbers, alone. Their numbers are then 0, 1, ..."""
        self._lengths = self._lengths[rows]
        longest = int(self._lengths.max())
        for state in self._states:
            state.keep(rows, self.length, longest)
        self.length = longest

    def row(self, i):
        """The hotset_tensor with the logits that follow sequence i; valid until the next step."""
        at = i * self._n_rows + int(self._last_rows[i])
        self._logits_row.data = ffi.cast("char *", self.logits.data) + at * self._row_bytes
        return self._logits_row

    def _feed(self, prompts):
        n = max(map(len, prompts))
        ids = np.zeros((len(prompts), n), self._token_dtype)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        tensor, self._prompt_kept = view(ids, self._ids_name)
        self._set(text(self._ids_name), tensor)
        if self._position is not None:
            self._feed_positions(np.ascontiguousarray(np.broadcast_to(np.arange(n), (*self._position.shape[:-1], n))))
        self._lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        self._run_rows(n)

    def _feed_positions(self, positions):
        tensor, self._positions_kept = view(positions.astype(self._position.dtype, copy=False), self._positions_name)
        self._set(text(self._positions_name), tensor)

    def _run_rows(self, n_new):
        width = int(self._lengths.max())
        if self._mask is not None:
            count = len(self._lengths)
            mask = self._mask_array.reshape(-1)[: count * width].reshape(count, width)
            np.less(self._columns[:width], self._lengths[:, None], out=mask, casting="unsafe")
            self._mask_shape[0], self._mask_shape[1] = count, width
            self._set(self._mask_name, self._mask)
        for state in self._moving:
            state.advance(self.length, n_new)
        check(lib.hotset_binding_run(self._binding, self._run_options))
        self.length = width

    def _read_logits(self, last_rows):
        logits = self.logits
        check(lib.hotset_binding_output(self._binding, self._logits_name, logits))
        vocab = logits.shape[logits.rank - 1]
        self._n_rows = logits.shape[1] if logits.rank == 3 else 1
        self._last_rows = np.minimum(last_rows, self._n_rows - 1)
        self._row_bytes = vocab * numpy_dtype(logits.dtype).itemsize
        self._logits_row[0] = logits[0]
        self._logits_row.rank = 1
        self._logits_row.shape[0] = vocab
        self._logits_row.bytes = self._row_bytes
        self._logits_row.owner = ffi.NULL
