"""
Tests of several ranks: whole commands under torchrun, and the test files ranks_*.py, which run on two ranks each.

    python -m pytest -q tests/test_parallel.py
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (its CPU build is for Linux only)"
)


def launch(arguments, start, **options):
    """Run torchrun with the arguments; returns the finished process, output and errors in one text."""
    return subprocess.run([*TORCHRUN, *arguments], cwd=ROOT, env=environment(start), text=True, timeout=600,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)  # fmt: skip


def environment(start):
    return os.environ | {"NANORAGEN_TEST_START": str(start), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}


def test_fsdp_on_two_ranks(trained_folder):
    done = launch(["--standalone", "--nproc_per_node=2", "-m", "pytest", "-q", "-x", "tests/ranks_fsdp.py"],
                  trained_folder)  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    assert done.stdout.count(" passed") == 2
