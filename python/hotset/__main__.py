# SPDX-License-Identifier: Apache-2.0
"""The command `hotset`, also `python -m hotset`."""

import argparse
import contextlib
import importlib.resources
import io
import json
import logging
import os
import pathlib
import shlex
import signal
import socket
import sys
import threading

from ._program import EXIT_INTERRUPTED, take_interrupts

PROFILE_FILE = "session.moe.offload.popularity_file"
SAVE_FILE = "hotset.popularity_save_file"
STDERR = 2  # the file descriptor
EXIT_ERROR = 1
EXIT_BROKEN_PIPE = 128 + 13  # as the shell shows a program that SIGPIPE ended


def key_value(argument):
    key, separator, value = argument.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {argument!r}")
    return key, value


def build_parser():
    parser = argparse.ArgumentParser(prog="hotset", description="Run Mixture-of-Experts ONNX models.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="print log messages to stderr (twice: all of them)")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    generate = commands.add_parser("generate", help="generate text", description="Stream generated text to stdout, figures to stderr.")
    generate.add_argument("model", metavar="DIR", help="model folder with genai_config.json, or 'demo' for the model in the package")
    generate.add_argument("-p", "--prompt", help="text to continue; default: standard input")
    generate.add_argument("-n", "--max-new-tokens", type=int, default=128, metavar="N", help="default: %(default)s")
    generate.add_argument("--max-length", type=int, metavar="N", help="bound of prompt and answer together; sizes the caches")
    generate.add_argument("--temperature", type=float, metavar="T", help="sample with this temperature; 0 is greedy")
    generate.add_argument("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens; 0 or less: all")
    generate.add_argument("--top-p", type=float, metavar="P", help="sample from the likeliest tokens that reach probability P")
    generate.add_argument("--repetition-penalty", type=float, metavar="R", help="above 1 avoids tokens seen before")
    generate.add_argument(
        "--seed",
        type=int,
        metavar="S",
        help="the same seed gives the same text; without --temperature, --top-k or --top-p the answer is greedy and needs none",
    )
    generate.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated")
    generate.add_argument("--chat", action="store_true", help="put the prompt through the folder's chat template (needs jinja2)")
    generate.add_argument("--stats", action="store_true", help="print how often each expert was chosen to stderr")
    add_session_arguments(generate)
    generate.set_defaults(run=run_generate)

    profile = commands.add_parser(
        "profile",
        help="record which experts prompts use",
        description="Run prompts and write how often each expert was chosen, for the option session.moe.offload.popularity_file.",
    )
    profile.add_argument("model", metavar="DIR", help="model folder with genai_config.json, or 'demo'")
    profile.add_argument("-p", "--prompt", action="append", default=[], help="text to run; may be repeated")
    profile.add_argument("--prompts", metavar="FILE", help="one prompt a line; '-' is standard input")
    profile.add_argument(
        "-n", "--max-new-tokens", type=int, default=128, metavar="N", help="tokens to generate after each; default: %(default)s"
    )
    profile.add_argument("--output", default="expert-profile.bin", metavar="FILE", help="default: %(default)s")
    profile.add_argument("--plot", metavar="FILE", help="draw layers and experts as a heat map, .png or .svg (needs matplotlib)")
    add_session_arguments(profile)
    profile.set_defaults(run=run_profile)

    info = commands.add_parser("info", help="describe a model", description="Inputs, outputs, operators, experts and memory of a model.")
    info.add_argument("model", metavar="MODEL", help="ONNX file, model folder, or 'demo'")
    info.add_argument("--context", type=int, metavar="N", help="tokens that the caches are sized for; default: the model's context length")
    info.add_argument("--json", action="store_true", help="everything, as JSON")
    info.add_argument("--memory", action="store_true", help="only where every byte lies, and what bounds it")
    add_session_arguments(info)
    info.set_defaults(run=run_info)

    doctor = commands.add_parser("doctor", help="describe this machine", description="What was detected and which kernels serve.")
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=run_doctor)

    config = commands.add_parser("config", help="flags for C and C++ programs", description="Print compiler and linker flags.")
    for flag, text in (
        ("cflags", "compiler flags"),
        ("libs", "linker flags"),
        ("includedir", "folder of hotset/hotset.h"),
        ("libdir", "folder of the library"),
    ):
        config.add_argument(f"--{flag}", action="append_const", dest="what", const=flag, help=text)
    config.set_defaults(run=run_config)

    options = commands.add_parser("options", help="list the session options", description="Every option with type, default and meaning.")
    options.add_argument("--json", action="store_true")
    options.set_defaults(run=run_options)
    return parser


