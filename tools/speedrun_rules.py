"""The rules of the speedrun: tracks, entries, and when a seed crosses the threshold.

docs/speedrun.md explains the rules. An entry is a Python file that assigns `title`, `tuning` and a
dict for each of its tracks. docs/speedrun/paper.py is an example.
"""

from configurator import Config, UserError, load_config

import hashlib
import math
import runpy
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from support.arguments import check_envs, check_imitation
from support.available import BASE
from support.mixtures import env_specs, mixture_at, specs_that_run_programs
from support.shapes import check_shape

SEEDS = (0, 1, 2, 3, 4)  # the board shows the median of these
GAMES_PER_PROMPT = 16
MAX_CHECKS = 40
SFT = "tools.sft"
RL = "train.py"

# Every policy is scored with these settings, whatever its entry sets.
SCORING = Config(
    engine="torch",
    device="cpu",
    dtype="float32",
    num_threads=1,
    observation="grid",
    think=True,
    max_turns=5,
    actions_per_turn=5,
    actions_per_traj=10,
    context_turns=0,
    max_response_tokens=64,
    max_context_tokens=1024,
    micro_batch_tokens=4096,
    eval_size=256,
    eval_temperature=0.5,
)


class Track(NamedTuple):
    """What the policies play, and the success rate that they must reach."""

    title: str
    env: str
    threshold: float  # share of won games, 0 to 1

    def scoring(self, split: str) -> Config:
        """The settings of an evaluation. Args: split: "eval" or "heldout"."""
        return replace(SCORING, env=self.env, eval_split=split)


TRACKS = {
    "frozenlake": Track(
        title="80 % on slippery FrozenLake",
        env="frozenlake:size=4,frozen_prob=0.8,success_rate=0.8",
        threshold=0.80,
    ),
    "sokoban": Track(
        title="70 % on Sokoban",
        env="sokoban:size=6,boxes=1,search_depth=300",
        threshold=0.70,
    ),
}


# ---------- entries


class Stage(NamedTuple):
    """One step of an entry: supervised learning or RL."""

    script: str  # SFT or RL
    config: Config


@dataclass(frozen=True)
class Entry:
    """An entry on one track."""

    path: Path
    title: str
    tuning: str  # how the settings were chosen
    track: str
    steps: tuple[str, ...]  # "tools.sft ..." or "train.py ...", the last one is train.py
    checks: tuple[int, ...]  # iterations of the last step after which the policy is scored

    @property
    def name(self) -> str:
        return f"{self.path.stem}-{self.track}"

    def stages(self) -> list[Stage]:
        """The steps with their settings. Raises: UserError for a step that breaks a rule."""
        return [read_step(step) for step in self.steps]

    def stages_of_seed(self, seed: int, folder: Path) -> list[Stage]:
        """The steps of one seed in its folder. Each step starts from the model before it."""
        stages = []
        model = "base"
        for number, stage in enumerate(self.stages()):
            out_dir = folder / f"step-{number}"
            config = replace(stage.config, seed=seed, out_dir=str(out_dir), model=model)
            stages.append(Stage(stage.script, config))
            model = str(out_dir / "model")
        return stages

    def description(self) -> dict[str, Any]:
        """What all seeds of an entry have in common, as JSON."""
        return {
            "entry": self.path.as_posix(),
            "title": self.title,
            "tuning": self.tuning,
            "track": self.track,
            "base": base_hash(),
            "checks": list(self.checks),
            "steps": list(self.steps),
            "settings": [asdict(stage.config) for stage in self.stages()],
        }


def differing_key(before: dict, now: dict) -> str:
    """The first of base, checks and settings in which two descriptions differ; "" if they agree.

    A setting that the older one lacks has its default."""
    for key in ("base", "checks"):
        if before[key] != now[key]:
            return key
    defaults = asdict(Config())
    complete = [{**defaults, **settings} for settings in before["settings"]]
    return "" if complete == now["settings"] else "settings"


def read_entry(path: Path, track: str) -> Entry:
    """Read an entry, and check the rules that its text can break.

    Raises: UserError that names the broken rule."""
    values = _read_file(path)
    texts = ("title", "tuning")
    unknown = sorted(values.keys() - {*texts, *TRACKS})
    if unknown:
        raise UserError(
            f"{path} assigns {unknown[0]}; an entry assigns {', '.join((*texts, *TRACKS))}"
        )
    if track not in values:
        raise UserError(f"{path} has no steps for track {track!r}")
    shape = {"title": str, "tuning": str, track: {"steps": [str], "checks": [int]}}
    check_shape(values, shape, str(path))
    if not values["title"].strip() or not values["tuning"].strip():
        raise UserError(f"{path}: title and tuning must not be empty")
    run = values[track]
    entry = Entry(
        path=path,
        title=" ".join(values["title"].split()),
        tuning=" ".join(values["tuning"].split()),
        track=track,
        steps=tuple(run["steps"]),
        checks=tuple(run["checks"]),
    )
    check_checks(entry)
    stages = entry.stages()
    scripts = [stage.script for stage in stages]
    if not scripts or scripts[-1] != RL or RL in scripts[:-1]:
        raise UserError(
            f"{path}: the steps must be any number of {SFT}, then one {RL}; got "
            f"{', '.join(scripts) or 'none'}"
        )
    num_iterations = stages[-1].config.num_iterations
    if entry.checks[-1] > num_iterations:
        raise UserError(
            f"{path}: the last check, {entry.checks[-1]}, is after the last iteration, "
            f"{num_iterations}"
        )
    return entry


