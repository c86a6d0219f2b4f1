"""Tests that commands name settings without effect, and that these settings change no weight."""

from configurator import Config, load_config, types_of

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from learners import make_learner, select_groups
from runs import run
from shared_fixtures import (
    READERS,
    SMALL_RUN,
    config_file,
    settings_read,
    small_config,
    unread_line,
)

import train
from dialogue import Chat
from support import no_effect
from support.no_effect import given_settings, inert_settings, warn_inert
from tools import check_env, crowd, play
from tools.sft_config import SftConfig

ROOT = Path(__file__).resolve().parents[2]
# The filter keeps two of the four groups. Each group has 4 trajectories. So an iteration takes one
# optimizer step with batch_size=8, and two steps with batch_size=4.
ONE = dict(num_groups=4, batch_size=8)
ONE_GRPO = dict(**ONE, estimator="grpo")
TWO_GRPO = dict(num_groups=4, batch_size=4, estimator="grpo")
ALL = dict(**ONE_GRPO, filter_keep=1.0)
ALL_BY_COUNT = dict(**ONE_GRPO, filter_strategy="count", filter_keep=4.0, filter_zero_std=True)
STEP = (
    "an iteration makes one optimizer step, and before it there is no change to limit "
    "(num_epochs=2 or a smaller batch_size makes more steps)"
)
NO_CRITIC = "estimator grpo has no critic"
KEEPS_ALL = "filter_keep is 1, which keeps all groups"
IN_ANY_CASE = "so the trainer computes them in any case"
THINK_OFF = "think is False, so replies have no thoughts"