def add_session_arguments(parser):
    parser.add_argument("--threads", type=int, metavar="N", help="worker threads; default: chosen by the library")
    parser.add_argument(
        "-o", "--option", type=key_value, action="append", default=[], metavar="KEY=VALUE", help="session option; see: hotset options"
    )


def session_options(arguments):
    import hotset

    options = hotset.SessionOptions()
    options.log_severity_level = max(2 - arguments.verbose, 0)
    if arguments.threads is not None:
        options.intra_op_num_threads = arguments.threads
    for key, value in arguments.option:
        options.add_session_config_entry(key, value)
    return options


class LoadingBar:
    """A progress bar while a model loads, on a terminal only and only where tqdm is installed."""

    def __init__(self, options):
        self._bar = None
        self._stage = None
        if sys.stderr.isatty():
            try:
                import tqdm
            except ImportError:
                return
            self._tqdm = tqdm.tqdm
            options.set_progress(self._update)

    def _update(self, stage, done, total):
        if stage != self._stage:
            self.close()
            self._stage = stage
            self._bar = self._tqdm(total=total, desc=stage, leave=False, file=sys.stderr, delay=0.2)
        self._bar.update(done - self._bar.n)

    def close(self):
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Interrupt:
    """Ctrl-C also stops a long native call: Python itself would notice it only when the call returns."""

    def __init__(self, cancel):
        self._cancel = cancel

    def __enter__(self):
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self):
        while data := self._reader.recv(1):
            if data[0] == signal.SIGINT:
                self._cancel()

    def __exit__(self, *exc):
        signal.set_wakeup_fd(self._previous)
        self._writer.close()
        self._thread.join()
        self._reader.close()


@contextlib.contextmanager
def reading(what):
    """Failures of the system name what was read."""
    import hotset

    try:
        yield
    except OSError as error:
        raise hotset.NotFound(f"{what} cannot be read: {error.strerror}") from None


def check_save_file(arguments):
    """Refuses a place where the usage counters cannot be saved before the work; relative paths are beside the model."""
    import hotset
    from hotset.generator import model_folder

    name = dict(arguments.option).get(SAVE_FILE)
    if name:
        folder = (model_folder(arguments.model) / name).parent
        if not folder.is_dir():
            raise hotset.NotFound(f"{SAVE_FILE}: there is no folder '{folder}'")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise hotset.InvalidArgument(f"{SAVE_FILE}: folder '{folder}' is not writable")


def read_prompt(stream, generator):
    """All of a text stream, or one character more than any prompt may have."""
    from hotset.generator import LONG_PROMPT

    if stream.isatty():
        print("hotset: reading the prompt from the terminal, end with Ctrl-D", file=sys.stderr)
    stream.reconfigure(encoding="utf-8", errors="replace")
    with reading("standard input"):
        prompt = stream.read(LONG_PROMPT)
        if len(prompt) == LONG_PROMPT:
            longest = generator.longest_prompt()
            prompt += stream.read() if longest is None else stream.read(longest + 1 - LONG_PROMPT)
    return prompt


