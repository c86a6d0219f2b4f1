"""The experiments of two papers: arXiv 2504.20073 (RAGEN) and arXiv 2510.01132 (the Guide).

Each paper has a dict, RAGEN or GUIDE, that maps names to experiments. EXPERIMENTS joins these two
dicts, and `python -m studies.reproduce` reads EXPERIMENTS.
"""

from studies.experiments import (
    COLLAPSE_SIGNS,
    EVALUATION,
    THOUGHTS,
    TRAINING,
    Curve,
    Experiment,
    compare,
    curve,
)

# ---------- arXiv 2504.20073

ENVS = ("bandit", "frozenlake", "sokoban")
GRIDS = ("frozenlake", "sokoban")

STARPO = curve("starpo_vanilla")
STARPO_S = curve()  # the defaults of Config are the settings of StarPO-S


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
    # A single score has no variance, so the uncertainty filter would drop all groups of one
    # trajectory. Without the filter, all 128 trajectories are kept. The 128 trajectories form one
    # batch, so that this run makes one optimizer step an iteration, as the runs with larger groups
    # do.
    return curve(
        "sokoban_transfer",
        num_groups=num_groups,
        group_size=group_size,
        filter_keep=1.0,
        batch_size=128,
    )


def actions_per_turn(k: int) -> Curve:
    return curve("sokoban_transfer", actions_per_turn=k, actions_per_traj=5 * k)


def thinking(env: str) -> dict[str, Curve]:
    transfer = f"{env}_transfer"
    variants = {"think": curve(transfer), "no-think": curve(transfer, think=False)}
    return compare([env], ["ppo"], variants)


RAGEN = {
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
}


# ---------- arXiv 2510.01132


def quest_sft(**overrides: object) -> Curve:
    return curve("quest_ppo", "single_turn", sft_steps=1000, sft_batch_size=8, **overrides)


# After QUEST_SFT, a policy solves only a part of the quests, so RL can still improve the policy.
QUEST_SFT = quest_sft(sft_noise=0.6, sft_clean=0.75)
REPAIR_SFT = Curve(
    ("repair_grpo",),
    # At scale tiny, tiny_text.py sets max_response_tokens to 32. The override 400 restores the
    # default. `curve` would leave out an override that equals a default, so `Curve` is called here.
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
    """Return curves of PPO, RLOO and GRPO at three reward densities.

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


GUIDE = {
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
EXPERIMENTS = RAGEN | GUIDE
