"""The settings of a run. The dataclass Config below holds every default.

A command takes any number of config files and --key=value overrides. They are read left to right,
and the last value of a setting wins. A config file is Python that assigns settings. Modules,
functions and classes in the file are ignored, and so are names that begin with "_". Any other name
must be a setting. tools/sft_config.py has further settings, for supervised learning.
"""

import ast
import difflib
import importlib.util
import math
import sys
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

CONFIG_FOLDER = Path(__file__).resolve().parent / "config"
PACKAGES = ("numpy", "torch", "transformers", "safetensors")  # a script ends if one is missing
# The settings of supervised learning have names that begin with SFT_PREFIX. Commands without these
# settings skip such names in a config file, so that one file serves all commands.
SFT_PREFIX = "sft_"


class UserError(ValueError):
    """A mistake in a setting, file, model or environment. The message tells what to change."""


# ---------- types of settings

LARGEST_NUMBER = 1_000_000_000  # default upper limit of a numeric setting


class Legal(NamedTuple):
    """The legal values of a numeric setting, in words and as a test.

    Numbers above `largest` would overflow, or need more memory or time than there is."""

    words: str
    test: Callable[[float], bool]
    largest: int = LARGEST_NUMBER


Natural = Annotated[int, Legal("0 or more", lambda x: x >= 0)]
SmallNatural = Annotated[int, Legal("0 or more", lambda x: x >= 0, largest=1024)]
# seed + rank must fit into the 32 bits of a vLLM engine's seed
Seed = Annotated[int, Legal("0 or more", lambda x: x >= 0, largest=2**31 - 1)]
Count = Annotated[int, Legal("1 or more", lambda x: x >= 1)]
SmallCount = Annotated[int, Legal("1 or more", lambda x: x >= 1, largest=1000)]
Rounds = Annotated[int, Legal("1 or more", lambda x: x >= 1, largest=100)]
Large = Annotated[int, Legal("1 or more", lambda x: x >= 1, largest=100_000)]
Tokens = Annotated[int, Legal("1 or more", lambda x: x >= 1, largest=10_000_000)]
Pairs = Annotated[int, Legal("2 or more", lambda x: x >= 2, largest=10_000)]
EvalSize = Annotated[int, Legal("between 1 and 256", lambda x: 1 <= x <= 256)]
NotNegative = Annotated[float, Legal("0 or more", lambda x: x >= 0)]
Positive = Annotated[float, Legal("more than 0", lambda x: x > 0)]
Seconds = Annotated[float, Legal("at least 0.001", lambda x: x >= 0.001)]
Temperature = Annotated[float, Legal("at least 0.01", lambda x: x >= 0.01)]
OrGreedy = Annotated[float, Legal("0, or at least 0.01", lambda x: x == 0 or x >= 0.01)]
Fraction = Annotated[float, Legal("between 0 and 1", lambda x: 0 <= x <= 1)]
BelowOne = Annotated[float, Legal("at least 0 and less than 1", lambda x: 0 <= x < 1)]
Penalty = Annotated[float, Legal("between -1000000 and 0", lambda x: -1e6 <= x <= 0)]
Cap = Annotated[float, Legal("1 or more", lambda x: x >= 1)]
DualClip = Annotated[float, Legal("0, or more than 1", lambda x: x == 0 or x > 1)]

# The estimators of `train.estimate_advantages`. Add the name of a new estimator to one of the
# tuples CRITIC_ESTIMATORS, GROUP_BASELINE_ESTIMATORS and OTHER_ESTIMATORS.
CRITIC_ESTIMATORS = ("gae", "bi_level_gae", "turn_ppo")  # they train a critic
# These estimators compare the scores inside a group.
GROUP_BASELINE_ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")
GIGPO_ESTIMATORS = ("grpo", "dr_grpo", "rloo")  # state_weight > 0 adds GiGPO to these estimators
OTHER_ESTIMATORS = ("reinforce_plus_plus",)  # they need neither a critic nor a group
# train.py whitens the advantages of these estimators: mean 0, standard deviation 1.
WHITENED_ESTIMATORS = (
    "gae",
    "bi_level_gae",
    "turn_ppo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
)
Estimator = Literal[(*CRITIC_ESTIMATORS, *GROUP_BASELINE_ESTIMATORS, *OTHER_ESTIMATORS)]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
RewardDensity = Literal["native", "sparse", "balanced", "dense", "plan"]
FilterStrategy = Literal["fraction", "count", "top_p", "top_p_softmax", "min_p"]
FilterBy = Literal["reward_std", "reward_mean", "entropy", "length"]
Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"]