def run_generate(arguments):
    import hotset
    from hotset._report import print_expert_stats

    if sys.stdout is None:
        raise hotset.InvalidArgument("standard output is closed")
    sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows something else
    prompt = arguments.prompt
    if prompt is None:
        if sys.stdin is None:
            raise hotset.InvalidArgument("there is no prompt: give -p TEXT, standard input is closed")
    check_save_file(arguments)
    options = session_options(arguments)
    bar = LoadingBar(options)
    try:
        generator = hotset.Generator(arguments.model, options, max_length=arguments.max_length)
    finally:
        bar.close()
    if prompt is None:
        prompt = read_prompt(sys.stdin, generator)
    with generator, Interrupt(generator.cancel):
        if arguments.chat:
            prompt = generator.chat_prompt([{"role": "user", "content": prompt}])
        pieces = generator.stream(
            prompt,
            arguments.max_new_tokens,
            temperature=arguments.temperature,
            top_k=arguments.top_k,
            top_p=arguments.top_p,
            repetition_penalty=arguments.repetition_penalty,
            seed=arguments.seed,
            stop=arguments.stop,
        )
        stats = generator.stats
        try:
            for piece in pieces:
                sys.stdout.write(piece)
                sys.stdout.flush()
        except hotset.Cancelled:  # only Ctrl-C cancels here
            raise KeyboardInterrupt from None
        finally:
            if stats.new_tokens:
                sys.stdout.write("\n")
                sys.stdout.flush()
                print(describe(stats), file=sys.stderr)
                if arguments.stats:
                    print_expert_stats(generator.session.expert_stats(), sys.stderr)


def read_prompts(arguments):
    """The texts of -p, then the lines of --prompts that are not blank."""
    import hotset

    prompts = list(arguments.prompt)
    if arguments.prompts == "-":
        if sys.stdin is None:
            raise hotset.InvalidArgument("there are no prompts: standard input is closed")
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
        with reading("standard input"):
            prompts += sys.stdin.read().splitlines()
    elif arguments.prompts is not None:
        with reading(f"'{arguments.prompts}'"):
            prompts += pathlib.Path(arguments.prompts).read_text(encoding="utf-8", errors="replace").splitlines()
    prompts = [prompt for prompt in prompts if prompt.strip()]
    if not prompts:
        raise hotset.InvalidArgument("there is no prompt: give -p TEXT or --prompts FILE")
    return prompts


def run_profile(arguments):
    import hotset
    from hotset._report import print_expert_stats

    if arguments.plot:
        from hotset._heat_map import draw_heat_map  # before the work: matplotlib may be missing
    prompts = read_prompts(arguments)
    check_save_file(arguments)
    options = session_options(arguments)
    bar = LoadingBar(options)
    try:
        generator = hotset.Generator(arguments.model, options)
    finally:
        bar.close()
    with generator, Interrupt(generator.cancel):
        try:
            for prompt in prompts:
                generator.generate(prompt, arguments.max_new_tokens, temperature=0)
        except hotset.Cancelled:  # only Ctrl-C cancels here
            raise KeyboardInterrupt from None
        generator.session.save_expert_profile(arguments.output)
        stats = generator.session.stats()
    if arguments.plot:
        draw_heat_map(stats["experts"], arguments.plot)
    path = os.path.abspath(arguments.output)
    print(f"{path}: {len(prompts)} prompts, {stats['expert_tokens']} tokens")
    print(f"to use it: -o {shlex.quote(f'{PROFILE_FILE}={path}')}")
    print_expert_stats(stats["experts"], sys.stdout)


def describe(stats):
    text = f"{stats.prompt_tokens} prompt tokens, first token after {stats.first_token_s * 1e3:.1f} ms; {stats.new_tokens} tokens"
    rate = stats.tokens_per_second
    text += f", {rate:.1f} tokens/s" if rate else ""
    if stats.stop_text:
        return text + "; ended by the stop text"
    return text + {"stop": "; ended by the model", "length": "; ended by the length limit"}.get(stats.finish_reason, "")


def run_info(arguments):
    import hotset
    from hotset._report import print_info, print_memory
    from hotset.cache_report import cache_report
    from hotset.genai_config import read_genai_config
    from hotset.generator import model_folder

    path, config = pathlib.Path(arguments.model), None
    folder = path.parent if path.is_file() else model_folder(arguments.model)
    if (folder / "genai_config.json").is_file():
        config = read_genai_config(folder)
        if not path.is_file() or path.samefile(config.model_path):
            path = config.model_path
        else:
            config = None  # another model of the folder
    elif folder.is_dir() and not path.is_file():
        path = folder / "model.onnx"
    options = session_options(arguments)
    plan = hotset.plan(path, options)
    plan["caches"] = cache_report(plan["inputs"], config, arguments.context)
    for arg in plan["inputs"] + plan["outputs"]:
        arg["type"] = f"tensor({arg['type']})"
    report = {"model": os.fspath(path), "metadata": plan.pop("metadata"), **plan}
    if arguments.json:
        print(json.dumps({"memory": report["memory"]} if arguments.memory else report, indent=2))
    elif arguments.memory:
        print_memory(report)
    else:
        print_info(report)


