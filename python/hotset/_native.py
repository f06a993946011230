# SPDX-License-Identifier: Apache-2.0
"""Find and load the shared library, and own what it hands out."""

import contextlib
import importlib.resources
import json
import os
import sys

from ._program import is_command

_NAMES = {"win32": "hotset.dll", "darwin": "libhotset.1.dylib"}
_resources = contextlib.ExitStack()  # keeps an unpacked library in place when the package is imported from a zip file


def _import_cffi():
    try:
        import cffi
    except ImportError as error:
        is_free_threaded = "t" in getattr(sys, "abiflags", "")
        hint = "; for a free-threaded interpreter it exists from CPython 3.14 on" if is_free_threaded else ""
        raise ImportError(f"hotset: cannot import cffi: {error}; install it with: pip install cffi{hint}") from None
    return cffi


def _load():
    cffi = _import_cffi()
    package = importlib.resources.files(__package__)
    try:
        declarations = (package / "_cdef.h").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ImportError("hotset: the package is not built here (no _cdef.h); install it with: pip install .") from None
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    path = os.environ.get("HOTSET_LIBRARY")
    if not path:
        path = str(_resources.enter_context(importlib.resources.as_file(package / _NAMES.get(sys.platform, "libhotset.so.1"))))
    try:
        lib = ffi.dlopen(path)
        found = lib.hotset_api_version()
    except (OSError, AttributeError) as error:
        raise ImportError(f"hotset: cannot load {path}: {error}; reinstall hotset or point HOTSET_LIBRARY at its library") from None
    if found != lib.HOTSET_API_VERSION:
        raise ImportError(
            f"hotset: {path} has API version {found}, this package needs {lib.HOTSET_API_VERSION}; "
            "install library and package of one release"
        )
    return ffi, lib, path


try:
    ffi, lib, library_path = _load()
except ImportError as error:
    if not is_command():
        raise
    sys.exit(" ".join(str(error).split()))  # the command's way to fail: one line, status 1


def own(handle, free, size=0):
    """Free `handle` with its last reference, but never in a forked child, which may not touch what it inherited."""

    pid, getpid = os.getpid(), os.getpid  # bound here: at interpreter exit the module may be gone

    def release(handle):
        if getpid() == pid:
            free(handle)

    return ffi.gc(handle, release, size)


def text(value):
    """bytes for a `const char *` parameter."""
    if "\0" in value:
        raise ValueError(f"text holds a NUL character: {value!r}")
    return value.encode("utf-8", "surrogateescape")


def string(pointer):
    return None if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")


def take_json(out):
    """The value of JSON text that came through `char **out`."""
    try:
        return json.loads(ffi.string(out[0]))
    finally:
        lib.hotset_text_free(out[0])
