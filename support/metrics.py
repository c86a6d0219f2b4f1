"""Defines the name, group, unit and meaning of every metric of a training run.

A row of metrics.jsonl has exactly the keys that `metric_names(config)` lists. The page
docs/metrics.md explains all metrics. This command writes the page:

    python -m support.metrics > docs/metrics.md
"""

from configurator import Config

from itertools import product
from typing import NamedTuple

from mixtures import scored_envs

RETRIEVAL_RANKS = (1, 2, 4, 8)  # K of retrieval@K


class Metric(NamedTuple):
    """A metric, or several metrics if the name has placeholders in braces."""

    name: str
    group: str
    unit: str
    meaning: str


PLACEHOLDERS = {
    "N": "`group_size`",
    "ENV": "an evaluated environment (`eval_env`) other than the first",
    "SAMPLING": "`first` (thoughts of first turns) or `sampled` (the thought of one random turn "
    "per trajectory)",
    "K": f"one of {', '.join(str(k) for k in RETRIEVAL_RANKS)}",
}

GROUPS = {
    "rollout": "The training trajectories, sampled at `temperature`. The score of a trajectory is "
    "the sum of its rewards and penalties.",
    "update": "The group filter and the optimizer steps. Metrics in nats per token and shares "
    "of tokens are means over the response tokens of all optimizer steps, unless their "
    "row says otherwise. If nothing is left to train on, all metrics except `kept_groups`, "
    "`kept_trajectories` and `bad_steps` are null. Metrics of the critic are null without a "
    "critic.",
    "eval": "Games on the fixed evaluation prompts, at `eval_temperature`. All metrics except "
    "`eval_success/ENV` are about the first evaluated environment. All metrics are null in "
    "iterations without an evaluation (`eval_every`).",
    "collapse": "Whether the thoughts of the policy (Z) still depend on their prompts (X). "
    "[diagnostics.md](diagnostics.md) explains how this is measured. A metric with `seq` in "
    "its name uses the sum of the log-probs of a thought's tokens. A metric in nats per token uses "
    "the mean of these log-probs. The column 'meaning' leaves out the ending `_SAMPLING`: in the "
    "row of `mi_zscore_SAMPLING`, `mi` stands for `mi_SAMPLING`. All metrics except `regime` are "
    "null in iterations without a measurement (`collapse_every`).",
    "cost": "Times and memory are those of rank 0.",
}