# ---------- settings
# Each field has one comment, behind it or above it. --help prints these comments.


@dataclass(frozen=True)
class Config:
    """The settings. The defaults follow StarPO-S in the StarPO paper (arXiv 2504.20073)."""

    # -- run
    # folder of the run; '' = out/NAME, where NAME.py is the first config file. Each further file in
    # config/methods or config/envs adds its name: out/NAME-METHOD. If seed > 0, _s<seed> is added,
    # unless the command line gives out_dir. If no file or flag sets out_dir, tools.sft adds _sft
    out_dir: str = ""
    seed: Seed = 0  # every random stream of training derives from it
    num_iterations: Natural = 200  # rounds of rollout and update; 0 = only evaluate the model
    eval_every: Natural = 50  # iterations between evaluations; 0 = only at the start and the end
    save_every: Natural = 20  # iterations between checkpoints; 0 = only at the end
    keep_checkpoints: Count = 2  # number of checkpoints to keep; older ones are deleted
    grace_s: Seconds = 60.0  # seconds that an iteration may still take after a stop signal
    # iterations between records in trajectories.jsonl (up to 64 MB a run); 0 = none. If not 0, the
    # first and each evaluated iteration are recorded, too. A record has the first
    # ceil(32 / group_size) groups of an iteration
    sample_every: Natural = 2
    wandb: str = ""  # Weights & Biases project to log to; '' = none (docs/sharing.md)
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: cuda if torch sees a GPU
    # CPU threads; 0 = torch's choice. With 1, a run on a CPU is repeatable to the last bit
    num_threads: SmallNatural = 0

    # -- environment
    # name and options: 'name:key=value,...'. 'A + 2*B' draws A (probability 1/3) or B (2/3) for
    # each group. 'A @50 > B' is A for 50 iterations, then B
    env: str = "frozenlake"
    # environments to evaluate in, such as 'A + B'. '' = the environments of env; if env has a '>',
    # only the environments after the last '>'
    eval_env: str = ""
    observation: Literal["grid", "coord", "relations"] = "grid"  # how grid worlds show their state
    # True: a reply is <think>...</think><answer>...</answer>; False: only <answer>...</answer>
    think: bool = True
    max_turns: SmallCount = 5  # maximum number of replies in a trajectory
    actions_per_turn: SmallCount = 5  # maximum number of actions executed from one reply
    # maximum number of actions in a trajectory; >= actions_per_turn
    actions_per_traj: SmallCount = 10
    context_turns: Natural = 0  # turns that the policy sees, the present one included; 0 = all
    format_penalty: Penalty = -0.1  # added to the reward of a turn whose reply is not valid
    reward_density: RewardDensity = "native"  # how rewards are spread over turns
    # weight of a bonus in each turn. The bonus is max(0, S - F) / N. N is the number of facts about
    # the state. S is the number of facts that the thought states. F is the number of false
    # sentences in the thought
    think_reward: NotNegative = 0.0

    # -- model
    # Hugging Face id, folder, or 'tiny' (the pretrained model in base/)
    model: str = "Qwen/Qwen2.5-0.5B-Instruct"
    dtype: Dtype = "auto"  # type to compute in; auto: bfloat16 on cuda, float32 on cpu
    # rank of LoRA on the linear layers of all blocks, in policy and critic; 0 = off
    lora_rank: SmallNatural = 0
    compile: bool = False  # True: torch.compile the MLPs and norms of policy and critic

    # -- rollout
    engine: Literal["vllm", "torch"] = "vllm"  # sampler of responses; torch: plain PyTorch
    engine_dtype: Dtype = "auto"  # type that the engine computes in; auto: the same as dtype
    num_groups: Large = 8  # number of groups in an iteration (P)
    group_size: Large = 16  # number of trajectories in a group (N); they share one initial state
    # DAPO: maximum number of sampling rounds. Sampling ends earlier if num_groups groups have
    # variance in their scores
    sampling_rounds: Rounds = 1
    temperature: Temperature = 1.0  # temperature of sampling and of the log-probs in the loss
    max_response_tokens: Count = 400  # maximum number of tokens of one reply
    # maximum number of tokens of a trajectory, prompts included; >= max_response_tokens. If
    # context_turns > 0, this is the maximum for the prompt and reply of one turn. In this case, the
    # prompt repeats the turns that the policy sees
    max_context_tokens: Tokens = 3600
    max_running: Count = 128  # maximum number of trajectories that the engine works on at once
    step_timeout_s: Seconds = 60.0  # time limit for one turn in the environment, seconds
    # maximum fraction of trajectories that end in an error, in an iteration or an evaluation. Above
    # this fraction, the run stops. One bad initial state causes an error in every trajectory of its
    # group. So a value above 0 allows at least group_size errors in an iteration, and at least one
    # error in an evaluation. The run also stops if every group has an error
    max_error_frac: Fraction = 0.1

    # -- StarPO
    estimator: Estimator = "gae"  # advantage estimator; gae, bi_level_gae, turn_ppo train a critic
    # True: inside a group, compare returns-to-go of turns, not scores of trajectories
    turn_level: bool = False
    # GiGPO: weight of a second advantage. This advantage compares turns of a group that start in
    # the same state
    state_weight: NotNegative = 0.0
    gamma: Fraction = 1.0  # discount per token inside a turn
    lam: Fraction = 1.0  # lambda of GAE inside a turn
    turn_gamma: Fraction = 1.0  # discount from turn to turn
    turn_lam: Fraction = 1.0  # lambda of GAE from turn to turn
    # normalisation of the kept trajectories' scores
    reward_norm: Literal["none", "mean", "mean_std", "asym_clip"] = "none"
    # reward_norm computes mean and std of scores over a group, over all kept trajectories (batch),
    # or over all kept trajectories in one environment (env)
    reward_norm_over: Literal["group", "batch", "env"] = "group"
    filter_strategy: FilterStrategy = "fraction"  # rule by which the filter keeps groups
    # number that filter_strategy uses: the fraction (1.0 = no filter), the count, or the p of
    # top_p, top_p_softmax and min_p
    filter_keep: Positive = 0.25
    filter_by: FilterBy = "reward_std"  # the filter ranks groups by this value
    filter_smallest: bool = False  # True: keep the groups with the smallest values of filter_by
    filter_zero_std: bool = False  # True: also rank groups in which all scores are equal
    # advantages are multiplied by the fraction of kept groups (linear) or its square root (sqrt)
    filter_loss_scale: Literal["none", "linear", "sqrt"] = "none"
    clip_low: BelowOne = 0.2  # PPO's ratio is clipped from below at 1 - clip_low
    clip_high: Positive = 0.28  # PPO's ratio is clipped from above at 1 + clip_high
    # limits the loss of tokens with advantage A < 0 to dual_clip * |A|; 0 = off
    dual_clip: DualClip = 0.0
    aggregation: Aggregation = "token_mean"  # how token losses are averaged
    # True: the trainer computes the old log-probs; vLLM is not asked for log-probs
    recompute_old_logprobs: bool = False
    # TIS (truncated importance sampling): pi / pi_engine is capped at this number. pi and pi_engine
    # are a token's probabilities in policy and engine
    importance_cap: Cap = 2.0
    # IcePop: drop tokens whose pi / pi_engine is below this or above importance_cap; 0 = TIS
    importance_floor: Fraction = 0.0
    sequence_ratio: bool = False  # GSPO: clip the geometric mean of the ratios of a segment
    # drop a segment if the mean advantage of its tokens is below 0 and the geometric mean of their
    # pi / pi_engine is below this number; 0 = off
    sequence_mask: BelowOne = 0.0
    # sequence_ratio and sequence_mask work on segments ("sequences" in the papers). A segment is a
    # whole trajectory or one turn
    segment: Literal["trajectory", "turn"] = "trajectory"
    # bound of DPPO-TV, which replaces PPO's clip; 0 = PPO's clip. Tokens with advantage A > 0 are
    # dropped if pi - pi_engine is above this number. Tokens with A < 0 are dropped if
    # pi - pi_engine is below minus this number
    tv_bound: Fraction = 0.0
    observation_coef: NotNegative = 0.0  # ECHO: weight of the cross-entropy on observations
    # SimpleTIR: do not train on trajectories in which a turn executed no action
    drop_void: bool = False
    # the value loss clips each value to within this distance of the old value; reward units
    value_clip: Positive = 0.5
    value_coef: NotNegative = 0.5  # weight of the value loss
    entropy_coef: NotNegative = 0.001  # weight of the entropy bonus
    kl_coef: NotNegative = 0.0  # weight of KL against the initial policy; 0 = no reference model
    # loss: KL is a term of the loss; reward: KL is subtracted from each token's reward
    kl_in: Literal["loss", "reward"] = "loss"
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"  # k1 is for kl_in='reward' only
    mask_observations: bool = True  # False: train also on observations, as RAGEN v1 does

    # -- update
    batch_size: Count = 32  # trajectories per optimizer step; at most as many as the filter keeps
    num_epochs: SmallCount = 1  # passes over the kept trajectories of an iteration
    # maximum number of tokens in a forward and backward pass; >= max_context_tokens
    micro_batch_tokens: Tokens = 16384
    learning_rate: NotNegative = 1e-6  # AdamW, policy
    critic_lr: NotNegative = 1e-5  # AdamW, critic
    # both learning rates fall linearly towards this fraction of their first values; 1 = constant
    final_lr: Fraction = 1.0
    adam_beta1: BelowOne = 0.9  # policy and critic
    adam_beta2: BelowOne = 0.999  # policy and critic
    adam_eps: Positive = 1e-8  # policy and critic
    weight_decay: NotNegative = 0.01  # policy and critic
    grad_clip: Positive = 1.0  # largest gradient norm
    # stop after this many bad optimizer steps in a row. A step is bad if a loss, a metric or the
    # gradient is not finite. In float16, a step that only lowers the loss scale is not bad
    max_bad_steps: Count = 5

    # -- evaluation
    # eval: 256 prompts for reported results; heldout: 256 other prompts, for choosing settings
    eval_split: Literal["eval", "heldout"] = "eval"
    eval_size: EvalSize = 256  # number of prompts from eval_split; one trajectory each
    eval_temperature: OrGreedy = 0.5  # 0 = greedy decoding

    # -- diagnostics
    # iterations between measurements of the mutual information of thoughts and prompts; 0 = never
    collapse_every: Natural = 0
    # a measurement takes two samples of thoughts: one from first turns, one from random turns. This
    # is the maximum number of thoughts in each sample
    collapse_pairs: Pairs = 64
    # True: stop if rewards lose their variance, the filter keeps nothing, or success stays near 0
    early_stop: bool = False

    def __post_init__(self) -> None:
        self._check_fields()
        self._check_rollout_size()
        self._check_filter()
        self._check_estimator()
        self._check_batch_size()

    def _check_fields(self) -> None:
        choices = choices_of(type(self))
        ranges = ranges_of(type(self))
        for key, value in vars(self).items():
            if key in choices:
                _check_choice(key, value, choices[key])
            if key in ranges:
                _check_number(key, value, ranges[key])
        for low, high, reason in ORDERED:
            if getattr(self, low) > getattr(self, high):
                raise UserError(
                    f"{low} ({getattr(self, low)}) must not exceed {high} "
                    f"({getattr(self, high)}): {reason}"
                )

    def _check_rollout_size(self) -> None:
        num_trajectories = self.num_groups * self.group_size
        if num_trajectories > MAX_TRAJECTORIES:
            raise UserError(
                f"num_groups ({self.num_groups}) * group_size ({self.group_size}) are "
                f"{num_trajectories:,} trajectories in an iteration; at most "
                f"{MAX_TRAJECTORIES:,} fit into memory"
            )

    def _check_filter(self) -> None:
        strategy = self.filter_strategy
        if self.filter_by == "entropy" and not self.engine_gives_logprobs():
            raise UserError(
                "filter_by='entropy' needs the log-probs of the engine, and with "
                "recompute_old_logprobs=True vLLM is not asked for them; choose another "
                "filter_by, recompute_old_logprobs=False, or engine=torch"
            )
        keep = self.filter_keep
        if strategy == "count" and not 1 <= keep <= self.num_groups:
            raise UserError(
                f"filter_keep must be 1 to {self.num_groups} with filter_strategy=count, got {keep}"
            )
        if strategy != "count" and keep > 1:
            raise UserError(
                f"filter_keep must be at most 1 with filter_strategy={strategy}, got {keep}"
            )
        ranks_from_largest = strategy not in ("fraction", "count")
        if ranks_from_largest and (self.filter_smallest or self.filter_by == "reward_mean"):
            raise UserError(
                f"filter_strategy {strategy!r} ranks values >= 0, the largest first; "
                "filter_smallest and filter_by='reward_mean' need fraction or count"
            )

    def _check_estimator(self) -> None:
        if self.kl_coef and self.kl_in == "loss" and self.kl_estimator == "k1":
            raise UserError(
                "kl_estimator='k1' has an expected gradient of 0 in the loss; "
                "use k2, k3, or kl_in='reward'"
            )
        if self.collapse_every and not self.think:
            raise UserError(
                "collapse metrics compare thoughts, but think is False; "
                "set think=True or collapse_every=0"
            )
        has_group_baseline = self.estimator in GROUP_BASELINE_ESTIMATORS
        if self.turn_level and not has_group_baseline:
            names = ", ".join(GROUP_BASELINE_ESTIMATORS)
            raise UserError(f"turn_level is for estimators {names}; got {self.estimator!r}")
        if self.state_weight and self.estimator not in GIGPO_ESTIMATORS:
            names = ", ".join(GIGPO_ESTIMATORS)
            raise UserError(f"state_weight is for estimators {names}; got {self.estimator!r}")
        normalizes_groups = self.reward_norm != "none" and self.reward_norm_over == "group"
        cure = ""
        if has_group_baseline:
            cure = f"an estimator other than {self.estimator!r}, such as --estimator=gae"
        elif normalizes_groups:
            cure = "--reward_norm_over=batch"
        elif self.sampling_rounds > 1:
            cure = "--sampling_rounds=1"
        if self.group_size == 1 and cure:
            raise UserError(
                "group_size=1 leaves no other member to compare scores with; use --group_size=2 or "
                f"more, or {cure}"
            )

    def _check_batch_size(self) -> None:
        kept = self.most_kept()
        unfiltered = self.filter_strategy == "fraction" and self.filter_keep == 1
        if self.group_size == 1 and not (unfiltered or self.filter_zero_std):
            raise UserError(
                "group_size=1 gives groups without variance, and the filter drops them all; use "
                "--group_size=2 or more, or --filter_keep=1.0 with --filter_strategy=fraction, "
                "which keeps all groups"
            )
        if self.batch_size > kept:
            raise UserError(
                f"batch_size ({self.batch_size}) is more than the {kept} trajectories kept "
                f"(filter_keep {self.filter_keep} of num_groups {self.num_groups}, "
                f"group_size {self.group_size}); use --batch_size={kept} or less, or keep more"
            )

    def most_kept(self) -> int:
        """Return the largest number of trajectories that the filter can keep in an iteration."""
        if self.filter_strategy == "count":
            kept_groups = self.filter_keep
        elif self.filter_strategy == "fraction":
            kept_groups = self.filter_keep * self.num_groups
        else:
            kept_groups = self.num_groups
        # + 1e-9, because 0.29 * 100 is 28.999999999999996
        return max(1, int(kept_groups + 1e-9)) * self.group_size

    def engine_gives_logprobs(self) -> bool:
        """Whether the engine returns log-probs with its samples.

        If recompute_old_logprobs is True, vLLM is not asked for log-probs, because they cost host
        time."""
        return self.engine == "torch" or not self.recompute_old_logprobs

    def trainer_gives_old_logprobs(self) -> bool:
        """Whether the trainer, not the engine, computes the old log-probs.

        If mask_observations is False, the trainer must compute the old log-probs, because the
        engine has no log-probs of observations. If a KL term is in the reward, the trainer must
        compute the old log-probs, too. This KL compares the old log-probs with the trainer's
        log-probs of the initial policy. If the old log-probs came from the engine, the KL would
        include the difference between engine and trainer.
        """
        return self.recompute_old_logprobs or not self.mask_observations or self.has_kl_in_reward()

    def has_kl_in_reward(self) -> bool:
        """Whether a KL term is subtracted from the rewards."""
        return self.kl_coef > 0 and self.kl_in == "reward"