# Each row has the settings of a run, the name of another setting that has no effect in this run, a
# new value of that setting, and the reason.
INERT = [
    (ONE, "clip_low", 0.5, STEP),
    (ONE, "clip_high", 0.01, STEP),
    (ONE, "dual_clip", 1.5, STEP),
    (ONE, "value_clip", 0.01, STEP),
    (ONE, "importance_cap", 1.5, STEP),
    (ONE, "importance_floor", 0.5, STEP),
    (ONE, "sequence_mask", 0.9, STEP),
    (ONE, "tv_bound", 0.2, STEP),
    (TWO_GRPO, "segment", "turn", "sequence_ratio is False and sequence_mask is 0"),
    (
        dict(**TWO_GRPO, sequence_ratio=True),
        "importance_cap",
        1.5,
        "with sequence_ratio, single tokens have no importance weight",
    ),
    (dict(**TWO_GRPO, tv_bound=0.2), "clip_low", 0.5, "tv_bound replaces the clip"),
    (dict(**TWO_GRPO, max_turns=1), "observation_coef", 0.1, "max_turns is 1"),
    (dict(**TWO_GRPO, sequence_ratio=True, max_turns=1), "segment", "turn", "max_turns is 1"),
    (
        dict(**TWO_GRPO, context_turns=1),
        "observation_coef",
        0.1,
        "with context_turns, no observation lies between two replies",
    ),
    (
        dict(**TWO_GRPO, mask_observations=False),
        "observation_coef",
        0.1,
        "mask_observations is False, so the policy loss has all tokens",
    ),
    (
        dict(**ONE, estimator="turn_ppo"),
        "gamma",
        0.5,
        "estimator turn_ppo takes a turn as one step",
    ),
    (ONE_GRPO, "critic_lr", 0.1, NO_CRITIC),
    (TWO_GRPO, "value_clip", 0.01, NO_CRITIC),
    (TWO_GRPO, "value_coef", 3.0, NO_CRITIC),
    (ONE_GRPO, "lam", 0.5, NO_CRITIC),
    (ONE_GRPO, "turn_lam", 0.5, NO_CRITIC),
    (ONE_GRPO, "gamma", 0.5, "estimator grpo does not discount tokens"),
    (dict(**ONE_GRPO, turn_level=True), "gamma", 0.5, "estimator grpo does not discount tokens"),
    (
        ONE_GRPO,
        "turn_gamma",
        0.5,
        "estimator grpo does not discount turns unless turn_level or state_weight is set",
    ),
    (dict(**ONE, max_turns=1), "turn_gamma", 0.5, "max_turns is 1"),
    (dict(**ONE, max_turns=1), "turn_lam", 0.5, "max_turns is 1"),
    (dict(**ONE_GRPO, max_turns=1), "turn_level", True, "max_turns is 1"),
    (dict(**ONE_GRPO, max_turns=1), "context_turns", 1, "max_turns is 1"),
    (ONE_GRPO, "kl_in", "reward", "kl_coef is 0"),
    (ONE_GRPO, "kl_estimator", "k2", "kl_coef is 0"),
    (ONE_GRPO, "collapse_pairs", 2, "collapse_every is 0"),
    (ONE_GRPO, "reward_norm_over", "batch", "reward_norm is none"),
    (
        dict(**ONE_GRPO, kl_coef=0.1, kl_in="reward"),
        "recompute_old_logprobs",
        True,
        f"kl_in is reward, {IN_ANY_CASE}",
    ),
    (
        dict(**ONE_GRPO, mask_observations=False),
        "recompute_old_logprobs",
        True,
        f"mask_observations is False, {IN_ANY_CASE}",
    ),
    (ALL, "filter_by", "length", KEEPS_ALL),
    (ALL, "filter_smallest", True, KEEPS_ALL),
    (ALL, "filter_zero_std", True, KEEPS_ALL),
    (ALL, "filter_loss_scale", "linear", KEEPS_ALL),
    (ALL_BY_COUNT, "filter_by", "length", "filter_keep is num_groups"),
    (ALL_BY_COUNT, "filter_smallest", True, "filter_keep is num_groups"),
    (ALL_BY_COUNT, "filter_loss_scale", "sqrt", "the filter keeps all groups"),
    (ONE_GRPO, "think_reward", 1.0, THINK_OFF),
]
# These settings change the gradient only by rounding errors.
NEARLY_INERT = [
    (ONE_GRPO, "reward_norm", "mean", "estimator grpo subtracts the mean of the group, too"),
    (ONE_GRPO, "reward_norm", "mean_std", "estimator grpo normalises in the same way"),
    (
        dict(**ONE, estimator="rloo"),
        "reward_norm",
        "mean",
        "estimator rloo subtracts the mean of the group, too",
    ),
]


def identify(case):
    settings, name, value, _ = case
    return f"{name}={value} with {' '.join(sorted(settings.keys() - ONE.keys()))}"


def cases(table):
    return pytest.mark.parametrize("case", table, ids=identify)


@cases(INERT + NEARLY_INERT)
def test_the_line_names_the_setting_and_the_reason(case):
    settings, name, value, reason = case
    config = small_config(**(settings | {name: value}))
    sources = dict.fromkeys(settings, "default") | {name: "command line"}
    assert warn_inert(config, sources) == f"these settings have no effect: {name}: {reason}"
    assert warn_inert(config, {name: "default"}) == ""


@pytest.fixture(scope="module")
def weights_after(trained_folder):
    @lru_cache
    def after(changes):
        import parallel

        parallel.init_distributed(small_config())
        learner = make_learner(trained_folder, **dict(changes))
        row, _ = train.iterate(learner, learner.engine, Chat(learner.tokenizer), [])
        assert row["kept_groups"] > 0
        weights = {}
        for name, module in learner.modules.items():
            for key, weight in module.state_dict().items():
                weights[f"{name} {key}"] = weight
        return weights

    return lambda changes: after(tuple(changes.items()))


