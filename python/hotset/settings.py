# SPDX-License-Identifier: Apache-2.0
"""Checks of the settings of a generation."""

import collections.abc
import operator

from ._errors import InvalidArgument, WrongType

_NAMES = ("temperature", "top_k", "top_p", "repetition_penalty", "do_sample", "seed", "stop_token_ids")
_KINDS = {"top_k": "a whole number in range", "do_sample": "True or False"}
_DEFAULTS = {"do_sample": False, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "repetition_penalty": 1.0}


def whole(value, name):
    """An int; bool, float and text are none."""
    if isinstance(value, bool):
        raise WrongType(f"{name} is {value!r}, expected a whole number")
    try:
        return operator.index(value)
    except TypeError:
        raise WrongType(f"{name} is {value!r}, expected a whole number") from None


def token_limit(value):
    """max_new_tokens, at least 1, or None."""
    if value is None:
        return None
    value = whole(value, "max_new_tokens")
    if value < 1:
        raise InvalidArgument(f"max_new_tokens is {value}, expected at least 1")
    return value


def stop_texts(stop):
    """The texts of `stop`, which is one or several."""
    if not isinstance(stop, (str, collections.abc.Iterable)):
        raise WrongType(f"stop is {stop!r}, expected a text or a list of texts")
    stops = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(text, str) and text for text in stops):
        raise InvalidArgument("stop: a stop text is empty or no text")
    return stops


def token_ids(ids):
    """The set of `stop_token_ids`."""
    if not isinstance(ids, collections.abc.Iterable):
        raise WrongType(f"stop_token_ids is {ids!r}, expected a list of token ids")
    return {whole(token, "a token of stop_token_ids") for token in ids}


def refuse_unknown(settings, *others):
    """Raises TypeError for a keyword that is no setting."""
    allowed = (*_NAMES, *others)
    for name in settings:
        if name not in allowed:
            raise TypeError(f"unexpected argument '{name}', the settings are {', '.join(allowed)}")


def fill_sampler_config(config, given, search):
    """Sets do_sample, top_k, top_p, temperature and repetition_penalty of a hotset_sampler_config: where `given` has None from `search`,
    the section of genai_config.json."""
    for name, default in _DEFAULTS.items():
        value = search.get(name, default) if given[name] is None else given[name]
        if name in ("top_p", "repetition_penalty") and value == 0:  # off for the library; who writes it means something else
            raise InvalidArgument(f"{name} is {value}, must be above 0")
        try:
            setattr(config, name, value)
        except (TypeError, OverflowError) as error:
            failure = WrongType if isinstance(error, TypeError) else InvalidArgument
            raise failure(f"{name} is {value!r}, expected {_KINDS.get(name, 'a number')}") from None
