"""Reads the command lines of the scripts that import torch.

Importing torch takes seconds. So these scripts read their command line twice: before the slow
imports, to report a mistake within a second, and again in `main`. The functions here check all that
does not need torch: settings, environments, folders of models and runs. They raise UserError for a
mistake.
"""

from configurator import (
    CONFIG_FOLDER,
    Config,
    SftConfig,
    UserError,
    load_config,
    read_option,
)

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product, takewhile
from pathlib import Path

from envs import check_uses, make_env
from rollout import make_episode
from support.chat_server import check_server
from support.mixtures import env_specs, mixture_at, specs_that_run_programs
from support.model_folder import find_model
from support.preflight import check_first_turn, check_installed, check_wandb
from support.quotes import split_unquoted, unquote
from support.run_folder import check_out_dir, check_writable, load_saved
from support.seed_groups import earlier_without_seed, without_seed
from support.settings_history import read_earlier

PLAYERS = ("random", "greedy", "optimal")
MAX_SAMPLES = 1000  # largest --samples (games of one prompt) and largest --draws
MAX_LAYERS = 1000  # largest --layers of studies/speed/random_model.py
SCORING_OPTIONS = {"player": "", "samples": 1, "against": "", "json": "", "jsonl": ""}
CREDIT_OPTIONS = {  # options of studies/credit/measure.py
    "checkpoints": "start,end",
    "draws": 16,  # continuations of a game from before each reply, and as many from after it
    "out": "out/credit",
}
OTHER_COMMANDS = {  # options that eval.py does not have -> the command that has them
    "--api_base": "python -m tools.api_models",
    "--api_model": "python -m tools.api_models",
    "--repeat": "python -m tools.replay RUN --record=PATH",
}


# ---------- training


def read_train(argv: list[str]) -> tuple[Config, dict, dict]:
    """Read the command line of train.py. Returns: settings, options, sources (`load_config`)."""
    check_not_empty(argv)
    config, options, sources = load_config(argv, extra={"take_config": False})
    check_installed(config)
    check_wandb(config.wandb)
    check_envs(config, env_specs(config.env, config.eval_env))
    find_model(config.model)
    check_out_dir(config, accept_changes=options["take_config"], flag="--take_config=True")
    return config, options, sources


def check_not_empty(argv: list[str]) -> None:
    """Check that there is an argument. Raises: UserError that lists the config files."""
    if not argv:
        names = ", ".join(sorted(path.stem for path in CONFIG_FOLDER.glob("*.py")))
        raise UserError(
            "give a file config/NAME.py, and on a laptop config/models/tiny.py, too; NAME is one "
            f"of {names}; --help lists all settings"
        )


def read_sft(argv: list[str]) -> tuple[SftConfig, dict, dict]:
    """Read the command line of tools/sft.py. Returns: settings, options, sources."""
    config, options, sources = load_config(argv, extra={"export": ""}, kind=SftConfig)
    if not config.sft_steps:
        raise UserError("nothing to do: sft_steps is 0; give --sft_steps=N")
    if len(env_specs(config.env)) > 1:
        raise UserError(f"supervised learning takes one environment, got env={config.env!r}")
    if config.wandb:
        raise UserError("supervised learning does not log to W&B; leave --wandb out")
    check_imitation(config)
    if sources["out_dir"] == "default":
        config = replace(config, out_dir=f"{config.out_dir}_sft")  # out/NAME is for train.py
    if options["export"]:
        check_writable(options["export"])
    else:
        check_out_dir(config)
    check_envs(config, env_specs(config.env))
    find_model(config.model)
    return config, options, sources


def check_imitation(config: SftConfig) -> None:
    """Check that supervised learning supports the dtype. Raises: UserError."""
    if config.dtype == "float16":  # float16 would need a loss scale
        raise UserError("supervised learning computes in float32 or bfloat16, got dtype='float16'")


