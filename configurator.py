"""Settings of a run: every default lives in the Config dataclass below, once.

A run takes any number of Python files and --key=value overrides, left to right, last wins. A config file assigns fields
of Config in plain Python; names with a leading "_", modules, functions and classes are ignored in it. Anything else
that is not a field is an error, there as on the command line.
"""

import ast
import difflib
import json
import math
import os
import re
import sys
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints


class UserError(ValueError):
    """A bad setting, file, model or environment. The message is one sentence that says what to change."""


# a number's type, and its legal values in words and as a test
Natural = Annotated[int, "0 or more", lambda x: x >= 0]
Count = Annotated[int, "1 or more", lambda x: x >= 1]
Pairs = Annotated[int, "2 or more", lambda x: x >= 2]
EvalSize = Annotated[int, "between 1 and 256", lambda x: 1 <= x <= 256]
NotNegative = Annotated[float, "0 or more", lambda x: x >= 0]
Positive = Annotated[float, "more than 0", lambda x: x > 0]
Fraction = Annotated[float, "between 0 and 1", lambda x: 0 <= x <= 1]
BelowOne = Annotated[float, "at least 0 and less than 1", lambda x: 0 <= x < 1]
Penalty = Annotated[float, "0 or less", lambda x: x <= 0]
Cap = Annotated[float, "1 or more", lambda x: x >= 1]
DualClip = Annotated[float, "0, or more than 1", lambda x: x == 0 or x > 1]
Estimator = Literal[
    "gae",
    "bi_level_gae",
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
]
GROUP_BASELINE_ESTIMATORS = (
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_plus_plus_baseline",
)  # scores inside groups


