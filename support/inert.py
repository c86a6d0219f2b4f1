"""Finds settings that a user gave and that have no effect because of other settings.

    these settings have no effect: clip_high: an iteration makes one optimizer step, and ...

A run prints such a line at its start. Otherwise a user may conclude that a setting does not help,
although it changed nothing. The line names settings from the command line and from files of
experiments. Of an overlay (a file that begins with "# Overlay") it names only METHOD_SWITCHES: an
overlay is made for many experiments, and some of its lines have no effect in some of these.
"""

from configurator import CRITIC_ESTIMATORS, GROUP_BASELINE_ESTIMATORS, Config

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from envs import Env
from rollout import make_episode
from support.mixtures import env_specs
from support.time_limit import EnvError, call_with_timeout
from support.unread import Reason, among, sentence

# These settings switch a method on, so they are reported even if an overlay gives them.
METHOD_SWITCHES = (
    "sequence_ratio",
    "sequence_mask",
    "importance_floor",
    "tv_bound",
    "observation_coef",
)


def warn(config: Config, sources: dict[str, str]) -> str:
    """The line about given settings that have no effect on training; '' if there are none.

    Args: sources: from `load_config`."""
    return sentence(inert_settings(config, given_settings(sources)))


def given_settings(sources: dict[str, str]) -> list[str]:
    """The settings that the user chose: those from the command line and from files that are no
    overlays, and METHOD_SWITCHES from any file."""
    # source -> whether to ignore its settings
    is_ignored = {"default": True, "command line": False}
    for source in set(sources.values()) - is_ignored.keys():
        is_ignored[source] = Path(source).read_text(encoding="utf-8").startswith("# Overlay")
    given = []
    for name, source in sources.items():
        is_switch = name in METHOD_SWITCHES and source != "default"
        if is_switch or not is_ignored[source]:
            given.append(name)
    return given


def inert_settings(config: Config, given: Collection[str]) -> dict[str, str]:
    """The settings among `given` that change no number of a training run -> why."""
    reasons = [
        *_unused_parts(config),
        *_one_step(config),
        *_estimator(config),
        *_filter(config),
        *_environment(config, given),
    ]
    return among(given, reasons)


def _unused_parts(config: Config) -> Iterator[Reason]:
    if config.estimator not in CRITIC_ESTIMATORS:
        names = "critic_lr value_clip value_coef lam turn_lam"
        yield names, f"estimator {config.estimator} has no critic"
    if config.kl_coef == 0:
        yield "kl_in kl_estimator", "kl_coef is 0"
    if config.collapse_every == 0:
        yield "collapse_pairs", "collapse_every is 0"
    if config.reward_norm == "none":
        yield "reward_norm_over", "reward_norm is none"
    if not config.sequence_ratio and config.sequence_mask == 0:
        yield "segment", "sequence_ratio is False and sequence_mask is 0"
    if config.sequence_ratio:
        reason = "with sequence_ratio, single tokens have no importance weight"
        yield "importance_cap importance_floor", reason
    if config.context_turns:
        yield "segment", "with context_turns, each turn is a segment"
    if config.tv_bound:
        yield "clip_low clip_high", "tv_bound replaces the clip"
    kl_in_reward = config.kl_coef > 0 and config.kl_in == "reward"
    trainer_scores = kl_in_reward or not config.mask_observations
    # On vLLM recompute_old_logprobs has an effect: it drops the engine's log-probs.
    if trainer_scores and config.engine == "torch":
        why = "kl_in is reward" if kl_in_reward else "mask_observations is False"
        yield "recompute_old_logprobs", f"{why}, so the trainer computes them in any case"


def _one_step(config: Config) -> Iterator[Reason]:
    """Yield the clips that have no effect if an iteration makes one optimizer step.

    A clip limits changes of the policy since the rollout. Before the first step it has not changed.
    The ratio is then 1 if the trainer has computed the old log-probs. If the engine has computed
    them, the ratio is the mismatch of engine and trainer. In float32 this mismatch is far below
    every limit. In bfloat16 it may be larger than the clip range of GSPO."""
    num_steps = config.num_epochs * math.ceil(config.most_kept() / config.batch_size)
    if num_steps > 1:
        return
    reason = (
        "an iteration makes one optimizer step, and before it there is no change to limit "
        "(num_epochs=2 or a smaller batch_size makes more steps)"
    )
    yield "value_clip", reason
    is_float32 = config.dtype == "float32" or (config.dtype == "auto" and config.device == "cpu")
    engine_agrees = is_float32 and config.engine_dtype in ("auto", "float32")
    if engine_agrees or config.trainer_gives_old_logprobs():
        yield "clip_low clip_high dual_clip sequence_ratio", reason
    if engine_agrees or not config.engine_gives_logprobs():
        yield "importance_cap importance_floor sequence_mask tv_bound", reason