METRICS = [
    # ---------- rollout
    Metric("step", "rollout", "iterations", "Iterations of the run so far, this one included."),
    Metric("success", "rollout", "fraction", "Share of trajectories that solved the task."),
    Metric(
        "pass@{N}",
        "rollout",
        "fraction",
        "Share of groups in which at least one trajectory solved the task.",
    ),
    Metric("reward", "rollout", "reward", "Mean score of a trajectory."),
    Metric(
        "in_group_reward_mean",
        "rollout",
        "reward",
        "Mean score of a group, averaged over groups.",
    ),
    Metric(
        "in_group_reward_std",
        "rollout",
        "reward",
        "Standard deviation of the scores in a group, averaged over groups.",
    ),
    Metric(
        "in_group_reward_max",
        "rollout",
        "reward",
        "Highest score of a group, averaged over groups.",
    ),
    Metric(
        "zero_std_frac", "rollout", "fraction", "Share of groups in which all scores are equal."
    ),
    Metric(
        "error_frac",
        "rollout",
        "fraction",
        "Share of sampled trajectories that ended in an error. The groups of these "
        "trajectories are left out of all other metrics, except `sampled_groups`, times and "
        "memory.",
    ),
    Metric("lost_frac", "rollout", "fraction", "Share of trajectories whose game was lost."),
    Metric(
        "out_of_actions_frac",
        "rollout",
        "fraction",
        "Share of trajectories whose game used up its actions (`actions_per_traj`) without "
        "success.",
    ),
    Metric(
        "out_of_turns_frac",
        "rollout",
        "fraction",
        "Share of trajectories whose game was not over after `max_turns` replies.",
    ),
    Metric(
        "out_of_tokens_frac",
        "rollout",
        "fraction",
        "Share of trajectories that ended because `max_context_tokens` had no room for "
        "another reply.",
    ),
    Metric(
        "cut_frac",
        "rollout",
        "fraction",
        "Share of replies that were cut off at `max_response_tokens` or `max_context_tokens`.",
    ),
    Metric(
        "cut_by_context_frac",
        "rollout",
        "fraction",
        "Share of replies that were cut off because the context was full.",
    ),
    Metric(
        "void_frac",
        "rollout",
        "fraction",
        "Share of trajectories with a turn in which no action was executed.",
    ),
    Metric("num_turns", "rollout", "turns", "Mean number of turns of a trajectory."),
    Metric("num_actions", "rollout", "actions", "Mean number of executed actions of a trajectory."),
    Metric(
        "response_length",
        "rollout",
        "tokens",
        "Mean number of sampled tokens in all replies of a trajectory.",
    ),
    Metric(
        "valid_frac",
        "rollout",
        "fraction",
        "Share of turns with a valid reply. A valid reply has the required form and names only "
        "known actions: at least one and at most the allowed number.",
    ),
    Metric(
        "effective_frac",
        "rollout",
        "fraction",
        "Share of a turn's executed actions that changed the state, averaged over turns. Turns "
        "without executed actions give 0.",
    ),
    Metric(
        "thoughts_per_turn",
        "rollout",
        "sentences",
        "Mean number of sentences in a turn's `<think>` that can be checked against the state.",
    ),
    Metric(
        "thought_true_frac",
        "rollout",
        "fraction",
        "Share of checkable sentences that are true; 0 if no sentence is checkable.",
    ),
    # ---------- update
    Metric("kept_groups", "update", "groups", "Groups that the group filter kept."),
    Metric(
        "kept_trajectories",
        "update",
        "trajectories",
        "Trajectories in the groups that the group filter kept.",
    ),
    Metric("learning_rate", "update", "none", "Learning rate of the policy."),
    Metric("critic_lr", "update", "none", "Learning rate of the critic."),
    Metric(
        "pg_loss",
        "update",
        "advantage",
        "Policy loss without entropy bonus, KL penalty and ECHO's cross-entropy.",
    ),
    Metric(
        "clipfrac",
        "update",
        "fraction",
        "Share of tokens for which the clipped ratio determines the loss.",
    ),
    Metric(
        "masked_frac",
        "update",
        "fraction",
        "Share of tokens that `importance_floor`, `sequence_mask` or `tv_bound` exclude from "
        "the policy loss.",
    ),
    Metric(
        "observation_nll",
        "update",
        "nats per token",
        "Mean cross-entropy of the policy on the observation tokens between replies. Each "
        "mini-batch is weighted by its number of response tokens.",
    ),
    Metric(
        "approx_kl",
        "update",
        "nats per token",
        "KL(policy before the update, policy during the update), estimated with k3.",
    ),
    Metric(
        "entropy",
        "update",
        "nats per token",
        "Entropy of the policy's distribution over the vocabulary, at `temperature`.",
    ),
    Metric(
        "kl_ref",
        "update",
        "nats per token",
        "KL(policy, starting model), estimated with `kl_estimator`.",
    ),
    Metric("vf_loss", "update", "reward squared", "Value loss of the critic."),
    Metric(
        "vf_clipfrac",
        "update",
        "fraction",
        "Share of tokens for which the clipped value determines the value loss.",
    ),
    Metric(
        "explained_variance",
        "update",
        "none",
        "1 - Var(returns - values) / Var(returns). It is 1 for a perfect critic.",
    ),
    Metric("grad_norm", "update", "norm", "Mean gradient norm of the policy before clipping."),
    Metric(
        "grad_norm_critic", "update", "norm", "Mean gradient norm of the critic before clipping."
    ),
    Metric(
        "bad_steps",
        "update",
        "steps",
        "Current streak of optimizer steps that were skipped because a loss, a metric or the "
        "gradient was NaN or Inf. Overflows that lower float16's loss scale do not count.",
    ),
    Metric(
        "logprob_diff_mean",
        "update",
        "nats per token",
        "Mean absolute difference between the engine's and trainer's log-probs of the same "
        "tokens. Only the first optimizer step counts: in it, engine and trainer have equal "
        "weights. With `mask_observations=False`, unsampled tokens have difference 0.",
    ),
    Metric(
        "logprob_diff_max",
        "update",
        "nats",
        "Largest of the differences whose mean is `logprob_diff_mean`.",
    ),
    # ---------- evaluation
    Metric("eval_success", "eval", "fraction", "Share of prompts that were solved."),
    Metric(
        "eval_success/{ENV}",
        "eval",
        "fraction",
        "Share of prompts of the environment ENV that were solved.",
    ),
    Metric("eval_reward", "eval", "reward", "Like `reward`."),
    Metric("eval_valid_frac", "eval", "fraction", "Like `valid_frac`."),
    Metric(
        "eval_entropy",
        "eval",
        "nats per token",
        "Like `entropy`; at temperature 1 if `eval_temperature` is 0.",
    ),
    Metric("eval_response_length", "eval", "tokens", "Like `response_length`."),
    Metric(
        "eval_error_frac", "eval", "fraction", "Share of evaluation games that ended in an error."
    ),
    Metric("eval_lost_frac", "eval", "fraction", "Like `lost_frac`."),
    Metric("eval_out_of_actions_frac", "eval", "fraction", "Like `out_of_actions_frac`."),
    Metric("eval_out_of_turns_frac", "eval", "fraction", "Like `out_of_turns_frac`."),
    Metric("eval_out_of_tokens_frac", "eval", "fraction", "Like `out_of_tokens_frac`."),
    Metric("eval_cut_frac", "eval", "fraction", "Like `cut_frac`."),
    Metric("eval_cut_by_context_frac", "eval", "fraction", "Like `cut_by_context_frac`."),
    # ---------- collapse
    Metric(
        "regime",
        "collapse",
        "word",
        "[Regime](diagnostics.md#regimes): diverse, template, compressed or "
        "collapsed. Null until `entropy` or `conditional_entropy_first` is known.",
    ),
    Metric(
        "valid_thinking_rate",
        "collapse",
        "fraction",
        "Share of turns whose thought is closed with `</think>` and not empty. The metrics "
        "below use only these turns.",
    ),
    Metric("pairs_{SAMPLING}", "collapse", "pairs", "Pairs of thought and prompt in the sample."),
    Metric(
        "mi_bound_{SAMPLING}",
        "collapse",
        "nats",
        "H(X), the entropy of the prompts. It is an upper bound of the mutual information.",
    ),
    Metric(
        "mi_seq_{SAMPLING}",
        "collapse",
        "nats per thought",
        "Mutual information of thought and prompt, H(Z) - H(Z given X).",
    ),
    Metric(
        "mi_{SAMPLING}",
        "collapse",
        "nats per token",
        "Like `mi_seq`, per token. It is comparable to the value in RAGEN-2, but is not a "
        "true mutual information.",
    ),
    Metric(
        "conditional_entropy_seq_{SAMPLING}",
        "collapse",
        "nats per thought",
        "H(Z given X): the variety of thoughts for one prompt.",
    ),
    Metric(
        "conditional_entropy_{SAMPLING}",
        "collapse",
        "nats per token",
        "Like `conditional_entropy_seq`, per token.",
    ),
    Metric(
        "marginal_entropy_seq_{SAMPLING}",
        "collapse",
        "nats per thought",
        "H(Z): the variety of thoughts for all prompts together.",
    ),
    Metric(
        "marginal_entropy_{SAMPLING}",
        "collapse",
        "nats per token",
        "Like `marginal_entropy_seq`, per token.",
    ),
    Metric(
        "marginal_std_seq_{SAMPLING}",
        "collapse",
        "nats per thought",
        "Standard deviation of log p(z) over the thoughts z, where p(z) is the mean "
        "probability of z over all prompts.",
    ),
    Metric(
        "marginal_std_{SAMPLING}",
        "collapse",
        "nats per token",
        "Like `marginal_std_seq`, per token.",
    ),
    Metric(
        "marginal_std_ema_{SAMPLING}",
        "collapse",
        "nats per token",
        "Moving average of `marginal_std` (decay 0.9).",
    ),
    Metric(
        "mi_zscore_seq_{SAMPLING}",
        "collapse",
        "none",
        "`mi_seq` / (`marginal_std_seq` + 0.001).",
    ),
    Metric("mi_zscore_{SAMPLING}", "collapse", "none", "`mi` / (`marginal_std` + 0.001)."),
    Metric(
        "mi_zscore_ema_{SAMPLING}",
        "collapse",
        "none",
        "`mi` / (`marginal_std_ema` + 0.001), as in RAGEN-2.",
    ),
    Metric(
        "retrieval@{K}_{SAMPLING}",
        "collapse",
        "fraction",
        "Share of thoughts whose own prompt is among the K prompts under which the thought is "
        "most probable.",
    ),
    Metric(
        "retrieval_chance@{K}_{SAMPLING}",
        "collapse",
        "fraction",
        "`retrieval@K` of a policy that ignores its prompts: min(K, J) / J for J different "
        "prompts.",
    ),
    Metric(
        "retrieval_above@{K}_{SAMPLING}",
        "collapse",
        "fraction",
        "`retrieval@K` - `retrieval_chance@K`.",
    ),
    # ---------- cost
    Metric(
        "sampled_groups",
        "cost",
        "groups",
        "Groups sampled in all rounds together (`sampling_rounds`).",
    ),
    Metric("rollout_s", "cost", "seconds", "Wall time of the rollouts."),
    Metric(
        "update_s",
        "cost",
        "seconds",
        "Wall time of group filter, advantages and optimizer steps.",
    ),
    Metric("cpu_s", "cost", "seconds", "CPU time of rollouts and update."),
    Metric(
        "memory_gib",
        "cost",
        "GiB",
        "Peak memory since the process started: memory allocated by torch on a GPU, resident "
        "memory on a CPU.",
    ),
]


