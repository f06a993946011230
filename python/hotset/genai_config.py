# SPDX-License-Identifier: Apache-2.0
"""What a generation loop reads from the genai_config.json of a model folder."""

import dataclasses
import json
import pathlib

from ._errors import InvalidModel, NotFound


@dataclasses.dataclass(frozen=True)
class GenaiConfig:
    model_path: pathlib.Path
    inputs: dict  # role -> name in the graph, or a pattern with %d for the layer
    outputs: dict
    n_layers: int
    head_size: int
    kv_heads: int
    window_layers: frozenset  # layers that may keep a windowed cache; the graph decides
    window_capacity: int
    share_buffer: bool  # past and present of a layer are one buffer of max_length
    max_length: int
    context_length: int
    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: frozenset
    search: dict
    session_entries: dict

    def states(self):
        """Pairs (layer, role, input name, output name) that the patterns give; the graph may hold any subset."""
        roles = [role[len("past_") : -len("_names")] for role in self.inputs if role.startswith("past_") and role.endswith("_names")]
        for layer in range(self.n_layers):
            for role in roles:
                present = self.outputs.get(f"present_{role}_names")
                if present is not None:
                    yield layer, role, self.inputs[f"past_{role}_names"] % layer, present % layer


def read_genai_config(folder, name=None):
    """`name`: what the caller gave as the folder, for the error. Raises NotFound, InvalidModel."""
    folder = pathlib.Path(folder)
    path = folder / "genai_config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"'{folder if name is None else name}' is not a model folder: it has no genai_config.json") from None
    except OSError as error:
        raise NotFound(f"'{path}' cannot be read: {error.strerror}") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidModel(f"'{path}' is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidModel(f"'{path}' is not a JSON object")
    try:
        return _parse(folder, document)
    except KeyError as error:
        raise InvalidModel(f"'{path}': the field {error} is missing") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidModel(f"'{path}': {error}") from None


MOST_LAYERS = 10000  # of a decoder; more is a damaged file


def _counted(section, field, most):
    """A field that is a whole number from 1 on."""
    value = section[field]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"{field} is {value!r}, expected a whole number from 1 to {most}")
    return value


def _patterns(section, name):
    """Names of states, with a %d for the layer."""
    for key, pattern in section.items():
        if key.startswith(("past_", "present_")) and key.endswith("_names"):
            try:
                same = not isinstance(pattern, str) or pattern % 0 == pattern % 1
            except (TypeError, ValueError):
                same = True
            if same:
                raise ValueError(f"model.decoder.{name}.{key} is {pattern!r}, expected a name with %d for the layer")
    return dict(section)


def _parse(folder, document):
    model, search = document["model"], document.get("search", {})
    decoder = model["decoder"]
    window = decoder.get("sliding_window") or {}
    eos = model.get("eos_token_id")
    eos = [] if eos is None else eos if isinstance(eos, list) else [eos]
    context_length = int(model.get("context_length") or search["max_length"])
    return GenaiConfig(
        model_path=folder / decoder["filename"],
        inputs=_patterns(decoder["inputs"], "inputs"),
        outputs=_patterns(decoder["outputs"], "outputs"),
        n_layers=_counted(decoder, "num_hidden_layers", MOST_LAYERS),
        head_size=_counted(decoder, "head_size", 1 << 20),
        kv_heads=_counted(decoder, "num_key_value_heads", 1 << 20),
        window_layers=frozenset(window.get("layers", ())),
        window_capacity=int(window.get("window_size", 0)) + int(window.get("cache_slack", 0)),
        share_buffer=bool(search.get("past_present_share_buffer", False)),
        max_length=min(int(search.get("max_length") or context_length), context_length),
        context_length=context_length,
        vocab_size=int(model["vocab_size"]),
        bos_token_id=model.get("bos_token_id"),
        eos_token_ids=frozenset(int(token) for token in eos),
        search=dict(search),
        session_entries={
            key: str(value)
            for key, value in (decoder.get("session_options") or {}).items()
            if key not in ("log_id", "provider_options") and not isinstance(value, (dict, list))
        },
    )