def _estimator(config: Config) -> Iterator[Reason]:
    estimator = f"estimator {config.estimator}"
    if config.max_turns == 1:
        names = "turn_gamma turn_lam turn_level context_turns sequence observation_coef"
        yield names, "max_turns is 1"
    if config.context_turns:
        yield "observation_coef", "with context_turns, no observation lies between two replies"
    if not config.mask_observations:
        yield "observation_coef", "mask_observations is False, so the policy loss has all tokens"
    if config.estimator == "turn_ppo":
        yield "gamma lam", f"{estimator} takes a turn as one step"
    if config.estimator not in GROUP_BASELINE_ESTIMATORS:
        return
    yield "gamma", f"{estimator} does not discount tokens"
    if config.turn_level or config.state_weight:
        return  # either setting makes turn_gamma discount turns
    reason = f"{estimator} does not discount turns unless turn_level or state_weight is set"
    yield "turn_gamma", reason
    if config.reward_norm_over == "group":
        names = "reward_norm reward_norm_over"
        if config.reward_norm == "mean":
            yield names, f"{estimator} subtracts the mean of the group, too"
        # With a KL in the reward, reward_norm has an effect: it divides the rewards, not the KL.
        kl_in_reward = config.kl_coef > 0 and config.kl_in == "reward"
        if config.reward_norm == "mean_std" and config.estimator == "grpo" and not kl_in_reward:
            yield names, f"{estimator} normalises in the same way"


def _filter(config: Config) -> Iterator[Reason]:
    if config.filter_strategy == "fraction" and config.filter_keep == 1:
        names = "filter_by filter_smallest filter_zero_std filter_loss_scale"
        yield names, "filter_keep is 1, which keeps all groups"
    if config.filter_strategy == "count" and config.filter_keep == config.num_groups:
        yield "filter_by filter_smallest", "filter_keep is num_groups"
        if config.filter_zero_std:
            yield "filter_loss_scale", "the filter keeps all groups"


def _environment(config: Config, given: Collection[str]) -> Iterator[Reason]:
    """Yield the given settings that the environments ignore.

    Environments are started only if think_reward or observation is given. An environment that fails
    counts as using them."""
    if config.think_reward and "think_reward" in given:
        if not config.think:
            yield "think_reward", "think is False, so replies have no thoughts"
        elif not _makes_statements(config):
            yield (
                "think_reward",
                f"env={config.env!r} gives no statements to check thoughts against",
            )
    if config.observation != "grid" and "observation" in given:
        looks = _look_at_envs(config)
        if looks and looks == _look_at_envs(replace(config, observation="grid")):
            yield (
                "observation",
                f"env={config.env!r} shows the same observations for every value of observation",
            )


def _makes_statements(config: Config) -> bool:
    """Whether `statements()` of any environment returns sentences; True if an environment fails."""
    looks = _look_at_envs(config)
    return not looks or any(look.statements for look in looks)


class Look(NamedTuple):
    """The texts of one game: its observation and `statements()`."""

    observation: str
    statements: list[str]  # those at the start, and those after one action


def _look_at_envs(config: Config) -> list[Look]:
    """Start a game in each training environment. Returns: their texts; [] if one fails."""

    def look(env: Env) -> Look:
        observation = env.reset(0, split="eval")
        statements = env.statements()
        for action in env.plan(1, config.max_turns)[:1]:
            env.step(action)
        return Look(observation, statements + env.statements())

    looks = []
    for spec in env_specs(config.env):
        try:
            looks.append(
                call_with_timeout(config.step_timeout_s, look, make_episode(config, spec).env)
            )
        except EnvError:  # the run will report the error
            return []
    return looks