@dataclass(frozen=True)
class Config:
    """All settings of a run, with the defaults of the StarPO paper (arXiv 2504.20073) where it gives one."""

    # run
    out_dir: str = ""  # folder for metrics, samples, checkpoints; '' = out/<first config file>, plus _s<seed> if not 0
    seed: Natural = 0  # every random stream of the run derives from it
    num_iterations: Natural = (
        200  # rounds of rollout and update; 0 = evaluate the starting model only
    )
    eval_every: Natural = 10  # iterations between evaluations; 0 = only at the start and the end
    save_every: Natural = 10  # iterations between checkpoints; 0 = only at the end
    keep_checkpoints: Count = 2  # the last ones that are kept
    grace_s: Positive = (
        60.0  # seconds that an iteration under way has, after a signal, to end and be saved
    )
    num_samples: Natural = 4  # trajectories written per evaluated iteration, whole groups first
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: cuda if there is one
    num_threads: Natural = 0  # CPU threads; 0 = torch's choice; 1 = repeatable to the last bit
    # environment
    env: str = "frozenlake"  # 'name:key=value,...'; 'A + 2*B' mixes groups 1:2; 'A @50 > B' is A up to iteration 50
    eval_env: str = ""  # environments that are scored, 'A + B'; '' = those of the last stage of env
    observation: Literal["grid", "coord", "relations"] = "grid"  # how the state is written
    think: bool = True  # True: the reply is <think>...</think><answer>...</answer>; False: only <answer>...</answer>
    max_turns: Count = 5  # K, replies per trajectory
    actions_per_turn: Count = 5  # actions executed from one reply
    actions_per_traj: Count = 10  # actions executed in one trajectory, at least actions_per_turn
    context_turns: Natural = (
        0  # turns that a reply sees, its own included; 0 = all, 1 = single-turn
    )
    format_penalty: Penalty = -0.1  # added to the reward of a malformed turn
    reward_density: Literal["native", "sparse", "balanced", "dense", "plan"] = (
        "native"  # what a turn earns
    )
    think_reward: NotNegative = (
        0.0  # added to each turn's reward, times max(0, true - false sentences) / facts
    )
    # model
    model: str = "Qwen/Qwen2.5-0.5B-Instruct"  # Hugging Face id, folder, 'base' (ours, tiny) or 'tiny' (untrained)
    tiny_shape: str = "4x96"  # of model='tiny': layers x width
    dtype: Literal["auto", "float32", "bfloat16"] = (
        "auto"  # compute type; auto: bfloat16 on cuda, float32 on cpu
    )
    lora_rank: Natural = (
        0  # of LoRA on all linear layers of policy and critic; 0 = all weights are trained
    )
    compile: bool = (
        False  # True: torch.compile the MLP and the norms of every block, packs padded to one size
    )
    # rollout
    engine: Literal["vllm", "torch"] = (
        "vllm"  # what samples; torch: in plain PyTorch, needs no vLLM
    )
    num_groups: Count = 8  # P, initial states per iteration
    group_size: Count = 16  # N, trajectories per initial state
    temperature: Positive = 1.0  # of sampling, and of the log-probabilities in the loss
    max_response_tokens: Count = 400  # tokens of one reply
    max_context_tokens: Count = (
        3600  # tokens of one trajectory, prompts and replies; at least max_response_tokens
    )
    max_running: Count = 128  # trajectories decoded at once
    step_timeout_s: Positive = 60.0  # seconds that an environment has for one step
    max_error_frac: Fraction = (
        0.1  # trajectories that may end in an error of their environment before the run stops
    )
    # StarPO
    estimator: Estimator = "gae"  # of advantages; gae and bi_level_gae have a critic
    turn_level: bool = (
        False  # True: returns-to-go of turns are compared in a group, not scores of trajectories
    )
    gamma: Fraction = 1.0  # discount per token inside a turn
    lam: Fraction = 1.0  # lambda of GAE inside a turn
    turn_gamma: Fraction = 1.0  # discount from turn to turn
    turn_lam: Fraction = 1.0  # lambda of GAE from turn to turn
    reward_norm: Literal["none", "mean", "mean_std", "asym_clip"] = (
        "none"  # of scores, after the filter has seen them
    )
    reward_norm_over: Literal["group", "batch", "env"] = "group"  # whose mean and std that takes
    filter_strategy: Literal["fraction", "count", "top_p", "top_p_softmax", "min_p"] = (
        "fraction"  # which groups stay
    )
    filter_keep: Positive = (
        0.25  # what filter_strategy needs: a fraction (1.0 = no filter), a count, or p
    )
    filter_by: Literal["reward_std", "reward_mean", "entropy", "length"] = (
        "reward_std"  # of a group
    )
    filter_smallest: bool = False  # True: the smallest values are kept, not the largest
    filter_zero_std: bool = False  # True: groups without variance of rewards may be kept
    filter_loss_scale: Literal["none", "linear", "sqrt"] = (
        "none"  # advantages times the share of kept groups
    )
    clip_low: BelowOne = 0.2  # the ratio is clipped to [1 - clip_low, 1 + clip_high]
    clip_high: Positive = 0.28  # see clip_low
    dual_clip: DualClip = (
        0.0  # bounds the loss of tokens with A < 0 to dual_clip * |A|; 0 = no bound
    )
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"] = (
        "token_mean"  # losses
    )
    recompute_old_logprobs: bool = (
        False  # True: old log-probs from a forward of the trainer, not from the engine
    )
    importance_cap: Cap = (
        2.0  # weights pi / pi_engine of tokens are truncated here (TIS); below 1: biased on-policy
    )
    value_clip: Positive = 0.5  # new values stay this close to the old ones, reward units
    value_coef: NotNegative = 0.5  # weight of the value loss
    entropy_coef: NotNegative = 0.001  # weight of the entropy bonus
    kl_coef: NotNegative = 0.0  # weight of KL against the frozen start; 0 = no reference model
    kl_in: Literal["loss", "reward"] = (
        "loss"  # reward: of every token; costs a forward of the policy
    )
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"  # k1: in the reward only
    mask_observations: bool = (
        True  # False: the mask of the paper's own code, which trains on the environment's text
    )
    # update
    batch_size: Count = 32  # E, trajectories per optimizer step; at most what the filter can keep
    num_epochs: Count = 1  # passes over the kept trajectories of an iteration
    micro_batch_tokens: Count = (
        16384  # tokens of one forward and backward pass, at least max_context_tokens
    )
    learning_rate: NotNegative = 1e-6  # AdamW, policy
    critic_lr: NotNegative = 1e-5  # AdamW, critic
    adam_beta1: BelowOne = 0.9  # policy and critic
    adam_beta2: BelowOne = 0.999  # policy and critic
    weight_decay: NotNegative = 0.01  # policy and critic
    grad_clip: Positive = 1.0  # largest gradient norm
    max_bad_steps: Count = (
        5  # optimizer steps in a row with a non-finite gradient before the run stops
    )
    # evaluation
    eval_split: Literal["eval", "heldout"] = (
        "eval"  # the 256 prompts that are reported; 256 others, to choose settings
    )
    eval_size: EvalSize = 256  # initial states that training never draws, one trajectory each
    eval_temperature: NotNegative = 0.5  # 0 = greedy
    # diagnostics
    collapse_every: Natural = 0  # iterations between measurements of mutual information; 0 = never
    collapse_pairs: Pairs = 64  # thoughts that are compared in one of them
    early_stop: bool = False  # True: end when rewards lose their variance, the filter keeps nothing or evaluation is 0
    # supervised learning (sft.py)
    sft_steps: Natural = 0  # optimizer steps of sft.py; train.py makes none
    sft_batch_size: Count = (
        16  # demonstrations per step; in pretraining packs of micro_batch_tokens
    )
    sft_lr: NotNegative = 1e-5  # AdamW
    sft_muon_lr: NotNegative = 0.0  # Muon, for the matrices; 0 = AdamW for all parameters
    sft_actions: Count = (
        3  # most actions that a demonstration commits a turn, actions_per_turn at most
    )
    sft_demos: Natural = (
        0  # demonstrations that differ, gone through again and again; 0 = new ones for every step
    )
    sft_file: str = (
        ""  # demonstrations to read (sft.py --export=PATH), again and again; '' = made on the fly
    )
    sft_noise: Fraction = 0.0  # share of the turns of demonstrations with random actions
    sft_clean: Fraction = 0.0  # share of the demonstrations, the first ones, without that noise

    def __post_init__(self) -> None:
        for key, legal in CHOICES.items():
            if getattr(self, key) not in legal:
                raise UserError(
                    f"{key} must be one of {', '.join(legal)}, got {getattr(self, key)!r}"
                )
        for key, (wanted, is_legal) in RANGES.items():
            if not (math.isfinite(getattr(self, key)) and is_legal(getattr(self, key))):
                raise UserError(f"{key} must be {wanted}, got {getattr(self, key)}")
        for low, high, reason in ORDERED:
            if getattr(self, low) > getattr(self, high):
                pair = (
                    f"{low} ({getattr(self, low)}) must not exceed {high} ({getattr(self, high)})"
                )
                raise UserError(f"{pair}: {reason}")
        counts, by_mass = (
            self.filter_strategy == "count",
            self.filter_strategy not in ("fraction", "count"),
        )
        if not counts <= self.filter_keep <= (self.num_groups if counts else 1):
            wanted = f"must be {f'1 to {self.num_groups}' if counts else 'at most 1'} for {self.filter_strategy}"
            raise UserError(f"filter_keep {wanted}, got {self.filter_keep}")
        if by_mass and (self.filter_smallest or self.filter_by == "reward_mean"):
            raise UserError(
                f"filter_strategy {self.filter_strategy!r} adds up values >= 0 from the largest: "
                "filter_smallest and filter_by='reward_mean' are for fraction and count"
            )
        if self.kl_coef and self.kl_in == "loss" and self.kl_estimator == "k1":
            raise UserError(
                "kl_estimator='k1' has no expected gradient in the loss; use k2, k3, or kl_in='reward'"
            )
        if self.collapse_every and not self.think:
            raise UserError(
                "collapse metrics compare thoughts and think is False; set think=True or collapse_every=0"
            )
        if self.turn_level and self.estimator not in GROUP_BASELINE_ESTIMATORS:
            raise UserError(
                f"turn_level is for estimators {', '.join(GROUP_BASELINE_ESTIMATORS)}; got {self.estimator!r}"
            )
        compared = self.estimator in GROUP_BASELINE_ESTIMATORS or (
            self.reward_norm != "none" and self.reward_norm_over == "group"
        )
        if self.group_size == 1 and compared:
            raise UserError("group_size=1 leaves no other member to compare scores with")
        unfiltered = self.filter_strategy == "fraction" and self.filter_keep == 1
        kept = (
            self.filter_keep if counts else (1 if by_mass else self.filter_keep) * self.num_groups
        )
        kept = max(1, int(kept + 1e-9)) * self.group_size
        kept *= (
            self.group_size > 1 or unfiltered or self.filter_zero_std
        )  # a group of one has no variance
        if self.batch_size > kept:
            product = f"filter_keep {self.filter_keep} of num_groups {self.num_groups}, group_size {self.group_size}"
            raise UserError(
                f"batch_size ({self.batch_size}) is more than the {kept} trajectories kept ({product})"
            )


