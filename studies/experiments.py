"""The experiments that `python -m studies.reproduce` runs, such as those of a figure of a paper.

An `Experiment` compares curves. A `Curve` is a training run that is repeated with several seeds.
The folder of a run is named after its config files, overrides and seed, so two experiments that
contain the same run share one folder.
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
    """A training run: names of files in config/, and settings that override these files.

    If `sft` is given, SFT with the files and overrides of `sft` trains the model from which the run
    starts. The run itself also uses the files and overrides of `sft`. Curves with equal `sft` share
    one SFT run for each seed.
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
    """Training runs and the metrics to compare, for example for a figure of a paper."""

    title: str
    metrics: tuple[str, ...]  # the picture has a row of panels for each metric
    curves: dict[str, Curve]  # label -> curve; a label begins with the environment
    scales: tuple[str, ...] = ("tiny", "full")  # keys of SCALES, the default first
    # At the default scale, the table is studies/{files}.md, and the picture is studies/{files}.png.
    # '' stands for papers/NAME, where NAME is the key of the experiment in EXPERIMENTS.
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
    seconds: dict[str, Seconds]  # environment -> estimate, for curves without a finished run
    estimate: str  # what --dry_run prints as the source of its estimates


def curve(*files: str, sft: Curve | None = None, **overrides: object) -> Curve:
    """Return a curve without the overrides that equal a default of SftConfig, so that equal runs
    have equal folder names.

    An override that is left out cannot restore a default that a config file changes. To restore a
    default, call `Curve` itself, which keeps all overrides."""
    changed = {key: value for key, value in overrides.items() if value != getattr(SftConfig, key)}
    return Curve(files, changed, sft)


def compare(
    envs: Sequence[str], algorithms: Sequence[str], variants: dict[str, Curve]
) -> dict[str, Curve]:
    """Return label -> curve for all combinations. A label is "ENV ALGORITHM VARIANT".

    A curve has config/ENV_ALGORITHM.py, then the files and overrides of the variant.
    """
    curves = {}
    for env in envs:
        for algorithm in algorithms:
            for name, variant in variants.items():
                label = f"{env} {algorithm.upper()} {name}"
                files = (f"{env}_{algorithm}", *variant.files)
                curves[label] = Curve(files, variant.overrides)
    return curves


# ---------- arXiv 2504.20073

EVALUATION = ("eval_success",)
TRAINING = ("success",)
COLLAPSE_SIGNS = ("reward", "in_group_reward_std", "entropy", "grad_norm")
THOUGHTS = ("response_length", "thought_true_frac")

ENVS = ("bandit", "frozenlake", "sokoban")
GRIDS = ("frozenlake", "sokoban")

STARPO = curve("starpo_vanilla")
STARPO_S = curve()  # the defaults of Config are StarPO-S


def online_k(num_epochs: int) -> Curve:
    if num_epochs == 1:
        return STARPO_S
    return curve(
        num_epochs=num_epochs,
        num_iterations=200 // num_epochs,
        eval_every=10 // num_epochs,
    )


def responses_per_prompt(group_size: int) -> Curve:
    num_groups = 128 // group_size
    if group_size > 1:
        return curve("sokoban_transfer", num_groups=num_groups, group_size=group_size)
    # A group of one trajectory has no variance, so the filter would drop all groups. Without the
    # filter, all 128 trajectories are kept. They form one batch, because runs with larger groups
    # also make one optimizer step an iteration.
    return curve(
        "sokoban_transfer",
        num_groups=num_groups,
        group_size=group_size,
        filter_keep=1.0,
        batch_size=128,
    )


def actions_per_turn(k: int) -> Curve:
    return curve("sokoban_transfer", actions_per_turn=k, actions_per_traj=5 * k)