def choices_of(kind: type[Config]) -> dict[str, tuple[str, ...]]:
    """Return the legal values of each setting that takes one of several words.

    Args: kind: the class of the settings."""
    literals = [field for field in fields(kind) if get_origin(field.type) is Literal]
    return {field.name: get_args(field.type) for field in literals}


def ranges_of(kind: type[Config]) -> dict[str, Legal]:
    """Return the legal values of each numeric setting."""
    numbers = [field for field in fields(kind) if get_origin(field.type) is Annotated]
    return {field.name: get_args(field.type)[1] for field in numbers}


def types_of(kind: type[Config]) -> dict[str, type]:
    """Return the type of each setting: str, bool, int or float."""
    types_by_key = {}
    for field in fields(kind):
        types_by_key[field.name] = field.type
        if get_origin(field.type) is Literal:
            types_by_key[field.name] = str
        if get_origin(field.type) is Annotated:
            types_by_key[field.name] = get_args(field.type)[0]
    return types_by_key


RENAMED_SETTINGS = {"sequence": "segment"}  # maps the old name of a setting to the present name
# Maps a wrong name to the setting that is meant, for the hint in an error message.
OTHER_NAMES = {
    "lr": "learning_rate",
    "epochs": "num_epochs",
    "steps": "num_iterations",
    **RENAMED_SETTINGS,
}
MAX_TRAJECTORIES = 100_000  # in an iteration

