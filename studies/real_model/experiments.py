"""The experiments with SmolLM2-135M: the bandit, bandits with jobs as arms, and a guessing game."""

from studies.experiments import (
    COLLAPSE_SIGNS,
    EVALUATION,
    THOUGHTS,
    TRAINING,
    Curve,
    Experiment,
    curve,
)

ECHO_COLD_START = curve("bandit_grpo", sft_steps=15, eval_size=64)


def echo_trap() -> dict[str, Curve]:
    """Return the curves of StarPO, StarPO-S and their variants on the bandit.

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
    """Return curves on bandits whose two arms are named after a pair of jobs.

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
    """Return the curves of StarPO and StarPO-S on a game of guessing a number in four turns.

    The cold start (SFT) imitates a player that guesses random numbers. In its thoughts, this player
    states the true range of the hidden number. Two curves of StarPO-S have a reward for true
    thoughts."""
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


EXPERIMENTS = {
    "echo_trap": Experiment(
        "SmolLM2-135M on the bandit: StarPO, StarPO-S and variants of both",
        TRAINING + EVALUATION + COLLAPSE_SIGNS + ("response_length",),
        echo_trap(),
        scales=("smollm2", "smollm2_gpu"),
        files="echo_trap_runs",
    ),
    "jobs": Experiment(
        "SmolLM2-135M on pairs of jobs, with and without thoughts",
        TRAINING + EVALUATION,
        jobs(),
        scales=("smollm2", "smollm2_gpu"),
    ),
    "guess": Experiment(
        "SmolLM2-135M guesses a number in four turns",
        TRAINING + EVALUATION + COLLAPSE_SIGNS + THOUGHTS,
        guess(),
        scales=("smollm2_gpu",),
        files="guess_runs",
    ),
}
