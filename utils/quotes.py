"""Handles quotes in settings such as `env`. Separators inside quotes are plain text.

    --env="'/tmp/my games/doors.py:Doors' + bandit"      a path with a space, as a part of a mixture
    --env="own_data:file='a,b.jsonl',task=find"          a path with a comma, as an option's value

A quoted part can only begin where a name or a value begins. Other quotes are plain characters.
"""

import re

QUOTED = re.compile(r"""(?:^|(?<=[\s=,+>*]))('[^']*'|"[^"]*")""")
QUOTES = ("'", '"')


def mask_quoted(text: str) -> str:
    """Replace each character of a quoted part by an underscore, so that the text keeps its length.

    >>> mask_quoted("2*'my env' + bandit")
    '2*________ + bandit'
    """
    return QUOTED.sub(lambda match: "_" * len(match[0]), text)


def split_unquoted(text: str, separator: str) -> list[str]:
    """Split a text at each separator that does not stand in quotes.

    >>> split_unquoted("'a,b',c", ",")
    ["'a,b'", 'c']
    """
    parts = []
    start = 0
    for masked in mask_quoted(text).split(separator):
        end = start + len(masked)
        parts.append(text[start:end])
        start = end + len(separator)
    return parts


def unquote(text: str) -> str:
    """Remove a pair of quotes that encloses the whole text.

    >>> unquote("'a,b'")
    'a,b'
    >>> unquote("'a' + 'b'")
    "'a' + 'b'"
    """
    inner = text[1:-1]
    is_quoted = len(text) > 1 and text[0] in QUOTES and text[-1] == text[0]
    return inner if is_quoted and text[0] not in inner else text
