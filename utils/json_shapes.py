"""Checks the shape of JSON values from files that other people may have written.

A shape is one of:

    str            a text
    bool           True or False
    int            a whole number, 0 or more, below LARGEST
    float          a decimal number from -LARGEST_FLOAT to LARGEST_FLOAT,
                   or a whole number between -LARGEST and LARGEST
    [shape]        a list of any length, where every item has this shape
    {key: shape}   a dict with at least these keys, whose values have these shapes
    {str: shape}   a dict with any keys, where every value has this shape
    (shape, None)  that shape or null
    (shape, ...)   for the value of a key: that shape, or the key is missing
"""

from configurator import UserError

from typing import Any

WORDS = {
    str: "a text",
    bool: "true or false",
    int: "a whole number, 0 or more",
    float: "a finite number, not above 1e300",
}
LARGEST = 2**63
LARGEST_FLOAT = 1e300  # even 1e8 times this number is a finite float


def check_shape(value: Any, shape: Any, source: str) -> None:
    """Check that a value has the given shape. Raises: UserError that names the first wrong part."""
    mismatch = find_mismatch(value, shape)
    if mismatch:
        raise UserError(f"{source} does not have the expected content: {mismatch}")


def find_mismatch(value: Any, shape: Any, place: str = "it") -> str:
    """Return a text that names the first wrong part of a value, or "" if the value has the shape.

    Args: place: the name of the value in the returned text, such as "seed[1]".

    >>> find_mismatch({"seed": [3, "x"]}, {"seed": [int]})
    "seed[1] must be a whole number, 0 or more, got 'x'"
    """
    if isinstance(shape, tuple):
        return "" if value is shape[1] else find_mismatch(value, shape[0], place)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place} must be a list, {_got(value)}"
        parts = [(f"{place}[{i}]", item, shape[0]) for i, item in enumerate(value)]
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{place} must be a JSON object, {_got(value)}"
        parts = _parts_of_dict(value, shape, "" if place == "it" else f"{place}.")
    else:
        return "" if _has_type(value, shape) else f"{place} must be {WORDS[shape]}, {_got(value)}"
    for name, item, item_shape in parts:
        mismatch = find_mismatch(item, item_shape, name)
        if mismatch:
            return mismatch
    return ""


def _parts_of_dict(value: dict, shape: dict, prefix: str) -> list[tuple]:
    """Return a tuple (place, item, shape of the item) for each key of `shape`.

    The key `str` stands for every key of `value`. The place is the path of the item, such as
    "config.seed". If `value` lacks a key, the item is Python's constant `...` (Ellipsis). This
    constant matches only shapes of the form (shape, ...)."""
    parts = []
    for key, item_shape in shape.items():
        if key is str:
            parts += [(f"{prefix}{name}", item, item_shape) for name, item in value.items()]
        else:
            parts.append((f"{prefix}{key}", value.get(key, ...), item_shape))
    return parts


def _got(value: Any) -> str:
    return "but it is missing" if value is ... else f"got {str(value)[:80]!r}"


def _has_type(value: Any, kind: type) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind is int:
        return is_whole and 0 <= value < LARGEST
    if kind is float:
        if is_whole:
            return abs(value) < LARGEST
        return isinstance(value, float) and abs(value) <= LARGEST_FLOAT  # False for NaN
    return isinstance(value, kind)