# In each row (A, B, reason), setting A must not exceed setting B.
ORDERED = [
    ("actions_per_turn", "actions_per_traj", "a trajectory must have room for one full turn"),
    ("max_response_tokens", "max_context_tokens", "a trajectory holds its prompts and its replies"),
    ("max_context_tokens", "micro_batch_tokens", "a trajectory must fit into one micro-batch"),
]


def _check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{key} must be one of {', '.join(choices)}, got {value!r}")


def _check_number(key: str, value: float, legal: Legal) -> None:
    if not math.isfinite(value) or not legal.test(value):
        raise UserError(f"{key} must be {legal.words}, got {value}")
    if value > legal.largest:
        raise UserError(f"{key} must be at most {legal.largest:,}, got {value}")


# ---------- reading settings


def load_config(
    argv: list[str],
    *,
    extra: dict | None = None,
    base: Config | None = None,
    kind: type[Config] = Config,
) -> tuple[Config, dict, dict]:
    """Read config files and --key=value overrides, left to right. The last value wins.

    In a config file, names that begin with "sft_" are ignored, unless the class of the settings is
    `tools.sft_config.SftConfig`.

    Args:
        argv: the arguments after the script name.
        extra: the script's own options and their defaults. Only the command line can set them.
        base: settings that replace the defaults. The result has the class of `base`.
        kind: the class of the settings if there is no `base`.
    Returns: the checked settings, a value for each key of `extra`, and the source of each setting.
        A source is "command line", the path of a file, or "default" (also for values of `base`).
    Raises: UserError for a wrong argument, file or value.
    >>> config, extras, sources = load_config(["--seed=3", "--player=me"], extra={"player": ""})
    >>> config.seed, extras, sources["seed"], config.out_dir
    (3, {'player': 'me'}, 'command line', 'out/default_s3')
    """
    extras = dict(extra or {})
    extra_types = {key: type(value) for key, value in extras.items()}
    kind = type(base) if base else kind
    own_types = types_of(kind)
    known = {**own_types, **extra_types}
    sources = dict.fromkeys(own_types, "default")
    values: dict[str, Any] = asdict(base) if base else {}
    files = []
    for position, arg in enumerate(argv):
        if arg.startswith("--") and "=" in arg:
            key, value = read_option(arg, known)
            if key in extra_types:
                extras[key] = value
            else:
                values[key] = value
                sources[key] = "command line"
        elif arg.endswith(".py") and not arg.startswith("-"):
            files.append(arg)
            for key, value in read_config_file(arg, own_types).items():
                values[key] = value
                sources[key] = arg
        else:
            raise _wrong_argument(arg, argv[position + 1 :], known)
    config = kind(**values)
    out_dir = config.out_dir or default_folder(files)
    names_out_dir = config.out_dir and sources["out_dir"] == "command line"
    if config.seed and not base and not names_out_dir:
        out_dir += f"_s{config.seed}"  # so that each seed has its own folder
    return replace(config, out_dir=out_dir), extras, sources


