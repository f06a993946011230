# SPDX-License-Identifier: Apache-2.0
"""Generator: text from a model folder as the GenAI model builder writes it (genai_config.json, tokenizer.json)."""

import collections.abc
import contextlib
import dataclasses
import importlib.resources
import itertools
import json
import logging
import numbers
import os
import pathlib
import secrets
import threading
import time

from ._errors import InvalidArgument, InvalidModel, InvalidState, NotFound, Unsupported, check
from ._native import ffi, lib, own
from .batch_decoding import BatchDecodeLoop
from .decoding import DecodeLoop
from .detokenizer import StopStrings, create_detokenizer
from .genai_config import read_genai_config
from .options import RunOptions, require_options
from .prompt_bound import longest_text
from .session import InferenceSession
from .settings import fill_sampler_config, refuse_unknown, stop_texts, token_ids, token_limit, whole

# Prompts of fewer characters are tokenised before their length is judged.
LONG_PROMPT = 1 << 20


@dataclasses.dataclass(slots=True)
class GenerationStats:
    """Counts and times of one generation; it is filled while the generation runs."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    first_token_s: float = 0.0  # from the call to the first chosen token
    decode_s: float = 0.0  # from the first chosen token to the last
    finish_reason: str = ""  # "stop" (token or string), "length"; "" while running or when abandoned
    stop_text: str = ""  # of `stop`, that ended it

    @property
    def tokens_per_second(self):
        """Decode rate: the first token belongs to the prompt."""
        return (self.new_tokens - 1) / self.decode_s if self.new_tokens > 1 and self.decode_s > 0 else 0.0


def model_folder(name):
    """`name` as a folder: itself, the folder of a model file, or for "demo" the model that comes with the package unless a
    model folder of that name exists here."""
    folder = pathlib.Path(name)
    if os.fspath(name) == "demo" and not (folder / "genai_config.json").is_file():
        config = importlib.resources.files(__package__) / "models" / "demo" / "genai_config.json"
        return pathlib.Path(str(config)).parent
    return folder.parent if folder.is_file() else folder


def _load_tokenizer(folder):
    path = folder / "tokenizer.json"
    try:
        import tokenizers
    except ImportError:
        raise Unsupported("text needs the package tokenizers: pip install 'hotset[cli]'") from None
    if not path.is_file():
        raise NotFound(f"'{path}' is missing")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises no other type
        raise InvalidModel(f"'{path}' is no tokenizer: {error}") from None


class Generator:
    """Generates text or token ids: one sequence, or a batch of them in one go. A new call starts anew, one call at a time.

        generator = hotset.Generator("demo")
        for piece in generator.stream("In the beginning", 64): print(piece, end="")
        texts = generator.generate_batch(["In the beginning", "import os"], 64, temperature=0.8, seed=[1, 2])

    Settings of all of them, where None means the value of genai_config.json:
        max_new_tokens      at least 1; None: up to max_length
        temperature         0 and above; 0 is greedy
        top_k, top_p        0 or less / 1 turn them off
        repetition_penalty  above 0; 1 turns it off
        do_sample           False is greedy; left out, a temperature, top_k or top_p given in the call means True
        seed                0..2**64-1: same seed, same logits, same tokens; None draws one
        stop                a text or several: the answer ends before it (text only)
        stop_token_ids      in addition to the end-of-text tokens of the model
    Wrong values raise InvalidArgument before anything runs."""

    def __init__(self, folder, sess_options=None, providers=None, max_length=None):
        """`max_length` bounds prompt and answer together and sizes the caches; default: the smaller of the
        model's context_length and its search.max_length."""
        self.folder = model_folder(folder)
        self.config = read_genai_config(self.folder, folder)
        context_length = self.config.context_length
        self.max_length = self.config.max_length if max_length is None else whole(max_length, "max_length")
        if not 1 <= self.max_length <= context_length:
            raise InvalidArgument(f"max_length is {self.max_length}, allowed: 1..{context_length} (context_length of the model)")
        options = require_options(sess_options)._with_defaults(self.config.session_entries)
        self.session = InferenceSession(self.config.model_path, options, providers)
        self.run_options = RunOptions()
        self.stats = GenerationStats()  # of the last single sequence
        self.batch_stats = []  # GenerationStats of each prompt of the last batch
        self._tokenizer = None
        self._longest_prompt = None
        self._loop = None
        self._turn = 0  # of the sequence that owns the caches
        self._turn_lock = threading.Lock()
        self._lock = threading.Lock()  # held while a sequence takes a step
        beams = self.config.search.get("num_beams", 1)
        if isinstance(beams, int) and beams > 1:
            logging.getLogger("hotset").warning("genai_config.json asks for %d beams; one sequence is generated", beams)

    @property
    def tokenizer(self):
        """The tokenizers.Tokenizer of the folder."""
        if self._tokenizer is None:
            self._tokenizer = _load_tokenizer(self.folder)
        return self._tokenizer

    def longest_prompt(self):
        """Characters of the longest text that can leave room for an answer, at least LONG_PROMPT; None: the tokenizer sets no bound.
        No prompt that would fit is longer; longer ones are refused without being tokenised."""
        if self._longest_prompt is None:
            longest = longest_text(self.tokenizer, self.max_length - 1)
            self._longest_prompt = (None if longest is None else max(longest, LONG_PROMPT),)
        return self._longest_prompt[0]

    def close(self):
        """Frees model and caches."""
        self._loop = None
        self.session.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def encode(self, prompt):
        """Token ids of a text; ids are passed through; no text at all is the begin-of-text token."""
        if isinstance(prompt, str):
            if len(prompt) > LONG_PROMPT:
                longest = self.longest_prompt()
                if longest is not None and len(prompt) > longest:
                    self._refuse_length(f"{len(prompt)} characters, which are more than {self.max_length - 1} tokens")
            try:
                ids = self.tokenizer.encode(prompt).ids
            except (TypeError, UnicodeEncodeError):
                raise InvalidArgument("the prompt holds a lone surrogate, which is no text") from None
        elif isinstance(prompt, collections.abc.Iterable) and not isinstance(prompt, (bytes, bytearray, memoryview)):
            ids = [whole(token, "a token") for token in itertools.islice(prompt, self.max_length)]  # it may be endless
        else:
            raise InvalidArgument(f"a prompt is a str or a sequence of token ids, not {type(prompt).__name__}")
        if not ids and self.config.bos_token_id is not None:
            ids = [self.config.bos_token_id]
        if not ids:
            raise InvalidArgument("the prompt has no tokens")
        outside = [token for token in ids if not 0 <= token < self.config.vocab_size]
        if outside:
            raise InvalidArgument(f"token {outside[0]} is outside the vocabulary of {self.config.vocab_size}")
        if len(ids) >= self.max_length:
            count = len(ids) if isinstance(prompt, str) else len(prompt) if isinstance(prompt, collections.abc.Sized) else "too many"
            self._refuse_length(f"{count} tokens")
        return ids

    def _refuse_length(self, what):
        limit = f"max_length is {self.max_length}"
        if self.max_length < self.config.context_length:
            limit += f" (up to {self.config.context_length} with Generator(..., max_length=...))"
        raise InvalidArgument(f"the prompt has {what}, {limit}, and the answer needs at least one")

    def chat_prompt(self, messages, **variables):
        """The prompt text for messages [{"role": ..., "content": ...}], by the chat template of the folder."""
        try:
            import jinja2.sandbox
        except ImportError:
            raise Unsupported("chat templates need the package jinja2: pip install jinja2") from None
        path = self.folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        path = self.folder / "chat_template.jinja"
        template = path.read_text(encoding="utf-8") if path.is_file() else settings.get("chat_template")
        if not isinstance(template, str):
            raise NotFound(f"'{self.folder}' has no chat template")

        def raise_exception(message):
            raise InvalidArgument(f"chat template: {message}")

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = time.strftime
        tokens = {key: value for key, value in settings.items() if key.endswith("_token") and isinstance(value, str)}
        values = {**tokens, "messages": messages, "add_generation_prompt": True, **variables}
        return environment.from_string(template).render(values)

    def stream_ids(
        self,
        prompt,
        max_new_tokens=None,
        *,
        temperature=None,
        top_k=None,
        top_p=None,
        repetition_penalty=None,
        do_sample=None,
        seed=None,
        stop_token_ids=(),
    ):
        """Yields token ids as they are chosen, without the stop token. Settings left out come from genai_config.json;
        a temperature, top_k or top_p given here turns sampling on unless do_sample says otherwise."""
        ids = self.encode(prompt)
        max_new_tokens = token_limit(max_new_tokens)
        sampler = self._create_sampler(temperature, top_k, top_p, repetition_penalty, do_sample, seed)
        room = self.max_length - len(ids)
        limit = room if max_new_tokens is None else min(room, max_new_tokens)
        self.stats = GenerationStats(prompt_tokens=len(ids))
        return self._generate(ids, limit, sampler, self.config.eos_token_ids | token_ids(stop_token_ids), self.stats, self._new_turn())

    def stream(self, prompt, max_new_tokens=None, *, stop=(), **settings):
        """Yields pieces of text; characters and stop strings are never split over two pieces. Settings as in stream_ids."""
        refuse_unknown(settings)
        stops = StopStrings(stop_texts(stop))
        ids = self.encode(prompt)
        return self._pieces(ids, self.stream_ids(ids, max_new_tokens, **settings), stops, self.stats)

    def generate(self, prompt, max_new_tokens=None, **settings):
        """The whole answer as text, without the prompt."""
        refuse_unknown(settings, "stop")
        return "".join(self.stream(prompt, max_new_tokens, **settings))

    def stream_batch_ids(
        self,
        prompts,
        max_new_tokens=None,
        *,
        temperature=None,
        top_k=None,
        top_p=None,
        repetition_penalty=None,
        do_sample=None,
        seed=None,
        stop_token_ids=(),
    ):
        """Yields pairs (number of the prompt, token id). Each step of the graph serves all prompts, whatever their lengths;
        a sequence that ends leaves the batch. A prompt gives what it gives alone, up to rounding: kernels for one and for
        many rows add in different orders, and a near tie between two tokens may then fall the other way.

        `max_new_tokens` and the sampling settings are one value for all prompts or a list with one for each. An int as
        `seed` gives prompt i the seed + i, so that equal prompts continue differently."""
        settings = (temperature, top_k, top_p, repetition_penalty, do_sample, seed)
        return self._stream_batch(prompts, max_new_tokens, settings, stop_token_ids)[1]

    def _stream_batch(self, prompts, max_new_tokens, settings, stop_token_ids, ended=()):
        if isinstance(prompts, (str, bytes)) or not isinstance(prompts, collections.abc.Iterable):
            raise InvalidArgument(f"a batch is a list of prompts, not {type(prompts).__name__}")
        ids = [self.encode(prompt) for prompt in prompts]
        n = len(ids)

        def spread(value, name):
            if not isinstance(value, (list, tuple)):
                return [value] * n
            if len(value) != n:
                raise InvalidArgument(f"{name} has {len(value)} values for {n} prompts")
            return list(value)

        *others, seed = settings
        seeds = [(int(seed) + i) % 2**64 for i in range(n)] if isinstance(seed, numbers.Integral) and seed >= 0 else spread(seed, "seed")
        names = ("temperature", "top_k", "top_p", "repetition_penalty", "do_sample")
        columns = [spread(value, name) for value, name in zip(others, names, strict=True)]
        samplers = [self._create_sampler(*row) for row in zip(*columns, seeds, strict=True)]
        limits = []
        for prompt, limit in zip(ids, spread(max_new_tokens, "max_new_tokens"), strict=True):
            limit = token_limit(limit)
            room = self.max_length - len(prompt)
            limits.append(room if limit is None else min(room, limit))
        self.batch_stats = [GenerationStats(prompt_tokens=len(prompt)) for prompt in ids]
        stop_ids = self.config.eos_token_ids | token_ids(stop_token_ids)
        return ids, self._generate_batch(ids, limits, samplers, stop_ids, self.batch_stats, self._new_turn(), ended)

    def stream_batch(
        self,
        prompts,
        max_new_tokens=None,
        *,
        stop=(),
        temperature=None,
        top_k=None,
        top_p=None,
        repetition_penalty=None,
        do_sample=None,
        seed=None,
        stop_token_ids=(),
    ):
        """Yields pairs (number of the prompt, piece of its text). Settings as in stream_batch_ids, `stop` for all prompts."""
        ended = set()
        stops = stop_texts(stop)
        settings = (temperature, top_k, top_p, repetition_penalty, do_sample, seed)
        ids, tokens = self._stream_batch(prompts, max_new_tokens, settings, stop_token_ids, ended)
        texts = [(create_detokenizer(self.tokenizer, prompt), StopStrings(stops)) for prompt in ids]
        return self._batch_pieces(tokens, texts, ended, self.batch_stats)

    def generate_batch(self, prompts, max_new_tokens=None, **settings):
        """The answers to all prompts as a list of texts. Settings as in stream_batch."""
        refuse_unknown(settings, "stop")
        pieces = self.stream_batch(prompts, max_new_tokens, **settings)
        texts = [[] for _ in self.batch_stats]
        for index, piece in pieces:
            texts[index].append(piece)
        return ["".join(text) for text in texts]

    def cancel(self):
        """Stops a running generation from any thread: it raises Cancelled."""
        self.run_options.cancel()

    def _create_sampler(self, temperature, top_k, top_p, repetition_penalty, do_sample, seed):
        search = self.config.search
        if do_sample is None:
            given = any(value is not None for value in (temperature, top_k, top_p))
            do_sample = given or bool(search.get("do_sample", False))

        if seed is not None and not 0 <= whole(seed, "seed") < 2**64:
            raise InvalidArgument(f"seed is {seed}, allowed: 0..2**64-1")
        config = ffi.new("hotset_sampler_config *")
        config.struct_size = ffi.sizeof("hotset_sampler_config")
        given = {
            "do_sample": do_sample,
            "top_k": top_k,
            "top_p": top_p,
            "temperature": temperature,
            "repetition_penalty": repetition_penalty,
        }
        fill_sampler_config(config, given, search)
        config.seed = secrets.randbits(64) if seed is None else seed
        out = ffi.new("hotset_sampler **")
        check(lib.hotset_sampler_create(out, config))
        return own(out[0], lib.hotset_sampler_free)

    def _generate(self, ids, limit, sampler, stop_ids, stats, turn):
        begin = time.perf_counter()
        check(lib.hotset_sampler_accept(sampler, ids, len(ids)))
        with self._step(turn):
            self.run_options.reset()
            if self._loop is None:
                self._loop = DecodeLoop(self.session, self.config, self.max_length, self.run_options)
            loop, next_token, chosen, clock = self._loop, lib.hotset_sampler_next, ffi.new("int64_t *"), time.perf_counter
            loop.start(ids)
        n_new, first = 0, None
        while True:
            check(next_token(sampler, loop.logits, chosen))
            token, now = chosen[0], clock()
            if first is None:
                first = now
                stats.first_token_s = now - begin
            stats.decode_s = now - first
            stats.new_tokens = n_new = n_new + 1
            if token in stop_ids:
                stats.finish_reason = "stop"
                return
            if n_new == limit:
                stats.finish_reason = "length"
                yield token
                return
            yield token
            with self._step(turn):
                loop.step(token)

    def _generate_batch(self, ids, limits, samplers, stop_ids, stats, turn, ended):
        """`ended`: prompts whose sequences the caller wants to end, looked at after each token."""
        begin = time.perf_counter()
        if not ids:
            return
        for prompt, sampler in zip(ids, samplers, strict=True):
            check(lib.hotset_sampler_accept(sampler, prompt, len(prompt)))
        longest = max(len(prompt) + limit for prompt, limit in zip(ids, limits, strict=True))
        with self._step(turn):
            self.run_options.reset()
            loop = BatchDecodeLoop(self.session, self.config, longest, self.run_options, len(ids))
            loop.start(ids)
        next_token, chosen, clock = lib.hotset_sampler_next, ffi.new("int64_t *"), time.perf_counter
        sequences = list(range(len(ids)))  # numbers of the prompts that the rows of the batch continue
        while True:
            rows, tokens = [], []
            for row, index in enumerate(sequences):
                check(next_token(samplers[index], loop.row(row), chosen))
                token, of = chosen[0], stats[index]
                since_begin = clock() - begin
                if not of.new_tokens:
                    of.first_token_s = since_begin
                of.decode_s = since_begin - of.first_token_s
                of.new_tokens += 1
                if token in stop_ids:
                    of.finish_reason = "stop"
                    continue
                is_last = of.new_tokens == limits[index]
                if is_last:
                    of.finish_reason = "length"
                yield index, token
                self._check_turn(turn)
                if not is_last and index not in ended:
                    rows.append(row)
                    tokens.append(token)
            if not rows:
                return
            with self._step(turn):
                if len(rows) < len(sequences):
                    loop.keep(rows)
                    sequences = [sequences[row] for row in rows]
                loop.step(tokens)

    def _batch_pieces(self, tokens, texts, ended, stats):
        def push(index, piece):
            stops = texts[index][1]
            text = stops.push(piece)
            if stops.found:
                ended.add(index)
                stats[index].finish_reason, stats[index].stop_text = "stop", stops.string
            return text

        for index, token in tokens:
            text = push(index, texts[index][0].push(token))
            if text:
                yield index, text
        for index, (pieces, stops) in enumerate(texts):
            if stops.found:
                continue
            text = push(index, pieces.flush())
            text += "" if stops.found else stops.flush()
            if text:
                yield index, text

    @contextlib.contextmanager
    def _step(self, turn):
        """The caches belong to the sequence that was started last, and to one thread while it takes a step."""
        if not self._lock.acquire(blocking=False):
            raise InvalidState("this Generator is generating in another thread; give each thread a Generator of its own")
        try:
            self._check_turn(turn)
            yield
        finally:
            self._lock.release()

    def _new_turn(self):
        with self._turn_lock:  # two threads never get one number, whether or not the interpreter has a lock of its own
            self._turn += 1
            return self._turn

    def _check_turn(self, turn):
        if turn != self._turn:
            raise InvalidState("another generation was started with this Generator; one at a time; for several prompts see stream_batch")

    def _pieces(self, ids, tokens, stops, stats):
        pieces = create_detokenizer(self.tokenizer, ids)
        for token in tokens:
            text = stops.push(pieces.push(token))
            if text:
                yield text
            if stops.found:
                stats.finish_reason, stats.stop_text = "stop", stops.string
                return
        text = stops.push(pieces.flush())
        if stops.found:
            stats.finish_reason, stats.stop_text = "stop", stops.string
        text += "" if stops.found else stops.flush()
        if text:
            yield text
