"""Finds settings that a user gave and that have no effect.

train.py and other commands print a line about such settings, for example:

    these settings have no effect: clip_high: an iteration makes one optimizer step, and ...
    these settings have no effect: seed, temperature: eval.py does not use them

Without the line, a user may test a setting that has no effect in this run, and conclude that the
setting does not help.

train.py names settings that have no effect because of other settings. Overlays (files in subfolders
of config/) are made for many experiments, and some settings of an overlay may have no effect in
one experiment. So train.py names a setting of an overlay only if the setting switches a method on
(METHOD_SWITCHES).

Other commands name the command-line settings that they do not use. tools.sft also names the
command-line settings that have no effect because of other settings. Only train.py names settings
from files. The file of an experiment is written for train.py, so other commands need not use all
settings in the file.
"""

from configurator import CONFIG_FOLDER, CRITIC_ESTIMATORS, GROUP_BASELINE_ESTIMATORS, Config

import math
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from envs import Env, make_env
from mixtures import env_specs

# The names of settings, separated by blanks, and why the settings have no effect.
Reason = tuple[str, str]


# ---------- train.py

# Each of these settings switches a method on. So if one of these settings has no effect, train.py
# names the setting even if an overlay gives it.
METHOD_SWITCHES = (
    "sequence_ratio",
    "sequence_mask",
    "importance_floor",
    "tv_bound",
    "observation_coef",
)


def warn_inert(config: Config, sources: dict[str, str]) -> str:
    """The line about given settings that have no effect on training; '' if there are none."""
    return sentence(inert_settings(config, given_settings(sources)))


def given_settings(sources: dict[str, str]) -> list[str]:
    """The names of the settings from the command line and from files.

    A setting from an overlay is left out unless it is in METHOD_SWITCHES."""
    given = []
    for name, source in sources.items():
        if source == "default":
            continue
        if source == "command line" or name in METHOD_SWITCHES or not _is_overlay(source):
            given.append(name)
    return given


def _is_overlay(path: str) -> bool:
    """Whether a config file is in a subfolder of config/, such as config/methods/."""
    return Path(path).resolve().parent.parent == CONFIG_FOLDER


def inert_settings(config: Config, given: Collection[str]) -> dict[str, str]:
    """Return {name: reason} for the settings in `given` that have no effect on a training run."""
    reasons = [
        *_unused_parts(config),
        *_one_step(config),
        *_estimator(config),
        *_filter(config),
        *_thoughts(config, given),
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
    kl_in_reward = config.has_kl_in_reward()
    trainer_scores = kl_in_reward or not config.mask_observations
    # With vLLM, recompute_old_logprobs has an effect: if True, vLLM is not asked for log-probs.
    if trainer_scores and config.engine == "torch":
        why = "kl_in is reward" if kl_in_reward else "mask_observations is False"
        yield "recompute_old_logprobs", f"{why}, so the trainer computes them in any case"


def _one_step(config: Config) -> Iterator[Reason]:
    """Yield the settings that have no effect because an iteration makes one optimizer step.

    Before the first step, PPO's ratio is 1 if the trainer computes the old log-probs. Otherwise the
    engine gives the old log-probs, and the ratio is the mismatch of engine and trainer. In float32
    this mismatch is far below every limit, such as clip_low. In bfloat16 this mismatch may exceed
    the narrow clip range of GSPO (config/methods/gspo.py). Importance weights correct the mismatch
    of engine and trainer, but with sequence_ratio the loss has no such weights. So sequence_ratio
    may have an effect even with one step."""
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
        yield "clip_low clip_high dual_clip", reason
    if engine_agrees or not config.engine_gives_logprobs():
        yield "importance_cap importance_floor sequence_mask tv_bound sequence_ratio", reason


def _estimator(config: Config) -> Iterator[Reason]:
    estimator = f"estimator {config.estimator}"
    if config.max_turns == 1:
        names = "turn_gamma turn_lam turn_level context_turns segment observation_coef"
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
        return  # with either setting, turn_gamma discounts turns
    reason = f"{estimator} does not discount turns unless turn_level or state_weight is set"
    yield "turn_gamma", reason
    if config.reward_norm_over == "group":
        names = "reward_norm reward_norm_over"
        if config.reward_norm == "mean":
            yield names, f"{estimator} subtracts the mean of the group, too"
        # If a KL is in the reward, reward_norm="mean_std" has an effect. "mean_std" normalises the
        # rewards first. Then the KL is subtracted, and grpo normalises rewards minus KL.
        kl_in_reward = config.has_kl_in_reward()
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


def _thoughts(config: Config, given: Collection[str]) -> Iterator[Reason]:
    if config.think_reward == 0 or "think_reward" not in given:
        return
    if not config.think:
        yield "think_reward", "think is False, so replies have no thoughts"
    elif not any(_makes_statements(spec) for spec in env_specs(config.env)):
        reason = f"env={config.env!r} gives no statements to check thoughts against"
        yield "think_reward", reason


def _makes_statements(spec: str) -> bool:
    return type(make_env(spec)).statements is not Env.statements


# ---------- other commands
# A command that calls `print_unread` has a constant SETTINGS_READ, which names the settings that
# the command reads. The constants below name settings that several commands read.

# Settings of a game. max_response_tokens is among them because the system message states it.
GAME = """env observation think max_turns actions_per_turn actions_per_traj max_response_tokens
    step_timeout_s"""
REWARDS = "format_penalty reward_density think_reward"
SAMPLING = "model device dtype engine engine_dtype context_turns max_context_tokens max_running"
SCORING = f"""{GAME} {REWARDS} {SAMPLING} num_threads max_error_frac micro_batch_tokens
    eval_env eval_split eval_size eval_temperature"""


def warn_unread(
    command: str, settings_read: str, sources: dict[str, str], reasons: Iterable[Reason] = ()
) -> str:
    """The line about command-line settings that have no effect; '' if there are none.

    Args:
        settings_read: the names of the settings that the command reads, separated by blanks.
        reasons: settings that the command reads but that have no effect in this run, and why."""
    given = [name for name, source in sources.items() if source == "command line"]
    unread = [name for name in given if name not in settings_read.split()]
    unread_reason = (" ".join(unread), f"{command} does not use {_them(unread)}")
    return sentence(among(given, [*reasons, unread_reason]))


def print_unread(
    command: str, settings_read: str, sources: dict[str, str], reasons: Iterable[Reason] = ()
) -> None:
    """Print the line of `warn_unread`, if any."""
    line = warn_unread(command, settings_read, sources, reasons)
    if line:
        print(line, flush=True)


def _them(names: Collection[str]) -> str:
    return "it" if len(names) == 1 else "them"


# ---------- the line


def among(given: Collection[str], reasons: Iterable[Reason]) -> dict[str, str]:
    """Map each setting in `given` that has no effect to its first reason in `reasons`."""
    inert: dict[str, str] = {}
    for names, reason in reasons:
        for name in names.split():
            if name in given:
                inert.setdefault(name, reason)
    return inert


def sentence(inert: dict[str, str]) -> str:
    """Return the settings and reasons in `inert` as one line; '' if `inert` is empty."""
    names_of: dict[str, list[str]] = {}  # reason -> settings
    for name, reason in inert.items():
        names_of.setdefault(reason, []).append(name)
    if not names_of:
        return ""
    phrases = [f"{', '.join(names)}: {reason}" for reason, names in names_of.items()]
    return f"these settings have no effect: {'; '.join(phrases)}"
