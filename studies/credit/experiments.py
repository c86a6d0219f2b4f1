"""The experiment of the credit study compares advantage estimators at about equal CPU time."""

from studies.experiments import EVALUATION, Curve, Experiment


def estimators() -> dict[str, Curve]:
    """Return runs with different advantage estimators.

    All runs have the config tiny_best.py, and they take about equal CPU time. An iteration with a
    critic takes about 1.5 times as long as an iteration without a critic, so runs with a critic
    have 20 iterations, and runs without a critic have 30. The runs of GAE keep all checkpoints,
    because studies/credit/measure.py reads them.
    """
    with_critic = {"num_iterations": 20, "eval_every": 10}
    without = {"num_iterations": 30, "eval_every": 15}
    by_turn = {**without, "turn_level": True}
    # Games of Sokoban are longer than games of FrozenLake, so an iteration of Sokoban has fewer
    # groups. Sokoban's rewards are larger, so its format penalty is larger.
    sokoban = {"num_groups": 16, "format_penalty": -1.0}
    # With the reward density "plan" (`methods.shape_rewards`), the rewards of a game sum to at most
    # 1, so the format penalty is small.
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


EXPERIMENTS = {
    "credit": Experiment(
        "estimators of advantages at about equal CPU time",
        EVALUATION,
        estimators(),
        scales=("tiny",),
        files="credit_speed",
    ),
}
