"""Groups runs into the arms of a comparison. An arm is one method with one or more seeds."""

from configurator import Config, UserError

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from support.run_folder import CHECKPOINTS, load_saved
from support.seed_groups import earlier_without_seed, pool_seeds, without_seed
from support.settings_history import (
    Earlier,
    evaluations_changed_at,
    read_earlier,
    without_old_evaluations,
)
from utils import code_version
from utils.checksums import changed_logs
from utils.files import read_json, read_rows, read_text
from utils.text import printable

# Maps the name of a policy or a reference player to its results on n fixed prompts. The names
# "start" and "after RL" stand for the policy before and after RL. The results are an array with 1
# for each won game and 0 for each other game. Its shape is (n,) for one seed, (S, n) for S seeds.
Wins = dict[str, np.ndarray]
POLICIES = ("start", "after RL")
RATE = (float, None)
STEP = {
    "step": int,
    "eval_success": RATE,
    "cpu_s": RATE,
    "response_length": RATE,
    "sampled_groups": (int, ...),  # missing in metrics.jsonl of old runs
}
LONGEST_NAME = 60


class Evaluation(NamedTuple):
    """An evaluation on the fixed prompts, and the costs of the run up to the evaluation."""

    success: float  # between 0 and 1
    cpu_s: float  # CPU seconds of rollouts and updates, without evaluations
    tokens: float  # sampled in rollouts


@dataclass(frozen=True)
class TrainedRun:
    """What the folder of a run holds."""

    folder: Path
    config: Config
    commit: str
    wins: dict[str, Wins]  # the keys are environments; `evaluations` were made in the first one
    evaluations: dict[int, Evaluation]  # the keys are iterations; 0 is the model before RL
    earlier: Sequence[Earlier] = ()  # the settings before each restart that changed them
    code_diff: str | None = ""  # uncommitted changes as a diff; None if they were not saved

    def is_finished(self) -> bool:
        return bool(self.wins)

    def scored_env(self) -> str:
        """Return the environment in which `evaluations` were made. The run must be finished."""
        return next(iter(self.wins))


@dataclass(frozen=True)
class Arm:
    """The runs of one method: they differ only in the seed and in settings that do not
    change training."""

    name: str
    runs: list[TrainedRun]  # `make_arms` sorts them by seed, `arms_by_method` does not

    def seeds(self) -> list[int]:
        return [run.config.seed for run in self.runs]

    def wins(self, env: str, name: str) -> np.ndarray:
        """Return the results of the policy or player `name` for all S seeds on n prompts, as an
        array (S, n). See `Wins`."""
        return np.stack([run.wins[env][name] for run in self.runs])

    def shared_iterations(self) -> list[int]:
        evaluated = [set(run.evaluations) for run in self.runs]
        return sorted(set.intersection(*evaluated))

    def settings(self) -> dict[str, object]:
        return asdict(without_seed(self.runs[0].config))


# ---------- runs


def read_run(folder: Path) -> TrainedRun:
    """Read the folder of a run, finished or not.

    If a restart changed how the run evaluates, evaluations before the restart are left out.

    Raises: UserError if the folder holds no run or no evaluation, or if its data are damaged or
        impossible."""
    config = load_saved(folder)
    wins = read_wins(folder / "scores.json")
    evaluations = {}
    if wins:
        scored_env = next(iter(wins))
        evaluations[0] = Evaluation(float(wins[scored_env]["start"].mean()), 0.0, 0.0)
    earlier = read_earlier(folder)
    check_metrics(folder)
    steps = read_rows(folder / "metrics.jsonl", shape=STEP)
    steps = without_old_evaluations(steps, evaluations_changed_at(earlier, config))
    cpu_s = accumulate(step["cpu_s"] or 0.0 for step in steps)
    tokens = accumulate(sampled_tokens(step, config) for step in steps)
    for step, cpu_s_so_far, tokens_so_far in zip(steps, cpu_s, tokens, strict=True):
        if step["eval_success"] is not None:
            evaluation = Evaluation(step["eval_success"], cpu_s_so_far, tokens_so_far)
            evaluations[step["step"]] = evaluation
    if not evaluations:
        raise UserError(f"{folder} has no evaluation yet")
    if not all(0 <= evaluation.success <= 1 for evaluation in evaluations.values()):
        raise UserError(f"{folder} has success rates that are not between 0 and 1")
    commit = str(read_json(folder / "config.json", {}).get("git_commit") or "unknown")
    code_diff = read_code_diff(folder, commit)
    return TrainedRun(folder, config, commit, wins, evaluations, earlier, code_diff)