def collapsing() -> dict[str, Curve]:
    """Return many methods at the learning rate 2e-3, at which most runs of StarPO collapse, and
    some methods at lower rates.

    An iteration samples 32 trajectories (dynamic sampling: up to 96). By default, an iteration
    makes four optimizer steps on 8 trajectories each. A method with "one step" in its name makes
    one step on all trajectories that it keeps. A method with "two epochs" in its name makes eight
    steps. StarPO-S keeps only 8 of the 32 trajectories, so StarPO-S with four steps trains on 2
    trajectories in each step.
    Dynamic sampling and SAMPO drop groups in which all scores are equal, so an iteration of these
    two methods may have fewer than four steps.
    The bfloat16 engine is tried at 1e-3. At this rate, none of three StarPO runs in float32
    collapses.
    """
    s_one_step = {"filter_keep": 0.25, "clip_high": 0.28}
    s_four_steps = {**s_one_step, "batch_size": 2}
    methods = {
        "StarPO": collapse_cell(),
        "StarPO with a KL of 0.001": collapse_cell(kl_coef=0.001),
        "StarPO with a KL of 0.1": collapse_cell(kl_coef=0.1),
        "StarPO with a KL of 0.3": collapse_cell(kl_coef=0.3),
        "StarPO with a KL of 0.1 and one step": collapse_cell(kl_coef=0.1, batch_size=32),
        "StarPO with a higher clip": collapse_cell(clip_high=0.28),
        "StarPO with one step": collapse_cell(batch_size=32),
        "StarPO with two epochs": collapse_cell(num_epochs=2),
        "StarPO with a large Adam epsilon": collapse_cell(adam_eps=1e-4),
        "StarPO-S with one step": collapse_cell(**s_one_step),
        "StarPO-S with four steps": collapse_cell(**s_four_steps),
        "StarPO-S with a KL of 0.001 and four steps": collapse_cell(**s_four_steps, kl_coef=0.001),
        "StarPO-S that never skips": collapse_cell(**s_four_steps, filter_zero_std=True),
        "dynamic sampling": collapse_cell("dynamic_sampling"),
        "GSPO": collapse_cell("gspo"),
        "sequence mask": collapse_cell("sequence_mask"),
        "DPPO-TV": collapse_cell("dppo_tv"),
        "GiGPO": collapse_cell("gigpo"),
        "SAMPO": collapse_cell("sampo"),
    }
    mismatch = {"engine_dtype": "bfloat16", "learning_rate": 1e-3}
    mismatched = {
        "bfloat16 engine": collapse_cell(**mismatch, importance_cap=1e6),
        "bfloat16 engine with TIS": collapse_cell(**mismatch),
        "bfloat16 engine with IcePop": collapse_cell("icepop", **mismatch),
        "bfloat16 engine with a sequence mask": collapse_cell(
            "sequence_mask", **mismatch, importance_cap=1e6
        ),
    }
    curves = {f"frozenlake {name} at 2e-3": method for name, method in methods.items()}
    curves |= {f"frozenlake {name} at 1e-3": method for name, method in mismatched.items()}
    for rate in ("5e-4", "1e-3", "1.5e-3"):
        curves[f"frozenlake StarPO at {rate}"] = collapse_cell(learning_rate=float(rate))
    for rate in ("5e-4", "1e-3", "1.5e-3"):
        starpo_s = collapse_cell(**s_four_steps, learning_rate=float(rate))
        curves[f"frozenlake StarPO-S with four steps at {rate}"] = starpo_s
    for rate in ("1e-3", "2e-3"):
        paid = collapse_cell("think_reward", learning_rate=float(rate))
        curves[f"frozenlake StarPO with a think reward at {rate}"] = paid
    return curves


def collapse_cell(*overlays: str, **overrides: object) -> Curve:
    return Curve(("frozenlake_grpo",), overrides, overlays=("tiny_collapse", *overlays))


def estimators() -> dict[str, Curve]:
    """Return runs with the config tiny_best.py and different advantage estimators, at about equal
    CPU time.

    An iteration with a critic takes about 1.5 times as long as an iteration without a critic, so
    runs with a critic have 20 iterations, and runs without a critic have 30. The runs of GAE keep
    all checkpoints, because studies/credit/measure.py reads them.
    """
    with_critic = {"num_iterations": 20, "eval_every": 10}
    without = {"num_iterations": 30, "eval_every": 15}
    by_turn = {**without, "turn_level": True}
    # Sokoban has longer games than FrozenLake, so an iteration has fewer groups. Sokoban's rewards
    # are larger, so the format penalty is larger.
    sokoban = {"num_groups": 16, "format_penalty": -1.0}
    # With the reward density "plan" (methods.py:shape_rewards), the rewards of a game sum to 1 at
    # most, so the format penalty is small.
    plan = {"reward_density": "plan", "format_penalty": -0.1}
    curves = {}
    for env, sizes in (("frozenlake", {}), ("sokoban", sokoban)):
        ppo, grpo = f"{env}_ppo", f"{env}_grpo"
        methods = {
            "GAE": (ppo, (), {**with_critic, "keep_checkpoints": 99}),
            "bi-level GAE": (ppo, ("bi_level",), with_critic),
            "Turn-PPO": (ppo, ("turn_ppo",), with_critic),
            "GiGPO": (grpo, ("gigpo",), without),
            "GRPO": (grpo, (), without),
            "GRPO by turn": (grpo, (), by_turn),
            "GRPO by turn, plan": (grpo, (), {**by_turn, **plan}),
            "RLOO": (grpo, ("rloo",), without),
            "REINFORCE++": (grpo, (), {**without, "estimator": "reinforce_plus_plus"}),
        }
        for name, (file, overlays, overrides) in methods.items():
            settings = {**sizes, **overrides}
            curves[f"{env} {name}"] = Curve((file,), settings, overlays=("tiny_best", *overlays))
    return curves


