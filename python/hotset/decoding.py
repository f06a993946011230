# SPDX-License-Identifier: Apache-2.0
"""The decode loop of one sequence (of several: batch_decoding.py): buffers are bound once, a step changes token, position and lengths only.

         prefill of n tokens                      step
input_ids       (1, n)  copy of the prompt        (1, 1)   the same 8 bytes
attention_mask  (1, n)  view of a row of ones     (1, n+1) the same view, one wider
caches          in place; what cannot be in place alternates between two buffers
logits          (1, n, vocab) of the binding      (1, 1, vocab) always the same buffer

States lie where the graph reads them: on a GPU they never leave it. There the logits stay the binding's, in pinned memory.

Of a long prompt all tokens but the last only fill the caches: logits are not asked for, so the head and what only it needs are
not run for them.
"""

import numpy as np

from ._errors import InvalidModel, check
from ._native import ffi, lib, text
from .binding import create_binding
from .state_memory import DeviceStates, HostStates
from .tensor import TENSOR_SIZE, fill, numpy_dtype

_C_INTEGERS = {"int64": "int64_t", "int32": "int32_t"}
_TIME_AXIS = 2  # of (batch, heads, time, head size)
SPLIT_PROMPT = 16  # tokens from which on one more run is cheaper than logits nobody reads


def view(array, name):
    tensor = ffi.new("hotset_tensor *")
    return tensor, fill(tensor, array, name)


class _InPlace:
    """A cache whose past and present are one buffer."""

    is_cache = True

    def __init__(self, binding, past, present, memory):
        self._binding, self._past, self._present = binding, text(past), text(present)
        self._memory = memory
        self._tensor = memory.view()
        self._bind()

    def _bind(self):
        check(lib.hotset_binding_set_input(self._binding, self._past, self._tensor))
        check(lib.hotset_binding_set_output(self._binding, self._present, self._tensor))

    def start(self):
        """Rows past the length given by the mask are never read, so there is nothing to clear."""

    def advance(self, length, n_new):
        pass

    def keep(self, rows, length, longest):
        """Goes on with the sequences `rows` (ascending) alone; they have up to `longest` tokens."""
        self._memory.move_up(rows, longest)
        self._tensor.shape[0] = len(rows)
        self._bind()


class _Alternating:
    """A state that a step reads from one buffer and writes to the other. `growing` ones gain a row for each token."""

    def __init__(self, binding, past, present, memories, growing):
        self._binding, self._past, self._present = binding, text(past), text(present)
        self._growing = self.is_cache = growing
        self._memories = memories
        self._in, self._out = [memory.view() for memory in memories], [memory.view() for memory in memories]
        self._turn = 0

    def start(self):
        self._turn = 0
        if not self._growing:
            self._memories[0].clear()

    def advance(self, length, n_new):
        source, target = self._in[self._turn], self._out[1 - self._turn]
        if self._growing:
            source.shape[_TIME_AXIS] = length
            target.shape[_TIME_AXIS] = length + n_new
        check(lib.hotset_binding_set_input(self._binding, self._past, source))
        check(lib.hotset_binding_set_output(self._binding, self._present, target))
        self._turn = 1 - self._turn

    def keep(self, rows, length, longest):
        """As above; `length` is the number of rows that each cache has now."""
        shape = list(self._memories[0].shape)
        shape[0] = self._in[0].shape[0]
        if self._growing:
            shape[_TIME_AXIS] = length
        self._memories[1 - self._turn].take_rows(self._memories[self._turn], shape, rows, longest if self._growing else None)
        self._turn = 1 - self._turn
        for tensor in (*self._in, *self._out):
            tensor.shape[0] = len(rows)