def sampled_tokens(step: dict, config: Config) -> float:
    """Return the number of tokens that an iteration sampled.

    `response_length` is the mean number of sampled tokens in a game. This mean leaves out groups
    with an error. The function assumes that games in these groups have the same mean."""
    num_groups = step.get("sampled_groups", config.num_groups)
    return num_groups * config.group_size * (step["response_length"] or 0.0)


def read_code_diff(folder: Path, commit: str) -> str | None:
    """Return the uncommitted changes of a run's code as a diff.

    Returns: "" if no changes are known; None if the run had changes but did not save them."""
    path = folder / code_version.NAME
    if path.is_file():
        return read_text(path)
    return None if commit.endswith("-dirty") else ""


def check_metrics(folder: Path) -> None:
    """Compare metrics.jsonl with its checksum in the newest checkpoint.

    Raises: UserError if the lines up to this checkpoint do not match the checksum."""
    checkpoints = sorted(folder.glob(CHECKPOINTS))
    if checkpoints and "metrics.jsonl" in changed_logs(folder, checkpoints[-1]):
        raise UserError(
            f"{folder}/metrics.jsonl is not what the run wrote (checksum in "
            f"{checkpoints[-1].name}/logs.json); restore the file"
        )


def read_wins(path: Path) -> dict[str, Wins]:
    """Read scores.json. Return a dict from environments to `Wins`; {} if the file is missing."""
    if not path.is_file():
        return {}
    found = {}
    for env, successes in read_json(path, {str: {str: [int]}}).items():
        lengths = {len(games) for games in successes.values()}
        played = [win for games in successes.values() for win in games]
        complete = all(stage in successes for stage in POLICIES)
        if not complete or len(lengths) != 1 or not played or max(played) > 1:
            raise UserError(
                f"{path} must hold for each environment the successes (0 or 1) of 'start', "
                "'after RL' and the players, on the same number of prompts"
            )
        found[env] = {name: np.array(games, float) for name, games in successes.items()}
    return found


# ---------- arms


def make_arms(groups: Sequence[Sequence[Path]]) -> list[Arm]:
    """Return the arms of a comparison. Args: groups: one list of run folders for each arm.

    Raises: UserError if the runs of an arm are not seeds of one method."""
    runs_of = []
    for folders in groups:
        runs = [read_run(folder) for folder in folders]
        check_one_method(runs)
        runs_of.append(sorted(runs, key=lambda run: run.config.seed))
    names = names_of(runs_of)
    return [Arm(name, runs) for name, runs in zip(names, runs_of, strict=True)]


def check_one_method(runs: Sequence[TrainedRun]) -> None:
    """Raises: UserError if the runs are of different methods, or if two runs have equal seeds."""
    policies = {str(run.folder): str(run.folder / "policy") for run in runs}
    notes = pool_seeds(policies).notes
    if notes:
        raise UserError(f"the runs of an arm must differ in the seed alone: {'; '.join(notes)}")


def arms_by_method(runs: Sequence[TrainedRun]) -> list[Arm]:
    """Sort runs into arms, one for each method (see `Arm`)."""
    methods: dict[tuple, list[TrainedRun]] = {}
    for run in runs:
        method = without_seed(run.config), earlier_without_seed(run.earlier)
        methods.setdefault(method, []).append(run)
    runs_of = list(methods.values())
    return [Arm(name, runs) for name, runs in zip(names_of(runs_of), runs_of, strict=True)]


def names_of(runs_of: Sequence[Sequence[TrainedRun]]) -> list[str]:
    """Name each arm after the folder of its first run, without _s<seed>. If two names are equal
    or a name is empty, the parent folder is added to all names: PARENT/NAME."""
    paths = []
    for runs in runs_of:
        path = runs[0].folder.resolve()
        paths.append(path.with_name(path.name.removesuffix(f"_s{runs[0].config.seed}")))
    names = [path.name for path in paths]
    if len(set(names)) < len(names) or not all(names):
        names = [f"{path.parent.name}/{path.name}" for path in paths]
    return [printable(name, limit=LONGEST_NAME) for name in names]


def changed_settings(arms: Sequence[Arm]) -> dict[str, list[object]]:
    """Return the settings in which the arms differ.

    The returned dict maps the name of a setting to its values, one for each arm."""
    changed = {}
    for key in arms[0].settings():
        values = [arm.settings()[key] for arm in arms]
        if any(value != values[0] for value in values):
            changed[key] = values
    return changed
