"""A call of an environment's code, which may raise anything or never return."""

from configurator import describe_error

from collections.abc import Callable
from typing import Any

from support.watchdog import EnvError, TimeUp, limit_time


def call_with_timeout(limit_s: float, call: Callable, *args, **options) -> Any:
    """Call environment code with a time limit.

    Args: args, options: the arguments of `call`. Returns: its result.
    Raises: EnvError if the call raises anything, sys.exit() included, or exceeds the limit.
        KeyboardInterrupt passes."""
    try:
        return limit_time(limit_s, call, *args, **options)
    except (EnvError, KeyboardInterrupt, TimeUp):  # TimeUp: of a call around this one
        raise
    except BaseException as error:  # user code may raise anything
        raise EnvError(describe_error(error)) from error