ECHO_COLD_START = curve("bandit_grpo", sft_steps=15, eval_size=64)


def echo_trap() -> dict[str, Curve]:
    """Return StarPO, StarPO-S and variants of both, on the bandit.

    Runs with equal seeds share a cold start: SFT on 120 games of a player that chooses a random
    arm. Runs named "at 2e-5" have the learning rate of smollm2.py. Runs without a rate in their
    name have a learning rate of 8e-5."""
    starpo_s = {"filter_keep": 0.25, "clip_high": 0.28, "batch_size": 16}
    four_steps = {"batch_size": 16}
    variants = {
        "StarPO": {},
        "StarPO-S": starpo_s,
        "StarPO with a KL of 0.001": {"kl_coef": 0.001},
        "StarPO with a KL of 0.1": {"kl_coef": 0.1},
        "StarPO with four steps": four_steps,
        "StarPO with four steps and a higher clip": {**four_steps, "clip_high": 0.28},
        "StarPO, PPO": {"estimator": "gae"},
        "StarPO-S, PPO": {**starpo_s, "estimator": "gae"},
    }
    at_high_rate = {"learning_rate": 8e-5, "num_iterations": 15}
    settings = {name: {**at_high_rate, **changes} for name, changes in variants.items()}
    settings["StarPO at 2e-5"] = {}
    settings["StarPO-S at 2e-5"] = starpo_s
    curves = {}
    for name, overrides in settings.items():
        trained = Curve((), overrides, sft=ECHO_COLD_START, overlays=("smollm2_bandit",))
        curves[f"bandit {name}"] = trained
    return curves


def jobs() -> dict[str, Curve]:
    """Return curves on bandits whose arms are named after jobs.

    Each curve has its own cold start (SFT). The two curves with one pair of jobs compare replies
    with and without thoughts, like table 4 of arXiv 2504.20073."""
    one_pair = {"num_iterations": 12, "eval_every": 4}
    return {
        "bandit one pair, with thoughts": on_jobs("bandit_transfer", **one_pair),
        "bandit one pair, without thoughts": on_jobs("bandit_transfer", think=False, **one_pair),
        "bandit twelve pairs, with thoughts": on_jobs(
            "bandit_jobs", num_iterations=30, eval_every=10
        ),
    }


def on_jobs(world: str, think: bool = True, **settings: int) -> Curve:
    cold_start = curve("bandit_grpo", world, think=think, sft_steps=15, eval_size=64)
    return Curve((), settings, sft=cold_start, overlays=("smollm2_bandit",))


def guess() -> dict[str, Curve]:
    """Return StarPO and StarPO-S on a game of four turns, in which the policy guesses a number.

    The cold start (SFT) imitates a player that guesses random numbers and has true thoughts. Two
    curves of StarPO-S have a reward for true thoughts."""
    cold_start = curve("guess_grpo", sft_steps=25)
    every = {"num_iterations": 50, "eval_every": 10, "eval_size": 128}
    curves = {
        "guess StarPO": Curve(("starpo_vanilla",), every, sft=cold_start),
        "guess StarPO-S": Curve((), every, sft=cold_start),
    }
    for reward in (0.1, 0.3):
        label = f"guess StarPO-S, think_reward {reward}"
        curves[label] = Curve((), {**every, "think_reward": reward}, sft=cold_start)
    return curves


def thinking(env: str) -> dict[str, Curve]:
    transfer = f"{env}_transfer"
    variants = {"think": curve(transfer), "no-think": curve(transfer, think=False)}
    return compare([env], ["ppo"], variants)


# ---------- arXiv 2510.01132


def quest_sft(**overrides: object) -> Curve:
    return curve("quest_ppo", "single_turn", sft_steps=1000, sft_batch_size=8, **overrides)


