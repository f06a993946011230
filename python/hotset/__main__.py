# SPDX-License-Identifier: Apache-2.0
"""The command `hotset`, also `python -m hotset`: failures become a line and an exit status."""

import logging
import sys

from ._arguments import build_parser
from ._commands import SAVE_FILE
from ._program import EXIT_INTERRUPTED, take_interrupts
from ._terminal import drop_standard_output, keep_standard_error_from_failing

EXIT_ERROR = 1
EXIT_BROKEN_PIPE = 128 + 13  # as the shell shows a program that SIGPIPE ended


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