CHOICES = {
    field.name: get_args(field.type)
    for field in fields(Config)
    if get_origin(field.type) is Literal
}
RANGES = {
    field.name: get_args(field.type)[1:]
    for field in fields(Config)
    if get_origin(field.type) is Annotated
}
FIELD_TYPES: dict[str, type] = get_type_hints(Config) | dict.fromkeys(CHOICES, str)
ORDERED = [
    ("actions_per_turn", "actions_per_traj", "a trajectory must have room for one full turn"),
    ("max_response_tokens", "max_context_tokens", "a trajectory holds its prompts and its replies"),
    ("max_context_tokens", "micro_batch_tokens", "a trajectory must fit into one micro-batch"),
]


def load_config(
    argv: list[str], *, extra: dict | None = None, base: Config | None = None
) -> tuple[Config, dict, dict]:
    """Reads config files and --key=value overrides, left to right, last wins.

    Args: argv: what follows the script name; extra: a script's own options with their defaults, legal on the command
        line only; base: settings in place of the defaults.
    Returns: the checked settings; a value for each key of extra; for every field of Config its source: "default" (or
        base), a file, or "command line".
    Raises: UserError with the key, what is wanted, what was given, and by which source.
    >>> config, extras, config_sources = load_config(["--seed=3", "--player=oracle"], extra={"player": ""})
    >>> config.seed, extras, config_sources["seed"], config.out_dir
    (3, {'player': 'oracle'}, 'command line', 'out/default_s3')
    """
    extras = dict(extra or {})
    extra_types = {key: type(value) for key, value in extras.items()}
    config_sources = dict.fromkeys(FIELD_TYPES, "default")
    values: dict[str, Any] = asdict(base) if base else {}
    files = []
    for arg in argv:
        if arg.startswith("--") and "=" in arg:
            key, text = arg[2:].split("=", 1)
            wanted = lookup_type(key, {**FIELD_TYPES, **extra_types}, "command line")
            value = check_type(key, parse_text(text, wanted), wanted, "command line")
            (extras if key in extra_types else values)[key] = value
            config_sources |= {key: "command line"} if key in FIELD_TYPES else {}
        elif arg.endswith(".py") and not arg.startswith("-"):
            files.append(arg)
            for key, value in _read_file(arg).items():
                values[key] = check_type(key, value, lookup_type(key, FIELD_TYPES, arg), arg)
                config_sources[key] = arg
        else:
            hint = "; nor is there such a folder" if "/" in arg and not Path(arg).exists() else ""
            example = (
                f"{arg}=True" if {**FIELD_TYPES, **extra_types}.get(arg[2:]) is bool else "--seed=1"
            )
            wanted = f"neither a config/name.py file nor --key=value, such as {example}{hint}"
            raise UserError(f"argument {arg!r} is {wanted}")
    config = Config(**values)  # checks the ranges
    out_dir = config.out_dir or f"out/{Path(files[0]).stem if files else 'default'}"
    if (
        config.seed
        and not base
        and not (config.out_dir and config_sources["out_dir"] == "command line")
    ):
        out_dir += f"_s{config.seed}"  # seeds of one config do not share a folder
    return replace(config, out_dir=out_dir), extras, config_sources