@pytest.mark.slow
@cases(INERT)
def test_an_inert_setting_changes_no_weight(case, weights_after):
    settings, name, value, _ = case
    assert value != getattr(small_config(**settings), name)
    before = weights_after(settings)
    after = weights_after(settings | {name: value})
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.slow
@cases(NEARLY_INERT)
def test_a_second_normalisation_changes_no_advantage(case, trained_folder, one_rank):
    settings, name, value, _ = case
    advantages = []
    for changes in (settings, settings | {name: value}):
        learner = make_learner(trained_folder, **changes)
        played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
        groups = select_groups(learner.config, played)
        kept = train.members_of(groups, played, 4)
        advantages.append(train.build_experience(learner, kept).advantages)
    assert advantages[0].abs().max() > 0.1
    torch.testing.assert_close(*advantages, rtol=1e-4, atol=1e-4)


# Each row has the settings of a run, the name of another setting that has an effect in this run,
# and a new value of that setting.
ACTIVE = [
    (TWO_GRPO, "clip_high", 1e-4),
    (TWO_GRPO, "clip_low", 0.001),
    (dict(ONE_GRPO, num_epochs=2), "clip_high", 1e-4),
    (dict(num_groups=4, batch_size=4), "value_clip", 0.001),
    (ONE, "critic_lr", 0.1),
    (ONE, "gamma", 0.5),
    (dict(**ONE_GRPO, turn_level=True), "turn_gamma", 0.5),
    (ONE_GRPO, "filter_loss_scale", "linear"),
    (ONE_GRPO, "filter_smallest", True),
    (dict(**ONE, estimator="dr_grpo"), "reward_norm", "mean_std"),
    (dict(**ONE, estimator="dr_grpo", state_weight=1.0, turn_gamma=0.5), "reward_norm", "mean"),
]


def sharp(settings):
    return {**settings, "learning_rate": 1e-3, "critic_lr": 1e-2}


@pytest.mark.slow
@pytest.mark.parametrize("settings, name, value", ACTIVE)
def test_a_setting_that_acts_is_not_named(settings, name, value, weights_after):
    settings = sharp(settings)
    changed = settings | {name: value}
    assert inert_settings(small_config(**changed), [name]) == {}
    before = weights_after(settings)
    after = weights_after(changed)
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_a_norm_of_rewards_acts_on_their_ratio_to_a_kl():
    config = small_config(**ONE_GRPO, reward_norm="mean_std")
    assert list(inert_settings(config, ["reward_norm"])) == ["reward_norm"]
    with_kl = replace(config, kl_coef=0.1, kl_in="reward")
    assert inert_settings(with_kl, ["reward_norm"]) == {}


def test_on_vllm_recomputed_logprobs_drop_those_of_the_engine():
    config = small_config(**ONE_GRPO, kl_coef=0.1, kl_in="reward", recompute_old_logprobs=True)
    assert list(inert_settings(config, ["recompute_old_logprobs"])) == ["recompute_old_logprobs"]
    assert inert_settings(replace(config, engine="vllm"), ["recompute_old_logprobs"]) == {}


def test_the_cap_of_importance_weights_is_for_mismatch():
    config = small_config(**ONE, importance_cap=1.5)
    in_bfloat16 = (dict(dtype="bfloat16"), dict(engine_dtype="bfloat16"), dict(device="auto"))
    for changes in (*in_bfloat16, dict(batch_size=4)):
        assert inert_settings(replace(config, **changes), ["importance_cap"]) == {}
    assert "importance_cap" in inert_settings(
        replace(config, device="auto", dtype="float32"), ["importance_cap"]
    )


