"""Classes and commands that the experiments of all studies share.

studies/STUDY/experiments.py defines the experiments of a study. An `Experiment` compares curves. A
`Curve` is a training run that is repeated with several seeds. A `Scale` is a model and the machine
that trains it. The folder of a run is named after its config files, overrides and seed, so two
experiments that contain the same run share its folder.
"""

from configurator import SFT_PREFIX, Config, UserError, load_config

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tools.sft_config import SftConfig

ROOT = Path(__file__).resolve().parent.parent

# ---------- curves, experiments, scales


@dataclass(frozen=True)
class Curve:
    """A training run. `files` are names of files in config/. The settings in `overrides` override
    the settings in these files.

    If `sft` is given, SFT first trains a model with the files and overrides of `sft`, and the run
    starts from this model. The run itself also uses the files and overrides of `sft`. Curves with
    equal `sft` share one SFT run for each seed.
    """

    files: tuple[str, ...]
    overrides: dict[str, object]
    sft: "Curve | None" = None
    overlays: tuple[str, ...] = ()  # config files that are read last, after Scale.files

    def combined(self) -> "Curve":
        if self.sft is None:
            return self
        files = self.sft.files + self.files
        overrides = {**self.sft.overrides, **self.overrides}
        return Curve(files, overrides, overlays=self.overlays)


@dataclass(frozen=True)
class Experiment:
    """A comparison of `curves` by `metrics`, for example for a figure of a paper."""

    title: str
    metrics: tuple[str, ...]  # the picture has a row of panels for each metric
    curves: dict[str, Curve]  # maps labels to curves; a label begins with the environment
    scales: tuple[str, ...] = ("tiny", "full")  # keys of SCALES; the first is the default
    # A name for files in the folder of the study. The table is {files}.md, and the picture is
    # {files}.png. If the scale is not the default, the table is {files}_SCALE.md, and the picture
    # is {files}_SCALE.png. If `files` is empty, the experiment's key in EXPERIMENTS is the name.
    files: str = ""


class Seconds(NamedTuple):
    """Estimated seconds, from which studies/reproduce.py computes the hours of a run."""

    rollout: float  # for sampling 128 trajectories
    step: float  # for an optimizer step on 32 trajectories


@dataclass(frozen=True)
class Scale:
    """A model and the machine that trains it."""

    files: tuple[str, ...]  # config files that are read between Curve.files and Curve.overlays
    jobs: int  # number of runs at the same time
    # Maps an environment to estimated seconds, which are used for curves that have no finished run.
    # An environment that is not in this dict gets the longest times in the dict.
    seconds: dict[str, Seconds]
    estimate: str  # text in which --dry_run says where its estimates come from


def curve(*files: str, sft: Curve | None = None, **overrides: object) -> Curve:
    """Return a curve. Overrides that equal a default of SftConfig are left out, so that equal runs
    have equal folder names.

    So `overrides` cannot restore a default that a config file has changed. To restore the default,
    call `Curve` itself, which keeps all overrides.
    """
    changed = {key: value for key, value in overrides.items() if value != getattr(SftConfig, key)}
    return Curve(files, changed, sft)


def compare(
    envs: Sequence[str], algorithms: Sequence[str], variants: dict[str, Curve]
) -> dict[str, Curve]:
    """Return a curve for each combination of environment, algorithm and variant.

    The keys of the returned dict are labels "ENV ALGORITHM VARIANT". A curve uses the file
    config/ENV_ALGORITHM.py first, then the files and overrides of the variant.
    """
    curves = {}
    for env in envs:
        for algorithm in algorithms:
            for name, variant in variants.items():
                label = f"{env} {algorithm.upper()} {name}"
                files = (f"{env}_{algorithm}", *variant.files)
                curves[label] = Curve(files, variant.overrides)
    return curves


# Values for Experiment.metrics
EVALUATION = ("eval_success",)
TRAINING = ("success",)
COLLAPSE_SIGNS = ("reward", "in_group_reward_std", "entropy", "grad_norm")
THOUGHTS = ("response_length", "thought_true_frac")

