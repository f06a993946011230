# SPDX-License-Identifier: Apache-2.0
"""Fail when a source distribution lacks a file of the repository.

usage: check_sdist.py hotset-VERSION.tar.gz
"""

import subprocess
import sys
import tarfile


def main() -> None:
    with tarfile.open(sys.argv[1]) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    tracked = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout.split("\0")
    missing = sorted(name for name in tracked if name and name not in packed)
    if missing:
        sys.exit("not in the source distribution: " + " ".join(missing))


main()