def default_folder(files: list[str]) -> str:
    """Return the output folder of a run that sets no out_dir, without the ending _s<seed> or _sft.

    The first file gives the name. Each later file in config/methods or config/envs adds its name.

    Args: files: the config files on the command line.
    >>> default_folder(["config/bandit_grpo.py", "config/models/tiny.py", "config/methods/rloo.py"])
    'out/bandit_grpo-rloo'
    """
    names = [Path(file).stem for file in files[:1]] or ["default"]
    for file in map(Path, files[1:]):
        folder = file.resolve().parent
        if folder in (CONFIG_FOLDER / "methods", CONFIG_FOLDER / "envs"):
            names.append(file.stem)
    return f"out/{'-'.join(names)}"


def _wrong_argument(arg: str, following: list[str], types_by_key: dict[str, type]) -> UserError:
    """Return the error for an argument that is neither a config file nor --key=value.

    Args:
        following: the arguments after `arg`."""
    is_missing = "/" in arg and not Path(arg).exists()
    hint = "; nor is there such a folder" if is_missing else ""
    example = "such as --seed=1"
    if types_by_key.get(arg[2:]) is bool:
        example = f"such as {arg}=True"
    if arg.startswith("--") and following and not following[0].startswith("--"):  # --seed 1
        example = f"with an equals sign: {arg}={following[0]}"
    return UserError(
        f"argument {arg!r} is neither a config/name.py file nor --key=value, {example}{hint}"
    )


