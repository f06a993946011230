# SPDX-License-Identifier: Apache-2.0
"""What each command of `hotset` does. Each imports what it needs when it runs."""

import contextlib
import importlib.resources
import json
import os
import pathlib
import shlex
import sys

from ._terminal import Interrupt, LoadingBar

PROFILE_FILE = "session.moe.offload.popularity_file"
SAVE_FILE = "hotset.popularity_save_file"


def session_options(arguments):
    import hotset

    options = hotset.SessionOptions()
    options.log_severity_level = max(2 - arguments.verbose, 0)
    if arguments.threads is not None:
        options.intra_op_num_threads = arguments.threads
    if arguments.device is not None:
        options.add_session_config_entry("hotset.device", arguments.device)
    for key, value in arguments.option:
        options.add_session_config_entry(key, value)
    return options


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