def read_random_model(argv: list[str]) -> tuple[str, int | None]:
    """Read the command line of random_model.py. Returns: the folder, and --layers or None."""
    layers = None
    folders = []
    for argument in argv:
        if argument.startswith("--layers="):
            _, layers = read_option(argument, {"layers": int})
        else:
            folders.append(argument)
    is_legal = layers is None or 1 <= layers <= MAX_LAYERS
    if len(folders) != 1 or folders[0].startswith("--") or not is_legal:
        given = " ".join(argv) or "nothing"
        raise UserError(
            f"give one folder, and --layers=N with N from 1 to {MAX_LAYERS}; got {given}"
        )
    folder = Path(folders[0])
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a new folder")
    if folder.is_dir() and any(folder.iterdir()):  # its files could be overwritten
        raise UserError(f"{folder} is not empty; give a new folder")
    return folders[0], layers


def scored_envs(config: Config) -> list[str]:
    """The environments to evaluate in: those of the last stage of eval_env or, if empty, of env."""
    return list(mixture_at(config.eval_env or config.env, None))


def check_envs(config: Config, envs: Iterable[str]) -> None:
    """Check, before a model is loaded, that the first turn of each environment can be played."""
    for env in envs:
        make_episode(config, env)
        check_first_turn(env, config.observation, config.actions_per_traj, config.step_timeout_s)


# ---------- scoring


@dataclass
class Job:
    """What to score: the arguments of eval.py and of the scripts that share its options."""

    config: Config
    options: dict  # a value for each key of SCORING_OPTIONS, and for the script's own options
    models: list[str]  # the models to score: names or folders
    command: str = "eval.py"  # the script, a key of `unread.READ_BY`
    sources: dict[str, str] = field(default_factory=dict)  # setting -> source of its value


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
    """Check before the evaluation that --against can begin the name of a row of the score table."""
    reference = job.options["against"]
    players = list(filter(None, job.options["player"].split(",")))
    rows = [*job.models, *players]
    begins_a_row = any(name.startswith(reference) for name in rows)
    # The name of a player may be the beginning of its row's name, as in "greedy, closed loop".
    continues = any(reference.startswith(name) for name in players)
    if not begins_a_row and not continues:
        names = " or ".join(repr(name) for name in rows)
        raise UserError(f"--against must be the beginning of {names}, got {reference!r}")


def read_api_models(argv: list[str]) -> Job:
    """Read the command line of tools/api_models.py, and check the server."""
    options = {**SCORING_OPTIONS, "api_base": "", "api_model": ""}
    job = read_scoring(argv, options, "tools.api_models", default_model=False)
    url = job.options["api_base"]
    if not url or not job.options["api_model"]:
        given = " ".join(argv) or "nothing"
        raise UserError(f"give both --api_base=URL and --api_model=NAME; got {given}")
    if not url.startswith(("http://", "https://")):
        raise UserError(f"api_base must begin with http:// or https://, got {url!r}")
    check_server(url)
    return job


def read_replay(argv: list[str]) -> Job:
    """Read the command line of tools/replay.py."""
    options = {**SCORING_OPTIONS, "record": ""}
    job = read_scoring(argv, options, "tools.replay", default_model=False, score_runs=False)
    if not job.options["record"]:
        given = " ".join(argv) or "nothing"
        raise UserError(
            "give --record=PATH, a file of trajectories that a run or eval.py --jsonl wrote; "
            f"got {given}"
        )
    if job.models or job.options["player"] or job.options["samples"] > 1:
        raise UserError("tools.replay takes no model, player or samples; it only plays the record")
    if not Path(job.options["record"]).is_file():
        raise UserError(f"record={job.options['record']!r} is not a file")
    return job


@dataclass
class CreditJob:
    """The checkpoints that studies/credit/measure.py measures, and its settings."""

    runs: dict[str, Config]  # folder of a run -> settings of the games to play
    checkpoints: dict[str, dict[str, Path | None]]  # run -> label -> folder; None: no training yet
    options: dict  # a value for each key of CREDIT_OPTIONS