def test_clips_act_on_mismatch_in_the_first_step():
    """In bfloat16, trainer and engine log-probs differ, so PPO's ratio in the first step is not 1.

    The critic computes the old values before the update. In the first step, the critic's weights
    are still unchanged, so value_clip has no effect.
    """
    clips = ["clip_low", "clip_high", "dual_clip"]
    given = [*clips, "sequence_ratio", "value_clip"]
    config = small_config(**ONE, sequence_ratio=True)
    assert list(inert_settings(config, given)) == ["value_clip", *clips, "sequence_ratio"]
    for changes in (dict(dtype="bfloat16"), dict(engine_dtype="bfloat16"), dict(device="auto")):
        assert list(inert_settings(replace(config, **changes), given)) == ["value_clip"]
        again = replace(config, **changes, recompute_old_logprobs=True)
        assert list(inert_settings(again, given)) == ["value_clip", *clips]
        # With recompute_old_logprobs=True, the torch engine still returns log-probs, but vLLM
        # returns none. Without the engine's log-probs, sequence_mask compares the policy with
        # itself, and sequence_ratio removes importance weights that are all 1 anyway. So both
        # settings have an effect with the torch engine, and no effect with vLLM.
        assert inert_settings(again, ["sequence_mask", "sequence_ratio"]) == {}
    on_vllm = replace(config, dtype="bfloat16", engine="vllm", recompute_old_logprobs=True)
    without_engine = ["sequence_mask", "sequence_ratio"]
    assert list(inert_settings(on_vllm, without_engine)) == without_engine


# ---------- environments


MUTE = """
from envs import Env
from worlds.bandit import Bandit

class Mute(Bandit):
    statements = Env.statements
"""


@pytest.mark.parametrize(
    "env, mute",
    [
        ("frozenlake", False),
        ("sokoban", False),
        ("bandit", False),
        ("countdown", False),
        ("repair", False),
        ("MUTE", True),
        ("MUTE + frozenlake", False),
    ],
)
def test_think_reward_where_nothing_can_be_checked(env, mute, tmp_path):
    file = tmp_path / "mute.py"
    file.write_text(MUTE)
    env = env.replace("MUTE", f"{file}:Mute")
    config = small_config(env=env, think=True, think_reward=0.1)
    reason = f"env={env!r} gives no statements to check thoughts against"
    assert inert_settings(config, ["think_reward"]) == ({"think_reward": reason} if mute else {})
    assert inert_settings(replace(config, think_reward=0.0), ["think_reward"]) == {}


# ---------- what was given


def shipped(*names):
    return [config_file(name) for name in names]


def test_an_overlay_is_for_many_experiments(tmp_path):
    own = tmp_path / "own.py"
    own.write_text("critic_lr = 1e-2\nclip_high = 0.3\n")
    config, _, sources = load_config([*shipped("sokoban_grpo", "tiny"), str(own), "--lam=0.9"])
    assert given_settings(sources) == ["env", "estimator", "lam", "clip_high", "critic_lr"]
    assert warn_inert(config, sources) == (
        f"these settings have no effect: critic_lr, lam: {NO_CRITIC}; clip_high: {STEP}"
    )