def read_option(arg: str, types_by_key: dict[str, type]) -> tuple[str, Any]:
    """Read --key=value. Returns: the key, and the value converted to the type of the setting."""
    key, text = arg.removeprefix("--").split("=", 1)
    wanted = lookup_type(key, types_by_key, "command line")
    return key, check_type(key, parse_text(text, wanted), wanted, "command line")


def read_config_file(path: str, types_by_key: dict[str, type]) -> dict[str, Any]:
    """Run a config file and return the settings that it assigns.

    Names for which `is_only_for_sft` returns True are left out."""
    if not Path(path).is_file():
        paths_by_name = {found.name: found for found in CONFIG_FOLDER.glob("**/*.py")}
        name = Path(path).name
        near = [name] if name in paths_by_name else difflib.get_close_matches(name, paths_by_name)
        places = [str(paths_by_name[key].relative_to(CONFIG_FOLDER.parent)) for key in near]
        hint = f"did you mean {' or '.join(places)}?" if near else "no file in config/ is similar"
        raise UserError(f"config file {path} does not exist: {hint}")
    names: dict[str, Any] = {"__file__": path, "__name__": "config"}
    try:
        exec(compile(Path(path).read_text(encoding="utf-8"), path, "exec"), names)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a file may raise anything, even SystemExit
        raise UserError(f"config file {path} fails with {type(error).__name__}: {error}") from error
    settings = {}
    for key, value in names.items():
        is_helper = isinstance(value, types.ModuleType) or callable(value)
        if key.startswith("_") or (is_helper and key not in types_by_key):
            continue
        if is_only_for_sft(key, types_by_key):
            continue
        settings[key] = check_type(key, value, lookup_type(key, types_by_key, path), path)
    return settings