def metric_names(config: Config) -> list[str]:
    """The keys of a row of metrics.jsonl, in order."""
    return list(metric_groups(config))


def metric_groups(config: Config) -> dict[str, str]:
    """Map each metric in a row of metrics.jsonl to its group, in the order of the row."""
    values = {
        "N": [str(config.group_size)],
        "ENV": scored_envs(config)[1:],
        "SAMPLING": ["first", "sampled"],
        "K": [str(k) for k in RETRIEVAL_RANKS],
    }
    groups = {}
    for metric in METRICS:
        for name in _expand(metric.name, values):
            groups[name] = metric.group
    return groups


def _expand(name: str, values: dict[str, list[str]]) -> list[str]:
    """Fill the placeholders of a name with all their values, and return the resulting names.

    >>> _expand("mi_{SAMPLING}", {"SAMPLING": ["first", "sampled"]})
    ['mi_first', 'mi_sampled']
    """
    used = [placeholder for placeholder in values if f"{{{placeholder}}}" in name]
    names = []
    for choice in product(*(values[placeholder] for placeholder in used)):
        names.append(name.format(**dict(zip(used, choice, strict=True))))
    return names


def glossary() -> str:
    """The text of the page docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "A run writes one JSON object per iteration to `metrics.jsonl` in its folder. TensorBoard",
        "(`tensorboard --logdir out`) shows the same numbers, grouped by the headings below. In",
        "TensorBoard, `reward` is called `rollout/reward`. A value that was not measured is null.",
        "",
    ]
    for placeholder, meaning in PLACEHOLDERS.items():
        lines.append(f"- {placeholder} in a name is {meaning}.")
    for group, description in GROUPS.items():
        lines += ["", f"## {group}", "", description, ""]
        lines += ["| metric | unit | meaning |", "|---|---|---|"]
        for metric in METRICS:
            if metric.group == group:
                name = metric.name.replace("{", "").replace("}", "")
                lines.append(f"| `{name}` | {metric.unit} | {metric.meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(glossary())
