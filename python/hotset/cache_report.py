# SPDX-License-Identifier: Apache-2.0
"""Bytes of the K/V caches and other states of one sequence, from the declared inputs of a graph."""

import re

from ._errors import InvalidArgument

_BITS = {"float": 32, "float16": 16, "bfloat16": 16, "double": 64, "int8": 8, "uint8": 8, "float8e4m3fn": 8, "float8e5m2": 8}
_BITS |= {"int4": 4, "uint4": 4, "int32": 32, "int64": 64}
_LONGEST = 2**31 - 1  # tokens
_TIME_AXIS = 2  # of (batch, heads, time, head size)
# Names that exporters give caches where no genai_config.json says them.
_CACHE = re.compile(r"past.*(key|value)s?$|(key|value)_cache(\.\d+)?$")


def cache_report(inputs, config=None, context=None):
    """The states of one sequence.

    inputs    rows {"name", "type", "shape"} of hotset.plan
    config    GenaiConfig of the folder: names the states and sizes that the graph leaves open; None: names of exporters
    context   tokens; None: those of the config, if there is one

    Gives {"context", "bytes_per_token", "bytes", "states": [{"input", "kind", "bytes_per_token", "rows", "bytes"}]}. `kind` is
    "full" (a row for each token), "window" (`rows` rows whatever the context) or "state" (no rows). Bytes that depend on a size
    which nobody says are None, as are sums over them; "bytes_per_token" is the sum over full caches."""
    if context is not None and not 1 <= context <= _LONGEST:
        raise InvalidArgument(f"a context of {context} tokens, allowed: 1..{_LONGEST}")
    if context is None and config is not None:
        context = config.context_length
    roles = {} if config is None else {past: (layer, role) for layer, role, past, _ in config.states()}
    states = []
    for row in inputs:
        layer, role = roles.get(row["name"], (None, None))
        if role is None and (config is not None or not _CACHE.search(row["name"])):
            continue
        is_cache = role is None or role in ("key", "value")
        state = _window_or_full(row, layer, config, context) if is_cache else _fixed(row)
        states.append({"input": row["name"], **state})
    return {
        "context": context,
        "bytes_per_token": _sum(state["bytes_per_token"] for state in states if state["kind"] == "full"),
        "bytes": _sum(state["bytes"] for state in states),
        "states": states,
    }


def _sum(numbers):
    numbers = list(numbers)
    return None if None in numbers else sum(numbers)


def _product(sizes, type_name):
    """Bytes of a tensor with these sizes, None when one is open."""
    bits = _BITS.get(type_name)
    if bits is None or not all(isinstance(size, int) for size in sizes):
        return None
    for size in sizes:
        bits *= size
    return (bits + 7) // 8


def _fixed(row):
    return {"kind": "state", "bytes_per_token": None, "rows": None, "bytes": _product((row["shape"] or [None])[1:], row["type"])}


def _window_or_full(row, layer, config, context):
    shape = list(row["shape"] or [])
    if len(shape) == 3:  # (batch, rows, heads * head size)
        time, sizes = shape[1], shape[2:]
    elif len(shape) == 4:
        time = shape[_TIME_AXIS]
        defaults = (None, None) if config is None else (config.kv_heads, config.head_size)
        sizes = [size if isinstance(size, int) else default for size, default in zip((shape[1], shape[3]), defaults, strict=True)]
    else:
        return {"kind": "full", "bytes_per_token": None, "rows": context, "bytes": None}
    each = _product(sizes, row["type"])
    kind, rows = "full", context
    if isinstance(time, int):
        kind, rows = "window", time
    elif "sliding" in str(time):
        kind, rows = "window", config.window_capacity if config is not None and layer in config.window_layers else None
    return {"kind": kind, "bytes_per_token": each, "rows": rows, "bytes": None if None in (each, rows) else each * rows}


def cache_rows(report, size_text):
    """Table rows for a terminal: kind, number of states, bytes per token, rows, bytes."""
    groups = {}
    for state in report["states"]:
        groups.setdefault((state["kind"], state["bytes_per_token"], state["rows"]), []).append(state["bytes"])
    names = {"full": "K/V, a row for each token", "window": "K/V of a window", "state": "state"}

    def shown(value, form=str):
        return "?" if value is None else form(value)

    rows = [("cache", "inputs", "bytes a token", "rows", "size")]
    for (kind, each, n_rows), sizes in groups.items():
        fixed = kind == "state"
        cells = "-" if fixed else shown(each, size_text), "-" if fixed else shown(n_rows)
        rows.append((names[kind], str(len(sizes)), *cells, shown(_sum(sizes), size_text)))
    total = "all together" if report["context"] is None else f"all together for {report['context']} tokens"
    rows.append((total, str(len(report["states"])), shown(report["bytes_per_token"], size_text), "", shown(report["bytes"], size_text)))
    return rows