def read_credit(argv: list[str]) -> CreditJob:
    """Read the command line of studies/credit/measure.py."""
    folders = list(takewhile(lambda arg: not arg.startswith("-"), argv))
    missing = [folder for folder in folders if not Path(folder, "config.json").is_file()]
    if missing or not folders:
        given = f"{missing[0]} holds no run" if missing else "no run was given"
        raise UserError(f"{given}; expected folders of runs, then --key=value")
    names = [Path(folder).name for folder in folders]
    if len(set(names)) < len(names):
        raise UserError(f"the folders of runs need different names, got {', '.join(names)}")
    runs = {}
    checkpoints = {}
    for folder in folders:
        saved = load_saved(folder)
        arguments = argv[len(folders) :]
        config, options, sources = load_config(arguments, extra=CREDIT_OPTIONS, base=saved)
        if not 4 <= options["draws"] <= MAX_SAMPLES:
            raise UserError(f"draws must be 4 to {MAX_SAMPLES}, got {options['draws']}")
        _check_trusted(folder, config, sources)
        runs[folder] = _credit_settings(config)
        checkpoints[folder] = _find_checkpoints(folder, options["checkpoints"])
        find_model(config.model)
        check_installed(config)
    _check_pools(runs)
    check_writable(Path(f"{options['out']}.md"))
    return CreditJob(runs, checkpoints, options)


def _check_pools(runs: dict[str, Config]) -> None:
    """Check that runs that the report pools (same environment and estimator) differ only in seed.

    Raises: UserError if two of these runs have the same seed, or settings that differ in more
    than the seed and `seed_groups.WITHOUT_EFFECT`."""
    pools: dict[tuple[str, str], list[str]] = {}
    for folder, config in runs.items():
        pool = pools.setdefault((config.env, config.estimator), [])
        for other in pool:
            same_settings = without_seed(runs[other]) == without_seed(config)
            same_method = same_settings and _earlier_of(other) == _earlier_of(folder)
            if not same_method or runs[other].seed == config.seed:
                raise UserError(
                    f"{other} and {folder} have one environment and estimator, but are not two "
                    "seeds of one method; measure them with different --out"
                )
        pool.append(folder)


def _earlier_of(folder: str) -> tuple:
    """The settings that a run had before a restart changed them, without seeds."""
    return earlier_without_seed(read_earlier(Path(folder)))


def _credit_settings(config: Config) -> Config:
    """The settings of training, with native rewards, masked observations, no filter and no KL."""
    for key in ("num_groups", "group_size"):
        if getattr(config, key) < 2:
            raise UserError(
                f"studies.credit.measure needs {key} of 2 or more, got {getattr(config, key)}"
            )
    is_grid = config.env.split(":")[0] in ("frozenlake", "sokoban")
    if not is_grid or len(mixture_at(config.env, None)) > 1 or "@" in config.env:
        raise UserError(
            "studies.credit.measure needs the values of optimal play; these are known only for one "
            f"frozenlake or one sokoban, got env={config.env!r}"
        )
    return replace(
        config,
        filter_strategy="fraction",
        filter_keep=1.0,
        batch_size=1,
        reward_density="native",
        kl_coef=0.0,
        mask_observations=True,
    )


def _find_checkpoints(run: str, wanted: str) -> dict[str, Path | None]:
    """Find the checkpoints of a run. Args: wanted: labels, separated by commas.

    Returns: label -> folder. A label is "start" (no folder), a number of iterations, or "end".
    """
    folders = sorted(Path(run).glob("checkpoint-" + 6 * "[0-9]"))
    steps = {str(int(folder.name[-6:])): folder for folder in folders}
    known: dict[str, Path | None] = {"start": None, **steps}
    if folders:
        known["end"] = folders[-1]
    found = {}
    for label in wanted.split(","):
        if label not in known:
            raise UserError(
                f"{run} has no checkpoint {label!r}; it has {', '.join(known)}; train with "
                "--save_every=20 --keep_checkpoints=99 to keep them"
            )
        found[label] = known[label]
    if len(set(found.values())) < len(wanted.split(",")):
        raise UserError(f"checkpoints must be different, got {wanted!r}")
    return dict(sorted(found.items(), key=lambda item: str(item[1] or "")))


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
        options: the legal options with their defaults.
        command: the script, a key of `unread.READ_BY`.
        default_model: True to score the config's model if neither runs nor players are given.
        score_runs: True to score the policies of the given runs, unless --model names others; False
            to use only the settings of the first run.
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
        _check_trusted(runs[0], config, sources)
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


def _check_trusted(run: str, config: Config, sources: dict[str, str]) -> None:
    """Refuse an environment that can run programs or read files if only the run's folder names it.

    Somebody else may have written that folder.
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