# After QUEST_SFT, a policy solves only a part of the quests, so RL can still improve the policy.
QUEST_SFT = quest_sft(sft_noise=0.6, sft_clean=0.75)
REPAIR_SFT = Curve(
    ("repair_grpo",),
    # At scale tiny, tiny_text.py sets max_response_tokens to 32. The 400 restores the default.
    {"max_response_tokens": 400, "sft_steps": 400, "sft_batch_size": 8},
)
BUDGET = 6400  # cost of a run in the experiment "split", in rollouts
DEMONSTRATION_PRICE = 10  # cost of one demonstration, in rollouts


def quest_size(rooms: int, objects: int, commands: int) -> Curve:
    env = f"quest:w={rooms},o={objects},q={commands},goal=full,show=none"
    return curve("quest_transfer", sft=QUEST_SFT, env=env)


def quest_turns(max_turns: int) -> Curve:
    return curve(
        sft=QUEST_SFT,
        max_turns=max_turns,
        actions_per_traj=max_turns,
        max_context_tokens=2560,
    )


def reward_densities() -> dict[str, Curve]:
    """Return PPO, RLOO and GRPO at three reward densities.

    RLOO and GRPO compare scores of trajectories. "RLOO by turn" and "GRPO by turn" compare
    returns-to-go of turns."""
    estimators = {"PPO": {}}
    for name in ("rloo", "grpo"):
        estimators[name.upper()] = {"estimator": name}
        estimators[f"{name.upper()} by turn"] = {"estimator": name, "turn_level": True}
    curves = {}
    for name, overrides in estimators.items():
        for density in ("sparse", "balanced", "dense"):
            label = f"quest {name} {density}"
            curves[label] = curve(sft=QUEST_SFT, reward_density=density, **overrides)
    return curves


def split_budget(sft_share: float) -> Curve:
    """Return a curve that spends `sft_share` of BUDGET on demonstrations and the rest on RL.

    An iteration of RL plays 8 groups of 8 games.
    """
    demonstrations = round(sft_share * BUDGET / DEMONSTRATION_PRICE)
    rollouts = (1 - sft_share) * BUDGET
    reinforcement = {"group_size": 8, "filter_keep": 0.5, "num_iterations": round(rollouts / 64)}
    if not demonstrations:
        return curve("quest_ppo", "single_turn", **reinforcement)
    return curve(sft=quest_sft(sft_demos=demonstrations), **reinforcement)


# ---------- the experiments