def run_doctor(arguments):
    import hotset
    from hotset._report import print_value

    report = hotset.doctor()
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print(f"hotset {hotset.__version__}")
        print_value(report)


def run_config(arguments):
    from hotset._native import library_path

    header = importlib.resources.files("hotset") / "include" / "hotset" / "hotset.h"
    include = pathlib.Path(str(header)).parents[1]  # of a file: an editable install has no such folder in one place
    library = pathlib.Path(library_path).resolve()
    values = {
        "cflags": f"-I{shlex.quote(str(include))}",
        # By path, since a wheel holds no libhotset.so link.
        "libs": f"{shlex.quote(str(library))} -Wl,-rpath,{shlex.quote(str(library.parent))}",
        "includedir": str(include),
        "libdir": str(library.parent),
    }
    for name in arguments.what or values:
        print(values[name] if arguments.what else f"{name:<10}  {values[name]}")


def run_options(arguments):
    import hotset

    rows = hotset.option_table()
    if arguments.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
        return
    for row in rows:
        allowed = f" ({row.allowed})" if row.allowed else ""
        print(f"{row.key} = {row.default or '-'}\n    {row.type}{allowed}: {row.help}")


class LogHandler(logging.StreamHandler):
    """Messages on stderr; remembers whether one said that the usage counters of an ended session were not saved."""

    has_lost_counters = False

    def emit(self, record):
        if record.levelno >= logging.WARNING and record.getMessage().startswith(SAVE_FILE):
            self.has_lost_counters = True
        super().emit(record)


def set_up_logging(verbose):
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = LogHandler()
    handler.setFormatter(logging.Formatter("hotset: %(message)s"))
    logger = logging.getLogger("hotset")
    logger.addHandler(handler)
    logger.setLevel(level)
    return handler


def run(arguments):
    import hotset

    log = set_up_logging(arguments.verbose)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
        return EXIT_ERROR if log.has_lost_counters else 0
    except hotset.Error as error:
        print(f"hotset: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_ERROR


def drop_standard_output():
    """What is not written yet goes nowhere: the interpreter's last flush would complain."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class ErrorFile(io.RawIOBase):
    """Standard error; what a closed or full one cannot take is dropped, since it is no reason to end a generation."""

    def writable(self):
        return True

    def fileno(self):
        return STDERR

    def isatty(self):
        return os.isatty(STDERR)

    def write(self, data):
        try:
            return os.write(STDERR, data)
        except OSError:
            return len(data)


def keep_standard_error_from_failing():
    if sys.stderr is None:  # or a file opened later would get its number
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDERR)
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    buffer = io.BufferedWriter(ErrorFile())
    sys.stderr = io.TextIOWrapper(buffer, encoding, errors="backslashreplace", line_buffering=True)


def main(argv=None):
    """The command with the arguments `argv`; None: as the program of this process. Returns the exit status."""
    try:
        if argv is None:
            take_interrupts()
            keep_standard_error_from_failing()
        parser = build_parser()
        arguments = parser.parse_args(argv)
        if arguments.version:
            import hotset

            print(f"hotset {hotset.__version__}")
            return 0
        if arguments.command is None:
            parser.print_help()
            return 2
        return run(arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        drop_standard_output()
        return EXIT_BROKEN_PIPE
    except ImportError as error:
        print(f"hotset: {error}", file=sys.stderr)
        return EXIT_ERROR
    except OSError as error:
        if error.filename is None:  # all other files have names
            drop_standard_output()
        what = "standard output cannot be written" if error.filename is None else f"'{error.filename}'"
        print(f"hotset: {what}: {error.strerror or error}", file=sys.stderr)
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
