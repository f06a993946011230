# SPDX-License-Identifier: Apache-2.0
"""Runs device_session_cases.py in a process of its own: on a stand-in driver whose streams run late, and on a GPU."""

import os
import pathlib
import subprocess
import sys

import pytest

CASES = pathlib.Path(__file__).with_name("device_session_cases.py")


def run_cases(environment):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-8000:]


def test_on_a_stand_in_driver(fake_gpu):
    run_cases(fake_gpu | {"FAKE_CUDA_LAZY": "1", "FAKE_CUDA_MEMORY": str(1 << 30)})


@pytest.mark.gpu
def test_on_a_gpu():
    run_cases(os.environ)