class DecodeLoop:
    """Runs a prompt, then token after token, and leaves the logits of the last position in `logits`."""

    def __init__(self, session, config, max_length, run_options, n_sequences=1):
        self.max_length = max_length
        self.n_sequences = n_sequences
        self.length = 0  # tokens in the caches
        self._run_options = run_options._handle
        self._on_device = session._device != "cpu"
        self._places = {row["name"]: row["device"] for row in session.plan()["inputs"]} if self._on_device else {}
        self._binding = create_binding(session._open())
        self._inputs = {arg.name: arg for arg in session.get_inputs()}
        self._outputs = {arg.name: arg for arg in session.get_outputs()}
        self._dtypes = session._input_dtypes
        self._bind_states(config)
        self._bind_tokens(config)
        self._bind_logits(config)
        if self._inputs:
            raise InvalidModel(f"'{config.model_path}': inputs that genai_config.json does not describe: {', '.join(sorted(self._inputs))}")

    def _bind_states(self, config):
        self._states = []
        for layer, role, past, present in config.states():
            arg = self._inputs.pop(past, None)
            if arg is None:
                continue
            if present not in self._outputs:
                raise InvalidModel(f"'{config.model_path}': input '{past}' has no output '{present}'")
            is_cache = role in ("key", "value")
            shape = [self.n_sequences] + [size if isinstance(size, int) else None for size in arg.shape[1:]]
            in_place = False
            if is_cache:
                if len(shape) != 4:
                    raise InvalidModel(f"'{config.model_path}': cache '{past}' has shape {arg.shape}, expected 4 dimensions")
                windowed = layer in config.window_layers and "sliding" in str(arg.shape[_TIME_AXIS])
                in_place = windowed or config.share_buffer
                shape[1] = shape[1] or config.kv_heads
                shape[_TIME_AXIS] = config.window_capacity if windowed else self.max_length
                shape[3] = shape[3] or config.head_size
            if None in shape:
                raise InvalidModel(f"'{config.model_path}': the size of state '{past}' is open: {arg.shape}")
            if in_place:
                self._states.append(_InPlace(self._binding, past, present, self._state_memory(past, shape)))
            else:
                memories = [self._state_memory(past, shape) for _ in range(2)]
                self._states.append(_Alternating(self._binding, past, present, memories, growing=is_cache))
        self._moving = [state for state in self._states if isinstance(state, _Alternating)]

    def _state_memory(self, name, shape):
        """Zeros where the graph reads the state."""
        place = self._places.get(name, "cpu")
        if place == "cpu":
            return HostStates(shape, numpy_dtype(self._dtypes[name]), name)
        return DeviceStates(shape, self._dtypes[name], int(place.removeprefix("cuda:")))

    def _bind_tokens(self, config):
        self._ids_name = config.inputs.get("input_ids", "input_ids")
        if self._inputs.pop(self._ids_name, None) is None:
            raise InvalidModel(
                f"'{config.model_path}': the graph has no input '{self._ids_name}'; models fed with embeddings are not supported"
            )
        self._token_dtype = numpy_dtype(self._dtypes[self._ids_name])
        if self._token_dtype.name not in _C_INTEGERS:
            raise InvalidModel(f"'{config.model_path}': '{self._ids_name}' holds {self._token_dtype}, expected int64 or int32")
        self._token = np.zeros((self.n_sequences, 1), self._token_dtype)
        self._token_view, self._token_kept = view(self._token, self._ids_name)
        self._token_at = ffi.cast(_C_INTEGERS[self._token.dtype.name] + " *", self._token_view.data)

        mask = config.inputs.get("attention_mask", "attention_mask")
        self._mask_name = text(mask)
        self._mask = None
        if self._inputs.pop(mask, None) is not None:
            ones = np.ones((self.n_sequences, self.max_length), numpy_dtype(self._dtypes[mask]))
            self._mask, self._mask_kept = view(ones, mask)
            self._mask_array = ones
            self._mask_shape = self._mask.shape

        positions = config.inputs.get("position_ids", "position_ids")
        self._positions_name = positions
        self._position = None
        arg = self._inputs.pop(positions, None)
        if arg is not None:  # (batch, sequence), or (3, batch, sequence) with equal rows for text
            self._position = np.zeros(
                [3, self.n_sequences, 1] if len(arg.shape) == 3 else [self.n_sequences, 1], numpy_dtype(self._dtypes[positions])
            )
            self._position_view, self._position_kept = view(self._position, positions)

    def _bind_logits(self, config):
        name = config.outputs.get("logits", "logits")
        arg = self._outputs.get(name)
        if arg is None:
            raise InvalidModel(f"'{config.model_path}': the graph has no output '{name}'")
        self._logits_name = text(name)
        self._prompt_logits = self.logits = ffi.new("hotset_tensor *")
        self.logits.struct_size = TENSOR_SIZE
        vocab = arg.shape[-1] if arg.shape and isinstance(arg.shape[-1], int) else config.vocab_size
        self._row_shape = (1, 1, vocab)
        self._has_last_row_only = len(arg.shape) == 3 and arg.shape[1] == 1
        self._row = None  # allocated once the first run has told the element type

    def start(self, ids):
        """Runs the prompt `ids` from an empty cache."""
        self.length = 0
        for state in self._states:
            state.start()
        if len(ids) >= SPLIT_PROMPT:
            check(lib.hotset_binding_drop_output(self._binding, self._logits_name))
            self._feed(ids[:-1])
            ids = ids[-1:]
        check(lib.hotset_binding_set_output(self._binding, self._logits_name, ffi.NULL))
        self._feed(ids)
        self.logits = self._prompt_logits
        check(lib.hotset_binding_output(self._binding, self._logits_name, self.logits))
        self._is_prompt = True

    def _feed(self, ids):
        n = len(ids)
        prompt, self._prompt_kept = view(np.array(ids, self._token_dtype).reshape(1, n), self._ids_name)
        self._set(text(self._ids_name), prompt)
        if self._position is not None:
            shape = (*self._position.shape[:-1], n)
            positions = np.arange(self.length, self.length + n, dtype=self._position.dtype)
            positions = np.ascontiguousarray(np.broadcast_to(positions, shape))
            tensor, self._positions_kept = view(positions, self._positions_name)
            self._set(text(self._positions_name), tensor)
        self._run(n)

    def step(self, token):
        """Appends one token."""
        if self._is_prompt:
            self._bind_step()
        self._token_at[0] = token
        if self._position is not None:
            self._position.fill(self.length)
        self._run(1)
        if self._on_device:
            check(lib.hotset_binding_output(self._binding, self._logits_name, self.logits))

    def _bind_step(self):
        self._is_prompt = False
        if not self._on_device:
            self._bind_row()
        self._set(text(self._ids_name), self._token_view)
        if self._position is not None:
            self._set(text(self._positions_name), self._position_view)

    def _bind_row(self):
        if self._row is None:
            self._row, self._row_kept = view(np.zeros(self._row_shape, numpy_dtype(self.logits.dtype)), "logits")
        check(lib.hotset_binding_set_output(self._binding, self._logits_name, self._row))
        self.logits = self._row

    def _set(self, name, tensor):
        check(lib.hotset_binding_set_input(self._binding, name, tensor))

    def _run(self, n_new):
        length = self.length + n_new
        if self._mask is not None:
            self._mask_shape[1] = length
            self._set(self._mask_name, self._mask)
        for state in self._moving:
            state.advance(self.length, n_new)
        check(lib.hotset_binding_run(self._binding, self._run_options))
        self.length = length
