"""Groups runs into methods.

Runs of one method differ only in the seed, and in settings that do not change training
(WITHOUT_EFFECT).
"""

from configurator import Config, UserError

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from support.run_folder import load_saved, load_sft_settings
from support.settings_history import Earlier, read_earlier

WITHOUT_EFFECT = ("out_dir", "wandb", "sample_every", "save_every", "keep_checkpoints", "grace_s")


class Method(NamedTuple):
    """A training method. Models are pooled only if all fields of their methods are equal."""

    # Name of the model's folder. Models in policy/ (the last policy of a run) are not pooled with
    # models in best/.
    folder: str
    settings: Config  # without seed
    sft_settings: str  # JSON text of the settings that only tools.sft has
    # The settings of the run before each restart that changed them, without the seed.
    earlier: tuple[Earlier, ...]


class Pools(NamedTuple):
    """Models grouped by method."""

    seeds: list[list[str]]  # for each method with several seeds, the names of its models
    notes: list[str]  # sentences that say why models are not pooled


def pool_seeds(models: dict[str, str]) -> Pools:
    """Group the models whose runs have the same method but different seeds.

    Args: models: maps a name to a model. A model is a folder such as out/sokoban/policy, or a name
        on a hub. The settings of a model are in config.json in the folder of its run, for example
        in out/sokoban/config.json.
    """
    # Maps each method and seed to a key of `models`.
    pools: dict[Method, dict[int, str]] = {}
    notes = []
    for name, folder in models.items():
        settings = settings_of_model(folder)
        if settings is None:
            notes.append(
                f"{name} is not pooled with others: no config.json says how it was trained"
            )
            continue
        run = Path(folder).parent
        sft_settings = json.dumps(load_sft_settings(run / "config.json"), sort_keys=True)
        earlier = earlier_without_seed(read_earlier(run))
        method = Method(Path(folder).name, without_seed(settings), sft_settings, earlier)
        seeds = pools.setdefault(method, {})
        if settings.seed in seeds:
            twin = seeds[settings.seed]
            notes.append(f"{name} is not pooled with others: settings and seed are those of {twin}")
        else:
            seeds[settings.seed] = name
    notes += _differences(pools)
    names = [list(seeds.values()) for seeds in pools.values()]
    return Pools([pool for pool in names if len(pool) > 1], notes)


def without_seed(config: Config) -> Config:
    """Return the settings in a form that is equal for all seeds of one method.

    The seed and the settings in WITHOUT_EFFECT get their defaults.

    A run with seed 1 may start from the model of an SFT run with seed 1, such as out/sft_s1/model.
    `_s1` only names the seed, so it is dropped from the path.
    """
    model = config.model.replace(f"_s{config.seed}/", "/")
    defaults = {key: getattr(Config, key) for key in WITHOUT_EFFECT}
    return replace(config, seed=0, model=model, **defaults)


def earlier_without_seed(earlier: Sequence[Earlier]) -> tuple[Earlier, ...]:
    """Apply `without_seed` to the settings that a run had before restarts changed them."""
    return tuple(Earlier(until, without_seed(settings)) for until, settings in earlier)


def settings_of_model(folder: str) -> Config | None:
    """The settings of the run that trained a model.

    Returns: None if config.json of the run is missing, damaged or of another program.
    """
    try:
        return load_saved(Path(folder).parent / "config.json")
    except UserError:  # config.json is missing, damaged or of another program
        return None


def _differences(pools: dict[Method, dict[int, str]]) -> list[str]:
    sentences = []
    for method, seeds in list(pools.items())[1:]:
        first_method, first_seeds = next(iter(pools.items()))
        keys = _changed_keys(first_method, method)
        name = next(iter(seeds.values()))
        first_name = next(iter(first_seeds.values()))
        sentences.append(
            f"{name} is not another seed of {first_name}: they differ in {', '.join(keys)}"
        )
    return sentences


def _changed_keys(a: Method, b: Method) -> Sequence[str]:
    before = asdict(a.settings) | json.loads(a.sft_settings)
    after = asdict(b.settings) | json.loads(b.sft_settings)
    keys = [key for key in before | after if before.get(key) != after.get(key)]
    if a.earlier != b.earlier:
        keys.append("the settings before a restart changed them")
    return keys or ["the folder (policy/ is the last policy, best/ the best so far)"]
