"""Runs a script: answers --help, and prints a mistake of the user as one line."""

from configurator import Config, UserError, choices_of, lookup_type, ranges_of, types_of

import errno
import inspect
import io
import json
import os
import re
import signal
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from utils.text import printable

ERROR_LIMIT = 2000  # characters


def run_main(main: Callable[[list[str]], Any], *, kind: type[Config] | None = Config) -> None:
    """Run main(sys.argv[1:]). A UserError becomes one line on stderr and exit code 2.

    A sys.exit(0) inside main, a closed output pipe and a too long path count as UserErrors. Ctrl-C
    prints one line. Other errors show their traceback.

    With -h, --help or --help=KEY, the function prints the help and ends the process.

    A script with slow imports calls this function twice. The first call, before these imports,
    reads and checks the command line. The second call, in the last line of the script, does the
    work. The first call answers --help, so the second call needs no `kind`.

    Args: kind: the class of the settings that the help lists; None for a script without settings.
    """
    sys.excepthook = _show_uncaught
    accept_all_characters()
    flags = [arg for arg in sys.argv[1:] if arg in ("-h", "--help") or arg.startswith("--help=")]
    try:
        if flags:
            print_help(flags[0], kind)
            sys.exit()
        _run_to_the_end(main)
    except UserError as error:
        if os.environ.get("NANORAGEN_TRACEBACK") == "1":
            raise
        words = " ".join(str(error).split()) or type(error).__name__
        sentence = printable(words, limit=ERROR_LIMIT)
        print("error:", sentence, file=sys.stderr)
        if "TORCHELASTIC_ERROR_FILE" in os.environ:  # torchrun's report shows this file
            record = {"message": f"error: {sentence}", "timestamp": int(time.time())}
            path = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
            path.write_text(json.dumps(record), encoding="utf-8")
        sys.exit(2)


def refuse_arguments(argv: Sequence[str]) -> None:
    """Check that no arguments were given to a script that takes none. Raises: UserError."""
    if argv:
        raise UserError(f"expected no arguments, got {' '.join(argv)}")


def accept_all_characters() -> None:
    """Prevent encoding errors of stdin, stdout and stderr.

    stdout and stderr write a Python escape for a character that their encoding lacks. stdin reads
    U+FFFD for bytes that it cannot decode."""
    errors = {"stdin": "replace", "stdout": "backslashreplace", "stderr": "backslashreplace"}
    for name, rule in errors.items():
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # in tests, a stream may have another type
            stream.reconfigure(errors=rule)


def _show_uncaught(
    kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
) -> None:
    is_ctrl_c = issubclass(kind, KeyboardInterrupt)
    if is_ctrl_c and os.environ.get("NANORAGEN_TRACEBACK") != "1":
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
        print("stopped by Ctrl-C", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


def _run_to_the_end(main: Callable[[list[str]], Any]) -> None:
    try:
        main(sys.argv[1:])
    except SystemExit as error:
        if error.code:
            raise
        raise UserError("some code called sys.exit() before the command was finished") from error
    except BrokenPipeError as error:
        # Python flushes stdout when the process ends. The flush would fail on the closed pipe, so
        # stdout is redirected to os.devnull.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UserError("the program that reads the output, such as head, has ended") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise UserError(f"{error.filename!r} is too long for the name of a file") from error


# ---------- help


def print_help(flag: str, kind: type[Config] | None) -> None:
    """Print the help of the running script, or of one setting."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `| head` causes no traceback
    doc = sys.modules["__main__"].__doc__ or ""
    if kind is None:
        print(doc.strip())
    elif "=" in flag:
        print(setting_help(flag.partition("=")[2], kind))
    else:
        print(help_text(doc, kind))


def help_text(doc: str, kind: type[Config] = Config) -> str:
    """Return the text of --help: the docstring, then each setting with its default and comment."""
    choices = choices_of(kind)
    ranges = ranges_of(kind)
    classes = [Config] if kind is Config else [kind, Config]  # the script's own settings first
    source = "".join(inspect.getsource(part) for part in classes)
    lines = [doc.strip(), "", "Settings and their defaults:"]
    comment_above = ""
    for line in source.splitlines():
        group = re.fullmatch(r"    # -- (.+)", line)
        comment = re.fullmatch(r"    # (.+)", line)
        field = re.fullmatch(r"    (\w+): .+? = (\S+)(?:  # (.+))?", line)
        if group:
            lines += ["", f"{group[1]}:"]
        elif comment:
            comment_above = f"{comment_above} {comment[1]}".strip()
        elif field:
            key, default, comment_behind = field.groups()
            notes = [comment_behind or comment_above]
            if key in ranges:
                notes.insert(0, ranges[key].words)
            if key in choices:
                notes.insert(0, " | ".join(choices[key]))
            lines.append(f"  --{key}={default}  # {'; '.join(notes)}")
            comment_above = ""
    lines += ["", "An error is one line; NANORAGEN_TRACEBACK=1 adds its traceback."]
    return "\n".join(lines)


def setting_help(key: str, kind: type[Config] = Config) -> str:
    """Return the line of `help_text` that describes a setting.

    Raises: UserError for an unknown setting."""
    lookup_type(key, types_of(kind), "--help")
    lines = help_text("", kind).splitlines()
    return next(line.strip() for line in lines if line.startswith(f"  --{key}="))
