# SPDX-License-Identifier: Apache-2.0
"""The process as the program `hotset`: what has to happen before the package is imported. Imports little: until it is there, an
interrupt gives a traceback."""

import os
import signal
import sys

EXIT_INTERRUPTED = 128 + signal.SIGINT


def is_command():
    """Whether this process is the program `hotset`, or `python -m hotset`, which imports the package before its __main__."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    if program == "-m":  # until the module is found
        module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
        return module.partition(".")[0] == __package__
    return os.path.basename(program) in (__package__, f"{__package__}.exe")


def _end(number, frame):
    os._exit(EXIT_INTERRUPTED)


def end_on_interrupt():
    """Ctrl-C while the command imports what it needs ends it without a traceback. A signal that is ignored stays so."""
    if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:
            signal.signal(signal.SIGINT, _end)
        except ValueError:  # only the main thread may, and only it is interrupted
            pass


def take_interrupts():
    """From here on Ctrl-C raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


end_on_interrupt()
