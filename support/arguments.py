"""Reads and checks the command lines of train.py, eval.py and scripts that share their options.

The checks need no torch, so a script can report a mistake before its slow imports. The functions
raise UserError for a mistake.
"""

from configurator import (
    CONFIG_FOLDER,
    Config,
    UserError,
    load_config,
)

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product, takewhile
from pathlib import Path

from envs import check_uses, make_env
from mixtures import env_specs, scored_envs, specs_that_run_programs
from rollout import make_episode
from support.preflight import check_first_turn, check_installed, check_wandb
from support.run_folder import check_out_dir, load_saved
from utils.files import check_writable
from utils.model_folder import find_model
from utils.quotes import split_unquoted, unquote

PLAYERS = ("random", "greedy", "optimal")
MAX_SAMPLES = 1000  # largest --samples
SCORING_OPTIONS = {"player": "", "samples": 1, "against": "", "json": "", "jsonl": ""}
OTHER_COMMANDS = {  # maps an option that eval.py does not have to the command that has it
    "--api_base": "python -m tools.api_models",
    "--api_model": "python -m tools.api_models",
    "--repeat": "python -m tools.replay RUN --record=PATH",
}


# ---------- training


def read_train(argv: list[str]) -> tuple[Config, dict, dict]:
    """Read the command line of train.py.

    Returns: the settings; the options that are not settings; the source of each setting, such as
        "command line".
    """
    check_not_empty(argv)
    config, options, sources = load_config(argv, extra={"take_config": False})
    check_installed(config)
    check_wandb(config.wandb)
    check_envs(config, env_specs(config.env, config.eval_env))
    find_model(config.model)
    check_out_dir(config, accept_changes=options["take_config"], flag="--take_config=True")
    return config, options, sources


def check_not_empty(argv: list[str]) -> None:
    """Check that there is an argument. Raises: UserError that lists the files config/NAME.py."""
    if not argv:
        names = ", ".join(sorted(path.stem for path in CONFIG_FOLDER.glob("*.py")))
        raise UserError(
            "give a file config/NAME.py, and on a laptop config/models/tiny.py, too; NAME is one "
            f"of {names}; --help lists all settings"
        )


def check_envs(config: Config, envs: Iterable[str]) -> None:
    """Check that the first turn of each environment can be played. Raises: UserError."""
    for env in envs:
        make_episode(config, env)
        check_first_turn(env, config.observation, config.actions_per_traj, config.step_timeout_s)


# ---------- scoring


@dataclass
class Job:
    """The parsed arguments of eval.py, or of a script that shares its options."""

    config: Config
    options: dict  # maps SCORING_OPTIONS and the script's own options to their values
    models: list[str]  # names or folders
    command: str = "eval.py"  # name of the script, for messages
    # maps a setting to the source of its value, such as "command line"
    sources: dict[str, str] = field(default_factory=dict)


def read_eval(argv: list[str]) -> Job:
    """Read the command line of eval.py, and check --against."""
    for arg in argv:
        option = arg.split("=")[0]
        if option in OTHER_COMMANDS:
            raise UserError(f"{arg} is an option of another command: {OTHER_COMMANDS[option]}")
    check_not_empty(argv)
    job = read_scoring(argv, SCORING_OPTIONS, "eval.py")
    _check_against(job)
    return job


def _check_against(job: Job) -> None:
    """Check that --against can select a row of the score table."""
    reference = job.options["against"]
    players = list(filter(None, job.options["player"].split(",")))
    rows = [*job.models, *players]
    begins_a_row = any(name.startswith(reference) for name in rows)
    # The name of a player's row is longer than the player's name: the player "greedy" has the row
    # "greedy, closed loop". So `reference` may also begin with a player's name.
    continues = any(reference.startswith(name) for name in players)
    if not begins_a_row and not continues:
        names = " or ".join(repr(name) for name in rows)
        raise UserError(
            f"--against must be the beginning of a row's name; the rows begin with {names}, "
            f"got {reference!r}"
        )


def read_scoring(
    argv: list[str],
    options: dict,
    command: str,
    *,
    default_model: bool = True,
    score_runs: bool = True,
) -> Job:
    """Read a command line with run folders, config files and options.

    Args:
        options: the script's own options (not settings) with their defaults.
        default_model: True to score the config's model if no run and no player are given.
        score_runs: True to score the policies of the given runs, False to take only the settings of
            the first run. If --model is given, the models that --model names are scored instead
            of the policies of the runs.
    """
    runs = list(takewhile(lambda arg: Path(arg).is_dir(), argv))
    for arg in argv[len(runs) :]:
        if not arg.startswith("-") and not arg.endswith(".py"):
            problem = "comes too late" if Path(arg).is_dir() else "is not a folder"
            raise UserError(
                f"{arg} {problem}; expected folders of runs first, then config/name.py files "
                "and --key=value"
            )
    for run in runs:
        if Path(run, "tokenizer.json").is_file():
            raise UserError(
                f"{run} is the folder of a model; give the folder of its run, or config/name.py "
                f"files and --model={run}"
            )
    base = load_saved(runs[0]) if runs else None
    config, options, sources = load_config(argv[len(runs) :], extra=options, base=base)
    _check_scoring_options(options)
    if runs:
        check_trusted(runs[0], config, sources)
    models = [str(policy_of(run)) for run in runs] if score_runs else []
    names_model = sources["model"] == "command line"
    if names_model or (default_model and not runs and not options["player"]):
        models = split_models(config.model)
    for name in models:
        find_model(name)
        check_installed(config)
    check_envs(config, scored_envs(config))
    players = filter(None, options["player"].split(","))
    for player, env in product(players, scored_envs(config)):
        check_uses(make_env(env), player)
    return Job(config, options, models, command, sources)


def split_models(names: str) -> list[str]:
    """Split 'NAME,NAME' into names of models. A name with a comma must stand in quotes."""
    if "," in names and Path(names).is_dir():
        raise UserError(
            f"model={names!r} has a comma, which separates models; put it in quotes, "
            f"as in --model=\"'{names}'\""
        )
    return [unquote(name) for name in split_unquoted(names, ",")]


def _check_scoring_options(options: dict) -> None:
    for player in filter(None, options["player"].split(",")):
        if player not in PLAYERS:
            raise UserError(f"player must be one of {', '.join(PLAYERS)}, got {player!r}")
    if not 1 <= options["samples"] <= MAX_SAMPLES:
        raise UserError(f"samples must be between 1 and {MAX_SAMPLES}, got {options['samples']}")
    for key in ("json", "jsonl"):
        if options[key]:
            check_writable(options[key])


def check_trusted(run: str, config: Config, sources: dict[str, str]) -> None:
    """Check that no environment from the saved config of a run can run programs or read files.

    Somebody else may have written the saved config. So an environment that can run programs or read
    files must be named in a config file or on the command line. Raises: UserError.
    """
    for key in ("env", "eval_env"):
        value = getattr(config, key)
        specs = specs_that_run_programs(value) if sources[key] == "default" else []
        if specs:
            raise UserError(
                f"{run} names {specs[0]}, which can run programs or read files; "
                f"if you trust it, add --{key}={shlex.quote(value)}"
            )


def policy_of(run: str | Path) -> Path:
    """The folder of a run's policy: the last policy of a complete run, else the best so far."""
    for name in ("policy", "best"):
        folder = Path(run, name)
        if folder.is_dir():
            return folder
    raise UserError(
        f"{run} holds no policy/ or best/; train.py writes them at the end and at the best "
        "evaluation"
    )