def is_only_for_sft(key: str, types_by_key: dict[str, type]) -> bool:
    """Whether `key` begins with SFT_PREFIX but the command has no settings with this prefix.

    Args: types_by_key: the settings of the command."""
    has_sft_settings = any(name.startswith(SFT_PREFIX) for name in types_by_key)
    return key.startswith(SFT_PREFIX) and not has_sft_settings


def parse_text(text: str, wanted: type) -> Any:
    """Return the value of `text`, read as a Python literal.

    If `wanted` is str, or if `text` is no Python literal, return `text` itself."""
    try:
        return text if wanted is str else ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def check_type(key: str, value: Any, wanted: type, source: str) -> Any:
    """Return `value` if its type is `wanted`. If `wanted` is float, an int is converted.

    Args: source: where the value was given, for the error message.
    Raises: UserError for any other type, and for an integer of more than 1000 bits."""
    if isinstance(value, int) and value.bit_length() > 1000:  # it may be too large for a float
        raise UserError(f"{key} from {source} is an integer of {value.bit_length()} bits")
    if type(value) is wanted:  # not isinstance, because a bool must not pass as an int
        return value
    if wanted is float and type(value) is int:
        return float(value)
    name = "bool (True or False)" if wanted is bool else wanted.__name__
    raise UserError(f"{key} must be {name}, got {value!r} ({type(value).__name__}) from {source}")


