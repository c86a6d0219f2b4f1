"""During SFT (tools/sft.py), measure how well the model plays held-out instances."""

from configurator import Config

from dataclasses import replace

from dialogue import Chat
from engine import make_engine
from rollout import check_errors, collect
from support.scores import summarize

SEED_PROBE = 13  # makes the random streams of this file differ from those of other files
PROBE_KEYS = (
    "success",
    "valid_frac",
    "thought_true_frac",
    "entropy",
    "cut_frac",
    "out_of_tokens_frac",
)


def probe(model, chat: Chat, config: Config) -> dict[str, float]:
    """Let the model play held-out instances at eval_temperature and at temperature 1.

    Entropy is the mean -log p of the sampled tokens, in nats.

    Returns: each metric of PROBE_KEYS at both temperatures. For example, success_T1 is the success
        at temperature 1."""
    # Probes never use vLLM, because one process cannot start vLLM again for each probe.
    engine = make_engine(replace(config, engine="torch"), model, chat)
    starts = [((i,), 0) for i in range(config.eval_size)]
    report = {}
    for temperature in (config.eval_temperature, 1.0):
        trajectories = collect(
            engine,
            chat,
            config,
            starts,
            split="heldout",
            temperature=temperature,
            noise_seed=(config.seed, SEED_PROBE),
        )
        check_errors(trajectories, config)
        logprobs = [logprob for t in trajectories for logprob in t.rollout_logprobs]
        metrics = summarize(trajectories)
        metrics["entropy"] = -sum(logprobs) / len(logprobs)
        for key in PROBE_KEYS:
            report[f"{key}_T{temperature:g}"] = round(metrics[key], 4)
    return report
