"""Makes the text and the errors of models, servers and environments safe to print."""

from configurator import UserError

import json
import unicodedata
from contextlib import suppress


def printable(text: str, limit: int = 500, keep: str = "") -> str:
    r"""Make text of a model, a server or an environment safe to print in a terminal.

    Control characters, marks of writing direction and lone surrogates become Python escapes, such
    as \x1b.

    Args:
        limit: the largest length of the escaped text, in characters. A longer text is cut, and a
            note after the cut gives the length of the original text.
        keep: characters to print as they are, such as a line break.
    >>> printable("red \x1b[31m", limit=8)
    'red \\x1b... (cut, 9 characters)'
    """
    parts = []
    for char in text[:limit]:
        is_space = unicodedata.category(char) == "Zs"  # isprintable() refuses non-ASCII spaces
        if char.isprintable() or is_space or char in keep:
            parts.append(char)
        else:
            parts.append(char.encode("unicode_escape").decode())
    escaped = "".join(parts)
    if len(text) <= limit and len(escaped) <= limit:
        return escaped
    return f"{escaped[:limit]}... (cut, {len(text)} characters)"


def describe_error(error: BaseException) -> str:
    """Describe an error of a user's code by type and message, in one line that is safe to print.

    A UserError is described by its message alone.
    >>> describe_error(KeyError("size"))
    "KeyError: 'size'"
    """
    message = "its message cannot be read"
    with suppress(BaseException):  # str(error) may run the user's code, which may raise anything
        message = " ".join(str(error).split())
    if isinstance(error, UserError):
        return printable(message)
    name = type(error).__name__
    return printable(f"{name}: {message}" if message else name)


def describe_line_error(error: Exception) -> str:
    """Describe what is wrong with one line of a file. For bad JSON, name the column.

    For bad JSON, str(error) would say "line 1" for every line of the file, because json sees one
    line at a time.
    >>> try:
    ...     json.loads('{"a" 1}')
    ... except ValueError as error:
    ...     describe_line_error(error)
    "Expecting ':' delimiter at column 6"
    """
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error)