def parse_text(text: str, wanted: type) -> Any:
    """The value that a command line text stands for; text that fits nothing is returned as it is."""
    try:
        return text if wanted is str else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def check_type(key: str, value: Any, wanted: type, source: str) -> Any:
    """The value as the wanted type: an int becomes a float where one is wanted, anything else is a TypeError."""
    if type(value) is wanted:  # not isinstance: a bool is never an int here
        return value
    if wanted is float and type(value) is int:
        return float(value)
    name = "bool (True or False)" if wanted is bool else wanted.__name__
    raise UserError(f"{key} wants {name}, got {value!r} ({type(value).__name__}) from {source}")


def lookup_type(key: str, known_types: dict[str, Any], source: str) -> Any:
    if key in known_types:
        return known_types[key]
    if key in ("top_p", "top_k"):
        raise UserError(
            f"{key} from {source} is refused: sampling from a cut distribution would make the log-probs "
            "in the loss those of another policy; use temperature"
        )
    near = " or ".join(difflib.get_close_matches(key, known_types, n=3))
    hint = f"did you mean {near}?" if near else f"the keys are {', '.join(known_types)}"
    raise UserError(f"unknown key {key!r} from {source}: {hint}")


def _read_file(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise UserError(f"config file {path} does not exist")
    names: dict[str, Any] = {"__file__": path, "__name__": "config"}
    try:
        exec(compile(Path(path).read_text(encoding="utf-8"), path, "exec"), names)
    except Exception as error:
        raise UserError(f"config file {path} fails with {type(error).__name__}: {error}") from error
    helpers = {
        key
        for key, value in names.items()
        if isinstance(value, types.ModuleType) or callable(value)
    }
    return {
        key: value
        for key, value in names.items()
        if key[0] != "_" and key not in helpers - set(FIELD_TYPES)
    }


def describe(config: Config, sources: dict[str, str]) -> str:
    """One line "key = value (source)" for each setting that was given, and for out_dir."""
    keys = [key for key, source in sources.items() if source != "default" or key == "out_dir"]
    return "\n".join(f"{key} = {getattr(config, key)!r} ({sources[key]})" for key in keys)


def help_text(doc: str) -> str:
    """The script's own text, then every field with its default and comment, read from this file."""
    source = (
        Path(__file__)
        .read_text(encoding="utf-8")
        .split("class Config:")[1]
        .split("def __post_init__")[0]
    )
    lines = [doc.strip(), "", "Settings and their defaults:"]
    for line in source.splitlines():
        if group := re.fullmatch(r"    # (.+)", line):
            lines += ["", f"{group[1]}:"]
        elif field := re.fullmatch(r"    (\w+): .+? = (.+?)  # (.+)", line):
            legal = (
                RANGES[field[1]][0] if field[1] in RANGES else " | ".join(CHOICES.get(field[1], ()))
            )
            lines.append(
                f"  --{field[1]}={field[2]}  # {'; '.join(filter(None, (legal, field[3])))}"
            )
    return "\n".join(
        [*lines, "", "An error is one line; with NANORAGEN_TRACEBACK=1 it shows where it arose."]
    )


def run_main(main: Callable[[list[str]], Any]) -> None:
    """Runs main(sys.argv[1:]); a user's mistake ends as one line on stderr and exit code 2, without a traceback."""
    try:
        main(sys.argv[1:])
    except UserError as error:  # of optional packages
        if os.environ.get("NANORAGEN_TRACEBACK") == "1":
            raise
        sentence = " ".join(str(error).split()) or type(error).__name__
        print("error:", sentence, file=sys.stderr)
        if (
            "TORCHELASTIC_ERROR_FILE" in os.environ
        ):  # torchrun adds a report of its own, which then ends with this
            record = {"message": f"error: {sentence}", "timestamp": int(time.time())}
            Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(
                json.dumps(record), encoding="utf-8"
            )
        sys.exit(2)


if {"-h", "--help"} & set(
    sys.argv[1:]
):  # here, because every script imports this file first: other imports take long
    doc, has_settings = (
        sys.modules["__main__"].__doc__ or "",
        Path(sys.argv[0]).stem not in ("view", "envs"),
    )
    print(help_text(doc) if has_settings else doc.strip())
    sys.exit()
