# SPDX-License-Identifier: Apache-2.0
"""Devices of this machine, and onnxruntime's names for them."""

import dataclasses

from ._errors import InvalidArgument, Unsupported, check
from ._native import ffi, lib, string

PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """A device as `devices()` lists it."""

    type: str  # "cpu" or "cuda"
    index: int
    name: str
    memory_bytes: int
    compute_capability: tuple  # (9, 0); (0, 0) for the CPU
    driver_version: int  # 1000 * major + 10 * minor; 0 for the CPU


def _cuda_count():
    count = ffi.new("int32_t *")
    check(lib.hotset_device_count(count))
    return count[0]


def devices():
    """The CPU, then every usable CUDA device."""
    found = []
    for index in range(-1, _cuda_count()):
        info = ffi.new("hotset_device_info *")
        info.struct_size = ffi.sizeof("hotset_device_info")
        check(lib.hotset_device_get_info(index, info))
        kind = "cpu" if info.device == lib.HOTSET_CPU else "cuda"
        capability = (info.compute_major, info.compute_minor)
        found.append(DeviceInfo(kind, info.device_id, string(info.name), info.memory_bytes, capability, info.driver_version))
    return found


def _cuda_note():
    """Why no CUDA device serves, or None."""
    return None if _cuda_count() else string(lib.hotset_device_note())


def provider_device(pairs):
    """The value of hotset.device for pairs (name, options) of check_providers: the first of them decides."""
    if not pairs or pairs[0][0] != PROVIDERS[0]:
        return "cpu"
    index = str(pairs[0][1].get("device_id", 0))
    if not index.isdecimal():
        raise InvalidArgument(f"{PROVIDERS[0]}: device_id is {index!r}, expected the number of a GPU")
    return f"cuda:{int(index)}"


def get_all_providers():
    """Every provider name that is understood, preferred first."""
    return list(PROVIDERS)


def get_available_providers():
    """The providers that can compute here with this build, preferred first."""
    return list(PROVIDERS if _cuda_note() is None else PROVIDERS[1:])


def get_device():
    """GPU where the CUDA provider is available, else CPU."""
    return "GPU" if _cuda_note() is None else "CPU"


def check_providers(providers, provider_options, options, warn):
    """Pairs (name, options) in order of preference. An unavailable one falls back to the CPU with a warning, as in
    onnxruntime, or is an error where session.disable_cpu_ep_fallback is 1."""
    pairs = []
    for entry in providers or ():
        name, values = (entry, {}) if isinstance(entry, str) else entry
        if name not in PROVIDERS:
            raise InvalidArgument(f"provider '{name}' is unknown; known: {', '.join(PROVIDERS)}")
        pairs.append([name, dict(values)])
    if provider_options:
        if len(provider_options) != len(pairs):
            raise InvalidArgument(f"{len(provider_options)} provider_options for {len(pairs)} providers")
        pairs = [[name, {**values, **more}] for (name, values), more in zip(pairs, provider_options, strict=True)]
    if any(name == PROVIDERS[0] for name, _ in pairs):
        note = _cuda_note()
        if note is not None:
            text = f"{PROVIDERS[0]} is not available here ({note})"
            if options.get_session_config_entry("session.disable_cpu_ep_fallback") == "1":
                raise Unsupported(f"{text}, and session.disable_cpu_ep_fallback=1 forbids the CPU")
            warn(f"{text}; the CPU serves")
            pairs = [pair for pair in pairs if pair[0] != PROVIDERS[0]]
    return pairs
