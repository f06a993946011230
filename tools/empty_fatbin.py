# SPDX-License-Identifier: Apache-2.0
"""Write a fatbin without code, for tests of the host side on a stand-in driver: a header and nothing that a GPU takes.

usage: empty_fatbin.py OUTPUT
"""

import pathlib
import struct
import sys

MAGIC, VERSION, HEADER_BYTES, PADDING_BYTES = 0xBA55ED50, 1, 16, 64

pathlib.Path(sys.argv[1]).write_bytes(struct.pack("<IHHQ", MAGIC, VERSION, HEADER_BYTES, PADDING_BYTES) + bytes(PADDING_BYTES))
