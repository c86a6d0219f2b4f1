"""Tests of experiments.py: the experiments of the two papers."""

from dataclasses import asdict

import pytest

from studies.experiments import settings_of, sft_command
from studies.papers.experiments import BUDGET, ENVS, EXPERIMENTS

QUESTS = ("quest", "turns", "density", "split")
SCALES = ("tiny", "full")


def curve_of(name, label):
    return EXPERIMENTS[name].curves[label]


def differences(one, other, scale="tiny"):
    """Return the settings in which two curves differ. A curve is given as (experiment, label)."""
    a = asdict(settings_of(curve_of(*one), scale, 0))
    b = asdict(settings_of(curve_of(*other), scale, 0))
    return {key for key in a if a[key] != b[key]}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("env", ENVS)
def test_starpo_and_starpo_s_differ_in_three_settings(env, scale):
    three = {"filter_keep", "clip_high", "kl_coef"}
    for algorithm in ("PPO", "GRPO"):
        starpo = ("fig9", f"{env} {algorithm} StarPO")
        starpo_s = ("fig9", f"{env} {algorithm} StarPO-S")
        assert differences(starpo, starpo_s, scale) == three
        assert differences(("fig5", f"{env} {algorithm} StarPO"), starpo, scale) == set()
    for name in ("StarPO", "StarPO-S"):
        ppo = ("fig9", f"{env} PPO {name}")
        grpo = ("fig9", f"{env} GRPO {name}")
        assert differences(ppo, grpo, scale) == {"estimator"}


@pytest.mark.parametrize(
    "name, a, b, fields",
    [
        ("fig7", "keep 25%", "keep 100%", {"filter_keep"}),
        ("fig8", "StarPO-S", "with KL", {"kl_coef"}),
        ("fig8", "StarPO-S", "symmetric clip", {"clip_high"}),
        ("fig8", "StarPO-S", "no filter", {"filter_keep"}),
        ("fig10", "online-1", "online-5", {"num_epochs", "num_iterations", "eval_every"}),
        ("fig11", "StarPO-S", "StarPO-S + think_reward", {"think_reward"}),
        ("trap", "StarPO", "StarPO on all text", {"mask_observations"}),
        ("table2", "N=16", "N=2", {"num_groups", "group_size"}),
        ("table2", "N=16", "N=1", {"num_groups", "group_size", "filter_keep", "batch_size"}),
        ("table3", "k=2", "k=7", {"actions_per_turn", "actions_per_traj"}),
        ("table4", "think", "no-think", {"think"}),
        ("quest", "w2-o3-q4", "w4-o6-q8", {"env"}),
        ("turns", "6 turns", "16 turns", {"max_turns", "actions_per_traj"}),
        ("density", "sparse", "dense", {"reward_density"}),
        ("split", "80% SFT", "100% SFT", {"num_iterations", "model"}),
    ],
)
def test_curves_differ_in_what_they_name(name, a, b, fields):
    start = "quest PPO" if name in QUESTS else "sokoban PPO"
    assert differences((name, f"{start} {a}"), (name, f"{start} {b}")) == fields


def test_estimators_and_rewards_differ_in_what_they_name():
    ppo = ("density", "quest PPO sparse")
    grpo = ("density", "quest GRPO sparse")
    grpo_by_turn = ("density", "quest GRPO by turn sparse")
    rloo_by_turn = ("density", "quest RLOO by turn sparse")
    assert differences(ppo, grpo) == {"estimator"}
    assert differences(grpo, grpo_by_turn) == {"turn_level"}
    assert differences(rloo_by_turn, grpo_by_turn) == {"estimator"}
    assert differences(("ratio", "repair GRPO binary"), ("ratio", "repair GRPO ratio")) == {"env"}


@pytest.mark.parametrize("scale", SCALES)
def test_replies_to_repair_fit(scale):
    """In Repair, demonstrated replies have up to 36 tokens with the tiny tokenizer, and more with
    Qwen's tokenizer. config/recipes/tiny_text.py allows only 32 tokens, so the runs restore the
    default of `max_response_tokens`, 400."""
    config = settings_of(curve_of("ratio", "repair GRPO ratio"), scale, 0)
    assert config.max_response_tokens == 400


@pytest.mark.parametrize("label", EXPERIMENTS["split"].curves)
def test_every_split_costs_the_budget(label):
    trained = curve_of("split", label)
    config = settings_of(trained, "tiny", 0)
    stage = sft_command(trained, "tiny", 0)
    demonstrations = stage.config().sft_demos if stage else 0
    rollouts = config.num_iterations * config.num_groups * config.group_size
    assert config.num_groups * config.group_size == 64
    assert 10 * demonstrations + rollouts == pytest.approx(BUDGET, rel=0.02)
    share = 10 * demonstrations / BUDGET
    assert share == pytest.approx(float(label.split()[2].rstrip("%")) / 100, abs=0.02)


def test_batches_of_table_2_are_constant_and_budgets_of_fig10_equal():
    for label, trained in EXPERIMENTS["table2"].curves.items():
        config = settings_of(trained, "tiny", 0)
        assert config.num_groups * config.group_size == 128
        kept = int(config.filter_keep * config.num_groups) * config.group_size
        assert kept == config.batch_size, label  # so an iteration has one optimizer step
    for trained in EXPERIMENTS["fig10"].curves.values():
        config = settings_of(trained, "tiny", 0)
        assert config.num_iterations * config.num_epochs == 200
        assert config.eval_every >= 1
