"""Checks that no test reads or writes the user's runs or settings."""

import os
import re
import subprocess
import sys
from pathlib import Path

import isolation
import pytest

WORKS_IN_THE_CHECKOUT = re.compile(r"(?:cwd=|chdir\()\w*\.?ROOT")
SHOW_VARIABLES = """
import isolation, os
assert os.environ["HOME"] == isolation.HOME.name
assert os.listdir(isolation.HOME.name) == []
print({"HF_HOME", "NANORAGEN_TRACEBACK", "WANDB_MODE"} & os.environ.keys())
print(os.environ["ALFWORLD_DATA"])
"""


@pytest.mark.parametrize("time", ["first", "second"])
def test_each_test_begins_without_runs(time):
    assert Path.cwd() != isolation.ROOT
    assert Path("train.py").resolve() == isolation.ROOT / "train.py"
    Path("out").mkdir()


def test_home_and_settings_of_the_user_are_not_seen(tmp_path):
    settings = {
        "HOME": str(tmp_path),
        "HF_HOME": str(tmp_path),
        "NANORAGEN_TRACEBACK": "1",
        "WANDB_MODE": "online",
        "PYTHONPATH": str(isolation.ROOT / "tests/helpers"),
    }
    kept = {key: value for key, value in os.environ.items() if key != "ALFWORLD_DATA"}
    command = [sys.executable, "-c", SHOW_VARIABLES]
    done = subprocess.run(command, env=kept | settings, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == f"set()\n{tmp_path}/.cache/alfworld\n"


def test_no_test_works_in_the_checkout():
    for path in (isolation.ROOT / "tests").glob("**/*.py"):
        assert not WORKS_IN_THE_CHECKOUT.search(path.read_text(encoding="utf-8")), path.name
