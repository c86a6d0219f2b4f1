"""Every metric of a training run: name, group, unit and meaning.

A row of metrics.jsonl has exactly the keys of `metric_names(config)`. docs/metrics.md is the same
list as a page:

    python -m support.metrics > docs/metrics.md
"""

from configurator import Config

from itertools import product
from typing import NamedTuple

from support.mixtures import mixture_at

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
    "SAMPLING": "`first` (thoughts of first turns) or `sampled` (one random turn per trajectory)",
    "K": f"one of {', '.join(str(k) for k in RETRIEVAL_RANKS)}",
}

GROUPS = {
    "rollout": "The training trajectories of the iteration, sampled at `temperature`.",
    "update": "The group filter and the optimizer steps. Values per token are means over sampled "
    "tokens. Without an update, all but `kept_groups`, `kept_trajectories`, `bad_steps` are null.",
    "eval": "The fixed evaluation prompts, sampled at `eval_temperature`. Null in iterations "
    "without an evaluation (`eval_every`).",
    "collapse": "Whether thoughts still depend on their prompts; [diagnostics.md](diagnostics.md) "
    "explains how they are measured. Null in iterations without a measurement (`collapse_every`), "
    "except `regime`. A pair is a thought with its prompt.",
    "cost": "What the iteration cost. Times and memory are those of rank 0.",
}

