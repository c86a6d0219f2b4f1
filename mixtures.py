"""Parses mixtures of environments (env='A + 2*B') and curricula (env='A @50 > B').

A spec is the text of one environment with its options, such as frozenlake:size=5. A spec that
contains a separator (SIGNS) must stand in quotes: env="'/my games/doors.py:Doors' + B".
"""

from configurator import Config, UserError

import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from envs import find_class, make_env, split_options, split_spec
from utils.quotes import mask_quoted, split_unquoted

SIGNS = (" ", "+", "*", "@", ">")  # separators in mixtures and curricula
STAGE = re.compile(r"(.*?)(?:@\s*(\d+)\s*)?", re.DOTALL)  # 'MIXTURE' or 'MIXTURE @50'
PART = re.compile(r"\s*(?:(\d*\.?\d+)\s*\*)?\s*([^*@\s]+)\s*")  # 'ENV' or '2*ENV'


class Stage(NamedTuple):
    """One stage of a curriculum."""

    end: float  # the first iteration after the stage; inf for the last stage
    shares: dict[str, float]  # maps a spec to the probability that a group plays it; the sum is 1


def mixture_at(text: str, iteration: int | None = None) -> dict[str, float]:
    """Return the environments at an iteration of a curriculum, each with its probability.

    'A + 2*B' draws A or B for each group, with probability 1/3 and 2/3. 'A @50 > B' is A in
    iterations 0 to 49, then B.

    Args:
        text: the setting `env` or `eval_env`.
        iteration: the number of finished iterations; None for the last stage.
    Returns:
        a dict that maps each spec to its probability.
    Raises:
        UserError if a stage before the last has no @N, if the last stage has an @N, if the first
            N is 0, or if an N is not above the N before it. UserError is also raised if an
            environment is missing, if `make_env` refuses one, if a weight is 0, or if a path needs
            quotes and has none.
    >>> mixture_at("frozenlake @50 > sokoban + 3*bandit", 50)
    {'sokoban': 0.25, 'bandit': 0.75}
    """
    stages = _parse_stages(text)
    if iteration is None:
        return stages[-1].shares
    return next(stage.shares for stage in stages if iteration < stage.end)


@lru_cache
def env_specs(*texts: str) -> tuple[str, ...]:
    """Return the specs of all environments in the curricula `texts`, each spec once."""
    specs = {}  # a dict keeps the order, a set does not
    for text in texts:
        for stage in _parse_stages(text) if text else ():
            specs |= stage.shares
    return tuple(specs)


def scored_envs(config: Config) -> list[str]:
    """The environments of an evaluation: those of eval_env, or of env if eval_env is empty.

    If the evaluated setting (eval_env or env) is a curriculum, such as 'A @50 > B', only the last
    stage of the curriculum is evaluated.
    """
    return list(mixture_at(config.eval_env or config.env, None))


def specs_that_run_programs(text: str) -> list[str]:
    """Return the specs of those environments of a curriculum that can run programs or read files.

    No environment is built, because building one could run a program.

    Args: text: a curriculum, or "".
    Raises: UserError for an unknown environment or an illegal weight.
    """
    found = []
    for part in split_unquoted(text, ">") if text else ():
        mixture, _ = STAGE.fullmatch(part).groups()
        for spec in _weights_in(mixture, text):
            name, place, options = split_spec(spec)
            # A user's file counts as a program and is not imported.
            is_file = name.endswith(".py")
            if is_file or find_class(place).can_run_programs(split_options(options)):
                found.append(spec)
    return found


def _parse_stages(text: str) -> list[Stage]:
    """Read a curriculum, such as 'A @50 > B': A in the first 50 iterations, then B."""
    _check_quotes(text)
    parts = [STAGE.fullmatch(part).groups() for part in split_unquoted(text, ">")]
    ends = [float(end or "inf") for _, end in parts]
    _, last_end = parts[-1]
    rising = ends[0] > 0 and ends == sorted(set(ends))
    if not rising or last_end:
        raise UserError(
            "every stage but the last must end in @N, with N above 0 and rising, "
            f"and the last must have no @N; got env={text!r}"
        )
    shares = [_parse_mixture(mixture, text) for mixture, _ in parts]
    return [Stage(*stage) for stage in zip(ends, shares, strict=True)]


def _check_quotes(text: str) -> None:
    """Raise UserError if a text begins with a path that needs quotes and has none.

    The path of an existing Python file needs quotes if the path contains a separator (SIGNS).
    """
    start, is_class, _ = text.partition(".py:")
    signs = [sign for sign in SIGNS if sign in start]
    if is_class and signs and Path(f"{start}.py").is_file():
        raise UserError(
            f"env={text!r} has {signs[0]!r} in the path of a file, where it would separate "
            f"environments; put the environment in quotes, as in --env=\"'{text}'\""
        )


def _parse_mixture(mixture: str, text: str) -> dict[str, float]:
    """Spec -> share: 'A + 2*B' gives {A: 1/3, B: 2/3}."""
    weights = _weights_in(mixture, text)
    for spec in weights:
        make_env(spec)  # raises UserError for an unknown environment or a wrong option
    total = sum(weights.values())
    return {spec: weight / total for spec, weight in weights.items()}


def _weights_in(mixture: str, text: str) -> dict[str, float]:
    """Spec -> weight: 'A + 2*B' gives {A: 1, B: 2}.

    `specs_that_run_programs` calls this function for environments that the user may not trust. So
    this function builds no environment, because building an environment could run a program.
    """
    weights: dict[str, float] = {}
    for part in split_unquoted(mixture, "+"):
        match = PART.fullmatch(mask_quoted(part))
        weight = float(match[1] or 1) if match else 0.0
        if weight == 0:
            raise UserError(
                f"{part.strip()!r} in env={text!r} must be ENV or WEIGHT*ENV with a weight above "
                "0; an ENV that contains a space, +, *, @ or > must be in quotes"
            )
        spec = part[match.start(2) : match.end(2)]
        weights[spec] = weights.get(spec, 0.0) + weight
    return weights
