# SPDX-License-Identifier: Apache-2.0
"""Print the files of a folder that match any of the patterns, one a line, sorted: the source lists of the Meson files.

usage: list_sources.py FOLDER PATTERN...    (`**/` in a pattern descends; a missing folder has no files)
After adding or removing a file: meson setup --reconfigure BUILD.
"""

import pathlib
import sys


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    found = {p.relative_to(folder).as_posix() for pattern in sys.argv[2:] for p in folder.glob(pattern) if p.is_file()}
    print("\n".join(sorted(found)))


main()