EXPERIMENTS = {
    # arXiv 2504.20073
    "fig5": Experiment(
        "vanilla StarPO", EVALUATION, compare(ENVS, ["ppo", "grpo"], {"StarPO": STARPO})
    ),
    "fig6": Experiment(
        "early warnings of collapse in the runs of fig5",
        COLLAPSE_SIGNS,
        compare(ENVS, ["ppo", "grpo"], {"StarPO": STARPO}),
    ),
    "fig7": Experiment(
        "uncertainty filter, by the share of groups that it keeps",
        EVALUATION,
        compare(
            GRIDS,
            ["ppo"],
            {f"keep {share:.0%}": curve(filter_keep=share) for share in (0.25, 0.5, 0.75, 1.0)},
        ),
    ),
    "fig8": Experiment(
        "StarPO-S without each of its parts",
        EVALUATION,
        compare(
            GRIDS,
            ["ppo"],
            {
                "StarPO-S": STARPO_S,
                "with KL": curve(kl_coef=0.001),
                "symmetric clip": curve(clip_high=0.2),
                "no filter": curve(filter_keep=1.0),
                "StarPO": STARPO,
            },
        ),
    ),
    "fig9": Experiment(
        "StarPO-S against StarPO",
        EVALUATION,
        compare(ENVS, ["ppo", "grpo"], {"StarPO": STARPO, "StarPO-S": STARPO_S}),
    ),
    "fig10": Experiment(
        "online-k: k passes over every rollout, 200 optimizer steps in all",
        EVALUATION,
        compare(GRIDS, ["ppo"], {f"online-{k}": online_k(k) for k in (1, 2, 5, 10)}),
    ),
    "fig11": Experiment(
        "whether reasoning fades, and whether a reward for true thoughts prevents this",
        THOUGHTS + EVALUATION,
        compare(
            ENVS,
            ["ppo"],
            {
                "StarPO": STARPO,
                "StarPO-S": STARPO_S,
                "StarPO-S + think_reward": curve(think_reward=0.05),
            },
        ),
    ),
    "trap": Experiment(
        "vanilla StarPO trained on replies, or on all text like the paper's own code",
        EVALUATION + COLLAPSE_SIGNS,
        compare(
            GRIDS,
            ["ppo", "grpo"],
            {
                "StarPO": STARPO,
                "StarPO on all text": curve("starpo_vanilla", mask_observations=False),
            },
        ),
    ),
    "credit": Experiment(
        "estimators of advantages at about equal CPU time",
        EVALUATION,
        estimators(),
        scales=("tiny",),
        files="credit/credit_speed",
    ),
    "collapse": Experiment(
        "which methods survive large learning rates",
        EVALUATION + COLLAPSE_SIGNS,
        collapsing(),
        scales=("tiny",),
        files="collapse/collapse_runs",
    ),
    "echo_trap": Experiment(
        "SmolLM2-135M on the bandit: StarPO, StarPO-S and variants of both",
        TRAINING + EVALUATION + COLLAPSE_SIGNS + ("response_length",),
        echo_trap(),
        scales=("smollm2", "smollm2_gpu"),
        files="real_model/echo_trap_runs",
    ),
    "jobs": Experiment(
        "SmolLM2-135M on pairs of jobs, with and without thoughts",
        TRAINING + EVALUATION,
        jobs(),
        scales=("smollm2", "smollm2_gpu"),
        files="real_model/jobs",
    ),
    "guess": Experiment(
        "SmolLM2-135M guesses a number in four turns",
        TRAINING + EVALUATION + COLLAPSE_SIGNS + THOUGHTS,
        guess(),
        scales=("smollm2_gpu",),
        files="real_model/guess_runs",
    ),
    "table2": Experiment(
        "N responses to each of 128/N prompts (N=1: no filter)",
        EVALUATION,
        compare(
            ["sokoban"],
            ["ppo"],
            {f"N={size}": responses_per_prompt(size) for size in (32, 16, 8, 4, 2, 1)},
        ),
    ),
    "table3": Experiment(
        "k actions a turn, 5k a trajectory",
        EVALUATION,
        compare(["sokoban"], ["ppo"], {f"k={k}": actions_per_turn(k) for k in range(1, 8)}),
    ),
    "table4": Experiment(
        "with and without thinking",
        EVALUATION,
        thinking("bandit") | thinking("sokoban"),
    ),
    # arXiv 2510.01132
    "quest": Experiment(
        "RL on quests of w rooms, o objects, q commands, after SFT on quests of the first size",
        TRAINING,
        {
            f"quest PPO w{rooms}-o{objects}-q{commands}": quest_size(rooms, objects, commands)
            for rooms, objects, commands in (
                (2, 3, 4),
                (8, 3, 4),
                (2, 12, 4),
                (8, 12, 4),
                (4, 6, 8),
            )
        },
    ),
    "turns": Experiment(
        "step budget: 1.5 to 4 times the shortest solution",
        TRAINING,
        {f"quest PPO {turns} turns": quest_turns(turns) for turns in (6, 8, 12, 16)},
    ),
    "density": Experiment(
        "reward density by estimator; groups compare trajectories, or turns by their returns-to-go",
        TRAINING,
        reward_densities(),
    ),
    "split": Experiment(
        f"{BUDGET:,} rollouts for RL and demonstrations; a demonstration costs ten rollouts",
        TRAINING,
        {f"quest PPO {share:.0%} SFT": split_budget(share) for share in (0, 0.2, 0.4, 0.6, 0.8, 1)},
    ),
    "ratio": Experiment(
        "reward for a repair that passes all tests, or for the share of tests that it fixes",
        TRAINING,
        {
            f"repair GRPO {reward}": curve(sft=REPAIR_SFT, env=f"repair:reward={reward}")
            for reward in ("binary", "ratio")
        },
    ),
}
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
        seconds=dict.fromkeys((*ENVS, "quest", "repair"), Seconds(9.3, 14.7)),
        estimate="finished rows, or else the paper's 24 s (25 % kept) to 68 s (all kept) per step "
        "of Sokoban on one GPU",
    ),
}


# ---------- commands


@dataclass(frozen=True)
class Command:
    """A call of train.py or tools/sft.py from the root of the repository."""

    script: tuple[str, ...]  # what follows "python"
    arguments: tuple[str, ...]  # config files and --key=value; --out_dir is the last

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
    """Return the command that trains one seed of a curve."""
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
    """Return the command of the SFT that trains the initial model of a run. If the curve has no
    SFT, return None."""
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
    # no commas: eval.py separates models by commas
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
