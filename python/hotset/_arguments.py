# SPDX-License-Identifier: Apache-2.0
"""The arguments of the command `hotset`."""

import argparse

from . import _commands


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
    generate.set_defaults(run=_commands.run_generate)

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
    profile.set_defaults(run=_commands.run_profile)

    info = commands.add_parser("info", help="describe a model", description="Inputs, outputs, operators, experts and memory of a model.")
    info.add_argument("model", metavar="MODEL", help="ONNX file, model folder, or 'demo'")
    info.add_argument("--context", type=int, metavar="N", help="tokens that the caches are sized for; default: the model's context length")
    info.add_argument("--json", action="store_true", help="everything, as JSON")
    info.add_argument("--memory", action="store_true", help="only where every byte lies, and what bounds it")
    add_session_arguments(info)
    info.set_defaults(run=_commands.run_info)

    doctor = commands.add_parser("doctor", help="describe this machine", description="What was detected and which kernels serve.")
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_commands.run_doctor)

    config = commands.add_parser("config", help="flags for C and C++ programs", description="Print compiler and linker flags.")
    for flag, text in (
        ("cflags", "compiler flags"),
        ("libs", "linker flags"),
        ("includedir", "folder of hotset/hotset.h"),
        ("libdir", "folder of the library"),
    ):
        config.add_argument(f"--{flag}", action="append_const", dest="what", const=flag, help=text)
    config.set_defaults(run=_commands.run_config)

    options = commands.add_parser("options", help="list the session options", description="Every option with type, default and meaning.")
    options.add_argument("--json", action="store_true")
    options.set_defaults(run=_commands.run_options)
    return parser


def add_session_arguments(parser):
    parser.add_argument("--device", metavar="NAME", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--threads", type=int, metavar="N", help="worker threads; default: chosen by the library")
    parser.add_argument(
        "-o", "--option", type=key_value, action="append", default=[], metavar="KEY=VALUE", help="session option; see: hotset options"
    )