METRICS = [
    # ---------- rollout
    Metric("step", "rollout", "iterations", "Iterations so far."),
    Metric("success", "rollout", "fraction", "Trajectories that solved the task."),
    Metric(
        "pass@{N}",
        "rollout",
        "fraction",
        "Groups in which at least one trajectory solved the task.",
    ),
    Metric(
        "reward",
        "rollout",
        "reward",
        "Score of a trajectory, the sum of its rewards and penalties; mean over trajectories.",
    ),
    Metric("in_group_reward_mean", "rollout", "reward", "Mean score of a group; mean over groups."),
    Metric(
        "in_group_reward_std",
        "rollout",
        "reward",
        "Standard deviation of the scores in a group; mean over groups. It falls when a policy "
        "collapses.",
    ),
    Metric(
        "in_group_reward_max", "rollout", "reward", "Highest score of a group; mean over groups."
    ),
    Metric("zero_std_frac", "rollout", "fraction", "Groups in which all scores are equal."),
    Metric(
        "error_frac",
        "rollout",
        "fraction",
        "Trajectories that ended in an error. Other metrics leave out their groups, except "
        "`sampled_groups`, times and memory.",
    ),
    Metric("lost_frac", "rollout", "fraction", "Trajectories whose game was lost."),
    Metric(
        "out_of_actions_frac",
        "rollout",
        "fraction",
        "Trajectories that ended without success when their actions (`actions_per_traj`) were used "
        "up.",
    ),
    Metric(
        "out_of_turns_frac",
        "rollout",
        "fraction",
        "Trajectories whose game was not over after `max_turns` replies.",
    ),
    Metric(
        "out_of_tokens_frac",
        "rollout",
        "fraction",
        "Trajectories that ended because `max_context_tokens` had no room for another reply. This, "
        "`success` and the three fractions above sum to 1.",
    ),
    Metric(
        "cut_frac",
        "rollout",
        "fraction",
        "Replies that were cut off, at `max_response_tokens` or at the end of the context.",
    ),
    Metric(
        "cut_by_context_frac",
        "rollout",
        "fraction",
        "Replies that were cut off below `max_response_tokens`, because the context was full.",
    ),
    Metric(
        "void_frac",
        "rollout",
        "fraction",
        "Trajectories with a turn in which no action was executed.",
    ),
    Metric("num_turns", "rollout", "turns", "Turns per trajectory."),
    Metric("num_actions", "rollout", "actions", "Executed actions per trajectory."),
    Metric("response_length", "rollout", "tokens", "Sampled tokens per trajectory."),
    Metric(
        "valid_frac",
        "rollout",
        "fraction",
        "Turns whose reply is valid: it has the required form, only known actions, no surplus "
        "action, and at least one action.",
    ),
    Metric(
        "effective_frac",
        "rollout",
        "fraction",
        "Share of a turn's executed actions that changed the state, 0 if it executed none; mean "
        "over turns.",
    ),
    Metric(
        "thoughts_per_turn",
        "rollout",
        "sentences",
        "Sentences in `<think>` that can be checked against the state, per turn.",
    ),
    Metric(
        "thought_true_frac",
        "rollout",
        "fraction",
        "True sentences among those that can be checked; 0 if there are none.",
    ),
    # ---------- update
    Metric("kept_groups", "update", "groups", "Groups that the filter kept."),
    Metric("kept_trajectories", "update", "trajectories", "Trajectories that the filter kept."),
    Metric(
        "learning_rate",
        "update",
        "none",
        "Learning rate of the policy. It falls with the iterations unless `final_lr` is 1.",
    ),
    Metric("critic_lr", "update", "none", "Learning rate of the critic; null without a critic."),
    Metric("pg_loss", "update", "advantage", "Policy loss, without entropy bonus and KL."),
    Metric("clipfrac", "update", "fraction", "Tokens whose loss takes the clipped ratio."),
    Metric(
        "masked_frac",
        "update",
        "fraction",
        "Tokens that `importance_floor`, `sequence_mask` or `tv_bound` leave out of the policy "
        "loss.",
    ),
    Metric(
        "observation_nll",
        "update",
        "nats per token",
        "Cross-entropy on the observations between replies; null if `observation_coef` is 0.",
    ),
    Metric(
        "approx_kl",
        "update",
        "nats per token",
        "KL(old policy, new policy), estimated with k3 from the sampled tokens.",
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
        "KL to the starting model, estimated with `kl_estimator`; null if `kl_coef` is 0.",
    ),
    Metric(
        "vf_loss",
        "update",
        "reward squared",
        "Value loss. This, `vf_clipfrac`, `explained_variance` and `grad_norm_critic` are null for "
        "estimators without a critic.",
    ),
    Metric("vf_clipfrac", "update", "fraction", "Tokens whose loss takes the clipped value."),
    Metric(
        "explained_variance",
        "update",
        "none",
        "1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant one.",
    ),
    Metric("grad_norm", "update", "norm", "Gradient norm of the policy before clipping."),
    Metric("grad_norm_critic", "update", "norm", "Gradient norm of the critic before clipping."),
    Metric(
        "bad_steps",
        "update",
        "steps",
        "Optimizer steps in a row that were skipped because of NaN or Inf.",
    ),
    Metric(
        "logprob_diff_mean",
        "update",
        "nats per token",
        "Mean absolute difference between the log-probs of engine and trainer, in the first "
        "optimizer step. Tokens that no engine sampled (`mask_observations=False`) count as 0.",
    ),
    Metric(
        "logprob_diff_max",
        "update",
        "nats",
        "Largest absolute difference between the log-probs of engine and trainer, in the first "
        "optimizer step.",
    ),
    # ---------- evaluation
    Metric(
        "eval_success",
        "eval",
        "fraction",
        "Solved prompts of the first evaluated environment (`eval_env`).",
    ),
    Metric("eval_success/{ENV}", "eval", "fraction", "Solved prompts of ENV."),
    Metric("eval_reward", "eval", "reward", "Like `reward`, on the prompts of `eval_success`."),
    Metric("eval_valid_frac", "eval", "fraction", "Like `valid_frac`."),
    Metric(
        "eval_entropy",
        "eval",
        "nats per token",
        "Like `entropy`, at `eval_temperature`; at temperature 1 if `eval_temperature` is 0.",
    ),
    Metric("eval_response_length", "eval", "tokens", "Like `response_length`."),
    Metric("eval_error_frac", "eval", "fraction", "Games that ended in an error."),
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
        "diverse, template, compressed or collapsed; null until the entropy is known.",
    ),
    Metric(
        "valid_thinking_rate",
        "collapse",
        "fraction",
        "Turns whose thought is closed and not empty. The metrics below use only these turns.",
    ),
    Metric("pairs_{SAMPLING}", "collapse", "pairs", "Number of pairs in the measurement."),
    Metric(
        "mi_bound_{SAMPLING}",
        "collapse",
        "nats",
        "H(X), the entropy of the prompts of the pairs: an upper bound of the mutual information. "
        "It is log n if all n pairs have different prompts.",
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
        "`mi_seq` with the mean log-prob of a thought's tokens instead of their sum. It is "
        "comparable to RAGEN-2, but not a true mutual information.",
    ),
    Metric(
        "conditional_entropy_seq_{SAMPLING}",
        "collapse",
        "nats per thought",
        "H(Z given X): how varied thoughts are for one prompt.",
    ),
    Metric(
        "conditional_entropy_{SAMPLING}",
        "collapse",
        "nats per token",
        "`conditional_entropy_seq` with mean log-probs.",
    ),
    Metric(
        "marginal_entropy_seq_{SAMPLING}",
        "collapse",
        "nats per thought",
        "H(Z): how varied thoughts are over all prompts.",
    ),
    Metric(
        "marginal_entropy_{SAMPLING}",
        "collapse",
        "nats per token",
        "`marginal_entropy_seq` with mean log-probs.",
    ),
    Metric(
        "marginal_std_seq_{SAMPLING}",
        "collapse",
        "nats per thought",
        "Standard deviation over thoughts of the log of their mean probability over all prompts.",
    ),
    Metric(
        "marginal_std_{SAMPLING}",
        "collapse",
        "nats per token",
        "`marginal_std_seq` with mean log-probs.",
    ),
    Metric(
        "marginal_std_ema_{SAMPLING}",
        "collapse",
        "nats per token",
        "Moving average of `marginal_std` over measurements, decay 0.9.",
    ),
    Metric(
        "mi_zscore_seq_{SAMPLING}", "collapse", "none", "`mi_seq` / (`marginal_std_seq` + 0.001)."
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
        "Thoughts whose own prompt is among the K prompts that make them likeliest. Tied prompts "
        "count as the average over their orders.",
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
    Metric("sampled_groups", "cost", "groups", "Sampled groups, over all `sampling_rounds`."),
    Metric("rollout_s", "cost", "seconds", "Wall time of the rollouts."),
    Metric("update_s", "cost", "seconds", "Wall time of filter, advantages and update."),
    Metric("cpu_s", "cost", "seconds", "CPU time of the process for rollouts and update."),
    Metric(
        "memory_gib",
        "cost",
        "GiB",
        "Largest memory so far: allocated by torch on a GPU, resident memory on a CPU.",
    ),
]


def metric_names(config: Config) -> list[str]:
    """The keys of a row of metrics.jsonl, in order."""
    return list(metric_groups(config))


def metric_groups(config: Config) -> dict[str, str]:
    """Name -> group of each metric of a row, in order."""
    scored_envs = list(mixture_at(config.eval_env or config.env, None))
    values = {
        "N": [str(config.group_size)],
        "ENV": scored_envs[1:],
        "SAMPLING": ["first", "sampled"],
        "K": [str(k) for k in RETRIEVAL_RANKS],
    }
    groups = {}
    for metric in METRICS:
        for name in _expand(metric.name, values):
            groups[name] = metric.group
    return groups


def _expand(name: str, values: dict[str, list[str]]) -> list[str]:
    """All names that a name with placeholders stands for.

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
        "(`tensorboard --logdir out`) shows the same numbers, with one group per heading below:",
        "`reward` is called `rollout/reward` there, and `eval_reward` is called `eval/reward`.",
        "",
        "A *fraction*, from 0 to 1, is the share of what the meaning names first, for example of",
        "trajectories, turns or tokens. Rewards have the unit of the environment. Null means not",
        "measured.",
        "`python -m support.metrics` prints this page within seconds.",
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