def test_the_folder_of_a_file_makes_it_an_overlay(tmp_path, monkeypatch):
    monkeypatch.setattr(no_effect, "CONFIG_FOLDER", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    for path, header, is_named in [
        ("config/methods/mine.py", "# My method.", False),
        ("config/mine.py", "# Overlay for any experiment.", True),
        ("mine.py", "# Overlay for any experiment.", True),
        ("elsewhere/methods/mine.py", "# My method.", True),
    ]:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{header}\nlam = 0.9\n")
        _, _, sources = load_config([path])
        assert given_settings(sources) == (["lam"] if is_named else [])


LAUNCH = "# Launch:  torchrun --standalone train.py"
EXPERIMENTS = [path for path in ROOT.glob("config/*.py") if LAUNCH in path.read_text()]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_shipped_experiments_have_no_idle_line(path):
    for overlays in ([], ["tiny"], ["lora"], ["starpo_vanilla"], ["tiny", "tiny_text"]):
        config, _, sources = load_config([str(path), *shipped(*overlays)])
        assert warn_inert(config, sources) == ""


def test_every_rule_names_real_settings():
    names = {name for _, name, _, _ in INERT + NEARLY_INERT}
    assert names <= set(Config.__dataclass_fields__)


def test_the_line_is_printed_at_the_start_of_a_run(trained_folder, tmp_path, capsys):
    run(tmp_path / "a", trained_folder, num_iterations=0, batch_size=8, clip_high=0.2)
    out = capsys.readouterr().out
    assert "\nthese settings have no effect: critic_lr" not in out
    lines = [line for line in out.splitlines() if line.startswith("these settings have no effect")]
    assert lines == [f"these settings have no effect: clip_high: {STEP}"]
    assert SMALL_RUN["batch_size"] == 4
    run(tmp_path / "b", trained_folder, num_iterations=0, clip_high=0.2)
    assert "have no effect" not in capsys.readouterr().out


# ---------- other commands

LAKE = ["config/frozenlake_grpo.py", "config/models/tiny.py"]
NO_EFFECT = "these settings have no effect: "
SUPERVISED = ("tools.sft", "studies.base_model.corpus", "studies.base_model.pretrain")


def warning(command, *arguments):
    kind = SftConfig if command in SUPERVISED else Config
    config, _, sources = load_config([*LAKE, *arguments], kind=kind)
    return unread_line(command, config, sources)


def test_every_name_is_a_setting():
    for command in READERS:
        assert set(settings_read(command).split()) <= set(types_of(SftConfig)), command


@pytest.mark.parametrize("command", READERS)
def test_files_of_experiments_name_nothing(command):
    assert warning(command) == ""


@pytest.mark.parametrize(
    "command, given, line",
    [
        ("eval.py", "--temperature=0.1 --seed=1", "seed, temperature: eval.py does not use them"),
        ("eval.py", "--eval_temperature=0.1 --max_turns=3", ""),
        ("tools.replay", "--model=tiny", "model: tools.replay does not use it"),
        ("tools.api_models", "--lora_rank=4", "lora_rank: tools.api_models does not use it"),
        ("tools.sft", "--lora_rank=4 --weight_decay=0.5 --dtype=bfloat16 --seed=1", ""),
        ("tools.sft", "--kl_coef=0.1 --compile=True", "compile, kl_coef: tools.sft does not use"),
        ("tools.sft", "--sft_clean=0.5", "sft_clean: sft_noise is 0"),
        ("tools.sft", "--sft_noise=0.5 --sft_clean=0.5", ""),
        ("tools.sft", "--sft_planners=0.5", "sft_planners: sft_player is shortest"),
        ("tools.sft", "--sft_player=crowd --sft_planners=0.5", ""),
        ("tools.sft", "--sft_lost=False", "sft_lost: sft_file is empty"),
        ("tools.sft", "--sft_file=a --sft_player=planner", "sft_player: sft_file holds the demon"),
        ("tools.sft", "--sft_file=a --sft_lost=False", ""),
        ("tools.sft", "--lora_rank=4 --sft_lr=1.0", "sft_lr: with LoRA all trained weights are"),
        ("studies.base_model.corpus", "--sft_planners=0.0 --env=bandit", "env: studies.base_model"),
        ("studies.base_model.pretrain", "--model=2x64 --sft_lr=1.0 --lora_rank=4", "lora_rank: "),
    ],
)
def test_what_a_command_does_not_use_is_named(command, given, line):
    found = warning(command, *given.split())
    assert found.startswith(NO_EFFECT + line) if line else found == ""


@pytest.mark.parametrize(
    "main, arguments, name",
    [
        (play.main, ["frozenlake", "--random", "--learning_rate=1.0"], "tools.play"),
        (crowd.main, [*LAKE, "--eval_size=1", "--learning_rate=1.0"], "tools.crowd"),
        (check_env.main, ["bandit", "--learning_rate=1.0"], "tools.check_env"),
    ],
)
def test_the_line_is_printed_first(main, arguments, name, capsys):
    main(arguments)
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"{NO_EFFECT}learning_rate: {name} does not use it"
