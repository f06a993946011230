# SPDX-License-Identifier: Apache-2.0
"""SessionOptions and RunOptions with onnxruntime's attributes, over the option table of the library."""

import collections
import contextlib
import enum
import functools
import logging
import sys
import weakref

from ._errors import InvalidArgument, Unsupported, WrongType, check
from ._native import ffi, lib, own, string, text

logger = logging.getLogger("hotset")
logger.addHandler(logging.NullHandler())  # a library is silent unless the program sets up logging

OptionInfo = collections.namedtuple("OptionInfo", "key type default allowed help")


class GraphOptimizationLevel(enum.IntEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@functools.cache
def option_table():
    """Every option the library knows, as rows (key, type, default, allowed, help)."""
    rows = []
    info = ffi.new("hotset_option_info *")
    for index in range(lib.hotset_option_count()):
        info.struct_size = ffi.sizeof("hotset_option_info")
        check(lib.hotset_option_at(index, info))
        rows.append(OptionInfo(*map(string, (info.key, info.type, info.default_value, info.allowed, info.help))))
    return tuple(rows)


@functools.cache
def _known_keys():
    return frozenset(row.key for row in option_table())


_LOG_LEVELS = {
    lib.HOTSET_LOG_VERBOSE: logging.DEBUG,
    lib.HOTSET_LOG_INFO: logging.INFO,
    lib.HOTSET_LOG_WARNING: logging.WARNING,
    lib.HOTSET_LOG_ERROR: logging.ERROR,
}


def _log(level, message, user):
    if not sys.is_finalizing():
        _send(level, string(message), None if user == ffi.NULL else ffi.from_handle(user))


def _send(level, message, callback):
    if callback is None:
        logger.log(_LOG_LEVELS.get(level, logging.ERROR), "%s", message)
        return
    try:
        callback(level, message)
    except Exception:
        logger.exception("a log callback failed")


_log_callback = ffi.callback("hotset_log_callback", _log)  # lives as long as any session may log


def set_default_logger_severity(level):
    """The least severe messages that the logger "hotset" lets through: 0 verbose ... 3 error, 4 none."""
    logger.setLevel(_LOG_LEVELS.get(level, logging.CRITICAL + 1))


def set_default_logger_verbosity(level):
    """Accepted for compatibility."""


def _as_option(value):
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(int(value)) if isinstance(value, enum.IntEnum) else str(value)


def _require_member(enumeration, value, name):
    """onnxruntime's own enumerations serve as well."""
    try:
        enumeration(int(value))
    except (TypeError, ValueError):
        allowed = ", ".join(f"{member.name} ({member.value})" for member in enumeration)
        raise InvalidArgument(f"{name} is {value!r}, allowed: {allowed}") from None


def _attribute(name, default, doc, values=None):
    """An onnxruntime attribute: passed on where the library has an option of that name, otherwise remembered only.
    `values`: an enumeration of what may be set."""

    def get(self):
        return self._values.get(name, default)

    def set(self, value):
        if values is not None:
            _require_member(values, value, name)
        if name in _known_keys():
            self.add_session_config_entry(name, _as_option(value))
        self._values[name] = value

    return property(get, set, doc=doc)


def _unavailable(default, instead):
    """An onnxruntime attribute whose effect is missed when it is ignored: only its default may be set."""

    def set(self, value):
        if value != default:
            raise Unsupported(instead)

    return property(lambda self: default, set, doc=instead)


class SessionOptions:
    """How a session loads and runs a model. Values are checked when they are set."""

    __slots__ = (  # a misspelt attribute is an error
        "__weakref__",
        "_handle",
        "_values",
        "_entries",
        "_providers",
        "_log_target",
        "_log_handle",
        "_progress",
        "_progress_native",
        "_failures",
        "_load_is_cancelled",
    )

    def __init__(self):
        out = ffi.new("hotset_options **")
        check(lib.hotset_options_create(out))
        self._handle = own(out[0], lib.hotset_options_free)
        self._values = {}
        self._entries = {}  # all that was passed on, for _with_defaults
        self._providers = None
        self._load_is_cancelled = False
        self._values["log_severity_level"] = lib.HOTSET_LOG_WARNING
        self.set_log(None)
        self.set_progress(None)

    def _with_defaults(self, entries):
        """A copy in which `entries` hold where nothing else was set."""
        copy = SessionOptions()
        for key, value in {**entries, **self._entries}.items():
            copy.add_session_config_entry(key, value)
        copy._values.update(self._values)
        copy._providers = self._providers
        copy._load_is_cancelled = self._load_is_cancelled
        copy.set_log(self._log_target)
        copy.set_progress(self._progress)
        return copy

    intra_op_num_threads = _attribute("intra_op_num_threads", 0, "Worker threads of the session; 0 chooses.")
    inter_op_num_threads = _attribute("inter_op_num_threads", 0, "Accepted for compatibility: nodes run one after another.")
    execution_mode = _attribute("execution_mode", ExecutionMode.ORT_SEQUENTIAL, "Accepted for compatibility.")
    execution_order = _attribute("execution_order", ExecutionOrder.DEFAULT, "Accepted for compatibility.")
    graph_optimization_level = _attribute(
        "graph_optimization_level",
        GraphOptimizationLevel.ORT_ENABLE_ALL,
        "How far the graph may be rewritten.",
        GraphOptimizationLevel,
    )
    enable_cpu_mem_arena = _attribute("enable_cpu_mem_arena", True, "Accepted for compatibility: memory is laid out once.")
    enable_mem_pattern = _attribute("enable_mem_pattern", True, "Accepted for compatibility: memory is laid out once.")
    enable_mem_reuse = _attribute("enable_mem_reuse", True, "Accepted for compatibility: buffers are always reused.")
    use_deterministic_compute = _attribute("use_deterministic_compute", False, "Accepted for compatibility: always so.")
    log_verbosity_level = _attribute("log_verbosity_level", 0, "Accepted for compatibility.")
    logid = _attribute("logid", "", "Accepted for compatibility.")
    use_per_session_threads = _attribute("use_per_session_threads", True, "Accepted for compatibility: always so.")
    enable_profiling = _unavailable(False, "no profile file is written; set the option hotset.trace=1 and read InferenceSession.trace()")
    profile_file_prefix = _attribute("profile_file_prefix", "", "Accepted for compatibility.")
    optimized_model_filepath = _unavailable("", "the model file is used as it is; no optimized model can be written")

    @property
    def log_severity_level(self):
        """0 verbose, 1 info, 2 warning, 3 error, 4 off. Messages go to the logger "hotset" unless set_log says otherwise."""
        return self._values["log_severity_level"]

    @log_severity_level.setter
    def log_severity_level(self, level):
        level = lib.HOTSET_LOG_WARNING if level == -1 else int(level)
        self._apply_log(level, self._log_handle)
        self._values["log_severity_level"] = level

    def set_log(self, callback):
        """`callback(level, text)` gets the messages of sessions created with these options, from the thread that runs the call
        in question; None: the logger "hotset". It must not call the session. What it raises goes to the logger."""
        handle = ffi.NULL if callback is None else ffi.new_handle(callback)
        self._apply_log(self.log_severity_level, handle)
        self._log_target, self._log_handle = callback, handle

    def _apply_log(self, level, handle):
        check(lib.hotset_options_set_log(self._handle, level, _log_callback, handle))

    def _warn(self, message):
        """What the Python layer itself has to say goes where the library's messages go."""
        if self.log_severity_level <= lib.HOTSET_LOG_WARNING:
            _send(lib.HOTSET_LOG_WARNING, message, self._log_target)

    def add_provider(self, name, options=None):
        """As one more entry of InferenceSession's `providers`, which goes before what is added here."""
        self._providers = [*(self._providers or ()), (name, dict(options or {}))]

    def has_providers(self):
        """Whether add_provider was called."""
        return bool(self._providers)

    def set_load_cancellation_flag(self, value):
        """True, from any thread: sessions that are being created with these options stop with Cancelled."""
        self._load_is_cancelled = bool(value)

    def add_session_config_entry(self, key, value):
        """Sets an option of the library (see option_table()) or a key of onnxruntime's; both are texts. A wrong value raises
        InvalidArgument, as does an unknown key that begins with "hotset." or "session.moe.offload."."""
        for name, given in (("key", key), ("value", value)):
            if not isinstance(given, str):
                raise WrongType(f"add_session_config_entry: the {name} is {given!r}, expected a str")
        check(lib.hotset_options_set(self._handle, text(key), text(value)))
        self._entries[key] = value

    def get_session_config_entry(self, key):
        """The value in force, set or default; InvalidArgument for a key that has neither."""
        out = ffi.new("const char **")
        check(lib.hotset_options_get(self._handle, text(key), out))
        return string(out[0])

    @contextlib.contextmanager
    def _on_device(self, device):
        """While the library reads the options, `device` holds where no hotset.device was set."""
        if device == "cpu" or "hotset.device" in self._entries:
            yield
            return
        check(lib.hotset_options_set(self._handle, b"hotset.device", text(device)))
        try:
            yield
        finally:
            check(lib.hotset_options_set(self._handle, b"hotset.device", b"cpu"))

    def set_progress(self, callback):
        """`callback(stage, done, total)` is called while a model loads; returning False or raising stops the load."""
        failures = []

        def bridge(stage, done, total, user):
            if self_is_cancelled():
                return 1
            try:
                return 1 if callback is not None and callback(string(stage), done, total) is False else 0
            except BaseException as error:  # comes out of InferenceSession(...)
                failures.append(error)
                return 1

        weak = weakref.ref(self)

        def self_is_cancelled():
            options = weak()
            return options is not None and options._load_is_cancelled

        native = ffi.callback("hotset_progress_callback", bridge)
        check(lib.hotset_options_set_progress(self._handle, native, ffi.NULL))
        self._progress, self._progress_native, self._failures = callback, native, failures

    def register_custom_ops_library(self, path):
        """Raises Unsupported."""
        raise Unsupported("custom operator libraries are not supported")

    def add_initializer(self, name, ort_value):
        """Raises Unsupported."""
        raise Unsupported("replacing initializers is not supported")

    def add_external_initializers(self, names, values):
        """Raises Unsupported."""
        raise Unsupported("replacing initializers is not supported")

    def add_external_initializers_from_files_in_memory(self, names, buffers, lengths):
        """Raises Unsupported."""
        raise Unsupported("external data in memory is not supported; set session.model_external_initializers_file_folder_path")

    def set_provider_selection_policy(self, policy):
        """Accepted for compatibility: name the providers, or leave the choice to the library."""

    def add_free_dimension_override_by_name(self, name, value):
        """Unsupported: shapes are laid out for whatever a run brings, so there is nothing to gain."""
        raise Unsupported(f"dimension '{name}' cannot be fixed: every run may bring other sizes, at no cost")

    def add_free_dimension_override_by_denotation(self, name, value):
        """Unsupported, as by name."""
        self.add_free_dimension_override_by_name(name, value)


def require_options(options, name="sess_options"):
    """`options`, or new ones for None."""
    if options is None:
        return SessionOptions()
    if not isinstance(options, SessionOptions):
        raise WrongType(f"{name} is {options!r}, expected a SessionOptions")
    return options


class RunOptions:
    """Settings of one run at a time; `terminate = True` or `cancel()` from any thread stops it between two nodes."""

    __slots__ = ("_handle", "_terminate", "_tag", "_entries", "log_severity_level", "log_verbosity_level", "only_execute_path_to_fetches")

    def __init__(self):
        out = ffi.new("hotset_run_options **")
        check(lib.hotset_run_options_create(out))
        self._handle = own(out[0], lib.hotset_run_options_free)
        self._terminate = False
        self._tag = ""
        self._entries = {}
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.only_execute_path_to_fetches = False

    def cancel(self):
        """The run returns by raising Cancelled, as do later ones until `reset()`."""
        self._terminate = True
        check(lib.hotset_cancel(self._handle))

    def reset(self):
        """Lets runs go on again after `cancel()`."""
        self._terminate = False
        check(lib.hotset_run_options_reset(self._handle))

    @property
    def terminate(self):
        return self._terminate

    @terminate.setter
    def terminate(self, value):
        self.cancel() if value else self.reset()

    @property
    def logid(self):
        """Tag of the run in log messages and traces."""
        return self._tag

    @logid.setter
    def logid(self, value):
        check(lib.hotset_run_options_set_tag(self._handle, text(value)))
        self._tag = value

    def add_active_adapter(self, adapter):
        """Raises Unsupported."""
        raise Unsupported("LoRA adapters are not supported")

    def add_run_config_entry(self, key, value):
        """Remembered only: the library has no option of a single run yet."""
        self._entries[key] = value

    def get_run_config_entry(self, key):
        """What add_run_config_entry remembered; InvalidArgument when there is none."""
        if key not in self._entries:
            raise InvalidArgument(f"run option '{key}' was never set")
        return self._entries[key]
