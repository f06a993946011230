# SPDX-License-Identifier: Apache-2.0
"""What the command shows beside its output, and the signals and streams of its process."""

import io
import os
import signal
import socket
import sys
import threading

STDERR = 2  # the file descriptor


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


def drop_standard_output():
    """What is not written yet goes nowhere: the interpreter's last flush would complain."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
