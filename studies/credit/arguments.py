"""Read the command line of studies/credit/measure.py, before the slow imports."""

from configurator import Config, UserError, load_config

from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from mixtures import mixture_at
from support.arguments import check_trusted
from support.preflight import check_installed
from support.run_folder import CHECKPOINTS, load_saved
from support.seed_groups import earlier_without_seed, without_seed
from support.settings_history import read_earlier
from utils.files import check_writable
from utils.model_folder import find_model

MAX_DRAWS = 1000
CREDIT_OPTIONS = {
    "checkpoints": "start,end",
    # Each game is continued this many times from the state before each turn. As many more
    # continuations from this state first repeat the turn's reply.
    "draws": 16,
    "out": "out/credit",
}


@dataclass
class CreditJob:
    """The checkpoints to measure, and the settings of studies/credit/measure.py."""

    runs: dict[str, Config]  # maps a run's folder to the settings of the games to play
    # Maps a run's folder to a dict. This dict maps a checkpoint's label, such as "20" or "end", to
    # the checkpoint's folder. The label "start" has None instead of a folder.
    checkpoints: dict[str, dict[str, Path | None]]
    options: dict  # see CREDIT_OPTIONS


def read_credit(argv: list[str]) -> CreditJob:
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
        if not 4 <= options["draws"] <= MAX_DRAWS:
            raise UserError(f"draws must be 4 to {MAX_DRAWS}, got {options['draws']}")
        check_trusted(folder, config, sources)
        runs[folder] = _credit_settings(config)
        checkpoints[folder] = _find_checkpoints(folder, options["checkpoints"])
        find_model(config.model)
        check_installed(config)
    _check_pools(runs)
    check_writable(Path(f"{options['out']}.md"))
    return CreditJob(runs, checkpoints, options)


def _check_pools(runs: dict[str, Config]) -> None:
    """Raise UserError unless runs with the same environment and estimator are seeds of one method.

    Such runs must have different seeds, and otherwise equal settings.

    The report averages all runs that have the same environment and estimator, because it assumes
    that they are seeds of one method. The check ignores the settings in WITHOUT_EFFECT
    (support/seed_groups.py), which do not change training. `_credit_settings` gives some settings
    the same value in all runs, so the check also ignores these settings. If a restart changed the
    settings of a run, the check also compares the settings before the restart. Of these earlier
    settings, the check ignores only the seed and the settings in WITHOUT_EFFECT."""
    pools: dict[tuple[str, str], list[str]] = {}
    for folder, config in runs.items():
        pool = pools.setdefault((config.env, config.estimator), [])
        for other in pool:
            same_settings = without_seed(runs[other]) == without_seed(config)
            same_method = same_settings and _earlier_of(other) == _earlier_of(folder)
            if not same_method or runs[other].seed == config.seed:
                raise UserError(
                    f"{other} and {folder} have the same environment and estimator, but are "
                    "not two seeds of one method; measure them with different --out"
                )
        pool.append(folder)


def _earlier_of(folder: str) -> tuple:
    """Return the settings, without the seed, that a run had before a restart changed them."""
    return earlier_without_seed(read_earlier(Path(folder)))


def _credit_settings(config: Config) -> Config:
    """Return the settings, changed for the measurement of credit.

    `reward_density` is "native" (the environment's own rewards), because `credits_of`
    (estimators.py) applies each reward density itself. Only the tokens of replies get advantages
    and a loss. The filter keeps all groups. There is no KL term.

    Raises: UserError if num_groups or group_size is below 2, or if env is anything but a single
        frozenlake or sokoban environment."""
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
    """Map each label in `wanted` to the folder of its checkpoint, and the label "start" to None.

    Args: wanted: labels such as "start,20,end". The label "20" means the checkpoint after 20
        iterations.
    Raises: UserError if a checkpoint is missing, or if two labels mean the same checkpoint."""
    folders = sorted(Path(run).glob(CHECKPOINTS))
    steps = {str(int(folder.name[-6:])): folder for folder in folders}
    known: dict[str, Path | None] = {"start": None, **steps}
    if folders:
        known["end"] = folders[-1]
    found = {}
    for label in wanted.split(","):
        if label not in known:
            raise UserError(
                f"{run} has no checkpoint {label!r}; it has {', '.join(known)}; train with "
                "--save_every=20 --keep_checkpoints=99 to keep more checkpoints"
            )
        found[label] = known[label]
    if len(set(found.values())) < len(wanted.split(",")):
        raise UserError(f"checkpoints must be different, got {wanted!r}")
    return dict(sorted(found.items(), key=lambda item: str(item[1] or "")))