SCALES = {
    "tiny": Scale(
        files=("tiny",),
        jobs=2,
        seconds={
            "bandit": Seconds(0.4, 0.3),
            "frozenlake": Seconds(1.9, 0.9),
            "sokoban": Seconds(3.7, 1.8),
            "quest": Seconds(9, 3),
            "repair": Seconds(16, 18),
        },
        estimate="CPU times of finished rows, or else of groups of 16; smaller groups take longer; "
        "evaluations and SFT come on top",
    ),
    "smollm2": Scale(
        files=("smollm2",),
        jobs=2,
        seconds={"bandit": Seconds(24, 12)},
        estimate="CPU times of finished rows, or else of groups of 16 on a core with AVX2",
    ),
    "smollm2_gpu": Scale(
        files=("smollm2_gpu",),
        jobs=6,
        seconds={"bandit": Seconds(1.2, 0.4), "worlds/guess.py": Seconds(1.2, 0.4)},
        estimate="finished rows, or else 4 to 6 s an iteration as on an H200 that six runs shared",
    ),
    "full": Scale(
        files=(),
        jobs=1,
        seconds={"sokoban": Seconds(9.3, 14.7)},
        estimate="finished rows, or else the paper's 24 s (25 % kept) to 68 s (all kept) per step "
        "of Sokoban on one GPU",
    ),
}


# ---------- commands


@dataclass(frozen=True)
class Command:
    """A call of train.py or tools/sft.py from the root of the repository."""

    script: tuple[str, ...]  # what follows "python"
    arguments: tuple[str, ...]  # config files, then --key=value options; --out_dir is last

    @property
    def out_dir(self) -> Path:
        return Path(self.arguments[-1].removeprefix("--out_dir="))

    def __str__(self) -> str:
        return shlex.join(["python", *self.script, *self.arguments])

    def config(self) -> Config:
        kind = Config if self.script == ("train.py",) else SftConfig
        return load_config(list(self.arguments), kind=kind)[0]


def read_names(
    argv: Sequence[str], known: Collection[str], extra: dict[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """Read a command line: one or more names from `known`, then options whose keys are in `extra`.

    Raises: UserError if no name is given, a name is unknown, or an option is not in `extra`."""
    names = list(takewhile(lambda word: not word.startswith("-"), argv))
    if not names or set(names) - set(known):
        given = " ".join(names) or "nothing"
        raise UserError(f"give names among {', '.join(known)}; got {given}")
    _, options, sources = load_config(argv[len(names) :], extra=extra)
    if set(sources.values()) != {"default"}:
        keys = ", --".join(extra)
        raise UserError(f"the settings of the runs are fixed here; the options are --{keys}")
    return names, options


def train_command(curve: Curve, scale: str, seed: int) -> Command:
    """Return the command that runs train.py for `curve` with `seed`."""
    combined = curve.combined()
    files = files_at(combined, scale)
    name = folder_name(files, combined.overrides, seed)
    overrides = {}
    for key, value in combined.overrides.items():
        if not key.startswith(SFT_PREFIX):
            overrides[key] = value
    sft = sft_command(curve, scale, seed)
    if sft:
        name = f"warm-{name}"
        overrides["model"] = sft.out_dir / "model"
    return make_command(("train.py",), files, overrides, seed, name)


def sft_command(curve: Curve, scale: str, seed: int) -> Command | None:
    """Return the command of SFT, which trains the initial model of a run. If the curve has no SFT,
    return None."""
    if curve.sft is None:
        return None
    files = files_at(curve.sft, scale)
    name = f"sft-{folder_name(files, curve.sft.overrides, seed)}"
    return make_command(("-m", "tools.sft"), files, curve.sft.overrides, seed, name)


def settings_of(curve: Curve, scale: str, seed: int) -> Config:
    """Return the settings that identify a run: all except `out_dir`."""
    return replace(train_command(curve, scale, seed).config(), out_dir="")


def files_at(curve: Curve, scale: str) -> list[str]:
    files = [*curve.files, *SCALES[scale].files]
    if scale == "tiny" and files[0].startswith(("quest", "repair")):
        files.append("tiny_text")
    return [*files, *curve.overlays]


def folder_name(files: Sequence[str], overrides: dict[str, object], seed: int) -> str:
    words = [f"{key}={value}" for key, value in overrides.items()]
    name = "-".join([*files, *words])
    # eval.py reads a list of models separated by commas, so a name must contain no comma.
    return name.replace(":", "_").replace(",", "_") + f"_s{seed}"


def config_path(name: str) -> str:
    """Return the path of a config file, such as config/methods/gspo.py for "gspo".

    Raises: UserError if config/ has no such file."""
    for path in sorted(ROOT.glob("config/**/*.py")):
        if path.stem == name:
            return path.relative_to(ROOT).as_posix()
    raise UserError(f"config/ has no file {name}.py")


def make_command(
    script: tuple[str, ...], files: Sequence[str], overrides: dict, seed: int, name: str
) -> Command:
    paths = [config_path(file) for file in files]
    settings = [f"--{key}={value}" for key, value in overrides.items()]
    return Command(script, (*paths, *settings, f"--seed={seed}", f"--out_dir=out/runs/{name}"))