def _read_file(path: Path) -> dict[str, Any]:
    """The names that an entry assigns."""
    if not path.is_file():
        raise UserError(f"the entry {path} does not exist")
    try:
        names = runpy.run_path(str(path))
    except Exception as error:  # a file may raise anything
        raise UserError(f"the entry {path} fails with {type(error).__name__}: {error}") from error
    values = {}
    for name, value in names.items():
        if not name.startswith("_") and not isinstance(value, ModuleType):
            values[name] = value
    return values


def check_checks(entry: Entry) -> None:
    """Check the iterations at which an entry is scored. Raises: UserError."""
    checks = entry.checks
    is_rising = list(checks) == sorted(set(checks))
    if not is_rising or not 2 <= len(checks) <= MAX_CHECKS:
        given = ", ".join(map(str, checks)) or "none"
        raise UserError(
            f"{entry.path}: checks must be 2 to {MAX_CHECKS} rising iterations, got {given}"
        )


def read_step(step: str) -> Stage:
    """The settings of a step. Raises: UserError if it breaks a rule."""
    script, *arguments = shlex.split(step) or [""]
    if script not in (SFT, RL):
        raise UserError(f"a step must begin with {SFT} or {RL}, got {step!r}")
    config, _, sources = load_config(arguments)
    for key in ("seed", "out_dir"):
        if sources[key] != "default":
            raise UserError(f"step {step!r} sets {key}, which tools.speedrun sets")
    if config.model != "base":
        raise UserError(
            f"step {step!r} has model={config.model!r}; the first step starts from the model in "
            "base/, the others from the step before: add config/tiny.py"
        )
    if config.device != "cpu":
        raise UserError(f"step {step!r} has device={config.device!r}; the clock counts CPU time")
    if config.sft_file:
        raise UserError(
            f"step {step!r} reads {config.sft_file}; demonstrations must be made on the clock"
        )
    programs = specs_that_run_programs(config.env)
    if programs:
        raise UserError(
            f"step {step!r} trains in {programs[0]}, which can run programs or read files"
        )
    if script == SFT:
        _check_sft(step, config)
    check_envs(config, mixture_at(config.env, 0))
    return Stage(script, replace(config, out_dir=""))


def _check_sft(step: str, config: Config) -> None:
    check_imitation(config)
    if not config.sft_steps:
        raise UserError(f"step {step!r} has nothing to do: give --sft_steps=N")
    if len(env_specs(config.env)) > 1:
        raise UserError(f"step {step!r}: supervised learning takes one environment")


def base_hash() -> str:
    """The first 16 digits of a sha256 of the files in base/: weights, tokenizer and settings."""
    digest = hashlib.sha256()
    for path in sorted(BASE.iterdir()):
        digest.update(path.name.encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


# ---------- files of a seed


def seed_folder(entry: Entry, seed: int) -> Path:
    return Path("out/speedrun", f"{entry.name}_s{seed}")


def policy_folder(folder: Path, iteration: int) -> Path:
    """The Hugging Face folder of the policy after an iteration of the last step."""
    return folder / f"policy-{iteration:06d}"


def is_trained(folder: Path, checks: Sequence[int]) -> bool:
    """Whether the policies of all checks are saved."""
    return all(policy_folder(folder, iteration).is_dir() for iteration in checks)


# ---------- crossing the threshold


def crossing(wins: Sequence[int | None], games: int, threshold: float) -> int | None:
    """The first of two successive checks that both reach the threshold.

    Args:
        wins: won games at each check; None for a check that was not scored.
    Returns:
        The index of the check; None if no pair reaches the threshold.

    >>> crossing([70, 81, 79, 80, 85], games=100, threshold=0.8)
    3
    """
    reached = [won is not None and won / games >= threshold for won in wins]
    for first in range(len(reached) - 1):
        if reached[first] and reached[first + 1]:
            return first
    return None


class Finish(NamedTuple):
    """When a seed crossed the threshold. All three are infinite if it never did."""

    cpu_s: float
    sampled: float  # tokens that the policy sampled until then
    imitated: float  # tokens of demonstrations until then


NEVER = Finish(math.inf, math.inf, math.inf)


def finish_of(row: dict, threshold: float) -> Finish | None:
    """When a seed crossed the threshold.

    Args: row: a seed in a result file.
    Returns: None if too few of its checks are scored to tell."""
    checks = row["checks"]
    if row["failure"] or not checks:
        return NEVER
    index = crossing([check["wins"] for check in checks], checks[0]["games"], threshold)
    if index is not None:
        check = checks[index]
        return Finish(check["cpu_s"], check["sampled"], check["imitated"])
    is_scored = all(check["wins"] is not None for check in checks)
    return NEVER if is_scored else None