def lookup_type(key: str, types_by_key: dict[str, type], source: str) -> type:
    """Return the type of a setting.

    Raises: UserError for an unknown key; the error names similar keys, if there are any."""
    if key in types_by_key:
        return types_by_key[key]
    if key in ("top_p", "top_k"):
        raise UserError(
            f"{key} from {source} is refused: samples would come from a cut distribution, but the "
            "loss takes log-probs of the full distribution; use temperature"
        )
    if is_only_for_sft(key, types_by_key):
        raise UserError(
            f"{key} from {source}: names that begin with {SFT_PREFIX} are for tools.sft; leave it "
            "out"
        )
    alike = difflib.get_close_matches(OTHER_NAMES.get(key, key), types_by_key, n=3)
    near = " or ".join(alike)
    hint = f"did you mean {near}?" if near else "no key is similar; see --help"
    raise UserError(f"unknown key {key!r} from {source}: {hint}")


# ---------- the installed packages


def check_activated() -> None:
    """If this Python lacks a package of PACKAGES, print one sentence and end the process."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not missing:
        return
    print(
        f"error: {sys.executable} does not have {', '.join(missing)}; run "
        "`source .venv/bin/activate` first (`make train` creates .venv), or "
        "`pip install -r requirements-cpu.txt`",
        file=sys.stderr,
    )
    sys.exit(2)


# Scripts import this file before any package. So if a package is missing, `check_activated` prints
# one sentence and ends the process, before an import fails with a traceback.
check_activated()
