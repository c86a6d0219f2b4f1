"""Tests of `run_main`, and of `printable`, which makes any text safe to print on a terminal."""

import doctest
import os
import signal
import subprocess
import sys
import unicodedata

import pytest

from utils import text
from utils.text import printable

SCRIPT = """
from configurator import UserError
from support.terminal import run_main

def main(argv):
    raise UserError("red \\x1b[31m " + "x" * 10**7)

run_main(main)
"""


def test_doctests():
    results = doctest.testmod(text)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain é 中 \u3000 🙂", "plain é 中 \u3000 🙂"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),  # sets the title of the window
        ("\x9b31m \x7f \x00 \r\n\t", r"\x9b31m \x7f \x00 \r\n\t"),  # control characters
        ("\u202ebackwards\u2066\u200f", r"\u202ebackwards\u2066\u200f"),
        ("\ud800 \u2028", r"\ud800 \u2028"),
        ("x" * 500, "x" * 500),
        ("x" * 501, "x" * 500 + "... (cut, 501 characters)"),
        ("\x1b" * 200, r"\x1b" * 125 + "... (cut, 200 characters)"),
    ],
)
def test_printable_by_hand(text, shown):
    assert printable(text) == shown
    assert "\x1b" not in printable(text, keep="\n")


def test_printable_keeps_what_it_is_told():
    assert printable("a\n\x1bb", keep="\n") == "a\n\\x1bb"


@pytest.mark.slow
def test_printable_leaves_nothing_that_a_terminal_obeys():
    text = "".join(map(chr, range(0x110000)))
    shown = printable(text, limit=10**8)
    kinds = {unicodedata.category(char) for char in shown}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_may_have_few_characters(encoding):
    done = subprocess.run(
        [sys.executable, "-m", "tools.play", "sokoban", "--seed=3"],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        input="Right\n\xff✓\nq\n".encode(errors="replace") + b"\xff\n",
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"is no action; the actions are Up, Down, Left, Right" in done.stdout
    assert done.stdout.endswith(b"the input ended before the game\n")


def test_a_character_without_a_code_is_an_escape():
    script = "from support.terminal import run_main\nrun_main(lambda argv: print('\u2713 ok'))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert (done.stdout, done.stderr) == (b"\\u2713 ok\n", b"")


def test_ctrl_c_is_one_line():
    script = """
from support.terminal import run_main

def main(argv):
    raise KeyboardInterrupt

run_main(main)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"stopped by Ctrl-C\n")


def test_a_closed_output_is_one_line():
    """The process that reads the pipe has ended, as in COMMAND | head."""
    script = "from support.terminal import run_main\nrun_main(lambda argv: print('x', flush=True))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    sentence = b"error: the program that reads the output, such as head, has ended\n"
    assert (done.returncode, done.stderr) == (2, sentence)


def test_an_error_message_obeys_no_terminal_codes():
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    start = r"red \x1b[31m "
    rest = 2000 - len(start)
    cut = 10**7 + len("red \x1b[31m ")
    assert done.stderr == f"error: {start}{'x' * rest}... (cut, {cut} characters)\n"
