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
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Config:
    """All settings of a run, with the defaults of the StarPO paper (arXiv 2504.20073) where it gives one."""

    # run
    out_dir: str = ""  # folder for metrics, samples, checkpoints; '' = out/<first config file>, plus _s<seed> if not 0
    seed: int = 0  # >= 0; every random stream of the run derives from it
    num_iterations: int = 200  # >= 0; rounds of rollout and update; 0 = evaluate the starting model only
    eval_every: int = 10  # iterations between evaluations; 0 = only at the start and the end
    save_every: int = 10  # iterations between checkpoints; 0 = only at the end
    keep_checkpoints: int = 2  # >= 1; the last ones that are kept
    grace_s: float = 60.0  # > 0; seconds that an iteration under way has, after a signal, to end and be saved
    num_samples: int = 4  # >= 0; trajectories written per evaluated iteration, whole groups first
    device: str = "auto"  # auto (cuda if there is one) | cpu | cuda
    num_threads: int = 0  # CPU threads; 0 = torch's choice; 1 = repeatable to the last bit
    # environment
    env: str = "frozenlake"  # 'name:key=value,...'; 'A + 2*B' mixes groups 1:2; 'A @50 > B' is A up to iteration 50
    eval_env: str = ""  # environments that are scored, 'A + B'; '' = those of the last stage of env
    observation: str = "grid"  # how the state is written: grid | coord | relations
    think: bool = True  # True: the reply is <think>...</think><answer>...</answer>; False: only <answer>...</answer>
    max_turns: int = 5  # >= 1; K, replies per trajectory
    actions_per_turn: int = 5  # >= 1; actions executed from one reply
    actions_per_traj: int = 10  # >= actions_per_turn; actions executed in one trajectory
    context_turns: int = 0  # >= 0; turns that a reply sees, its own included; 0 = all, 1 = single-turn
    format_penalty: float = -0.1  # <= 0; added to the reward of a malformed turn
    reward_density: str = "native"  # what a turn earns: native (the environment's) | sparse | balanced | dense | plan
    think_reward: float = 0.0  # >= 0; added to a turn's reward for each share of the true facts that its thought states
    # model
    model: str = "Qwen/Qwen2.5-0.5B-Instruct"  # Hugging Face id, folder, 'base' (ours, tiny) or 'tiny' (untrained)
    tiny_shape: str = "4x96"  # of model='tiny': layers x width
    dtype: str = "auto"  # compute type: auto (bfloat16 on cuda, float32 on cpu) | float32 | bfloat16
    lora_rank: int = 0  # >= 0; of LoRA on all linear layers of policy and critic; 0 = all weights are trained
    compile: bool = False  # True: torch.compile the MLP and the norms of every block, packs padded to one size
    # rollout
    engine: str = "vllm"  # what samples: vllm | torch (in plain PyTorch, needs no vLLM)
    num_groups: int = 8  # >= 1; P, initial states per iteration
    group_size: int = 16  # >= 1; N, trajectories per initial state
    temperature: float = 1.0  # > 0; of sampling, and of the log-probabilities in the loss
    max_response_tokens: int = 400  # >= 1; tokens of one reply
    max_context_tokens: int = 3600  # >= max_response_tokens; tokens of one trajectory, prompts and replies
    max_running: int = 128  # >= 1; trajectories decoded at once
    step_timeout_s: float = 60.0  # > 0; seconds that an environment has for one step
    max_error_frac: float = 0.1  # 0..1; trajectories that may end in an error of their environment before the run stops
    # StarPO
    estimator: str = "gae"  # gae | bi_level_gae (critic); grpo | dr_grpo | rloo | reinforce_plus_plus[_baseline]
    turn_level: bool = False  # True: without critic, advantages of turns from returns-to-go, not of trajectories
    gamma: float = 1.0  # 0..1; discount per token inside a turn
    lam: float = 1.0  # 0..1; lambda of GAE inside a turn
    turn_gamma: float = 1.0  # 0..1; discount from turn to turn
    turn_lam: float = 1.0  # 0..1; lambda of GAE from turn to turn
    reward_norm: str = "none"  # of scores, after the filter has seen them: none | mean | mean_std | asym_clip
    reward_norm_over: str = "group"  # group | batch | env
    filter_strategy: str = "fraction"  # of groups that are kept: fraction | count | top_p | top_p_softmax | min_p
    filter_keep: float = 0.25  # > 0; what filter_strategy needs: a fraction (1.0 = no filter), a count, or p
    filter_by: str = "reward_std"  # of a group: reward_std | reward_mean | entropy | length
    filter_smallest: bool = False  # True: the smallest values are kept, not the largest
    filter_zero_std: bool = False  # True: groups without variance of rewards may be kept
    filter_loss_scale: str = "none"  # advantages times the kept share of groups, or its root: none | linear | sqrt
    clip_low: float = 0.2  # >= 0, < 1; the ratio is clipped to [1 - clip_low, 1 + clip_high]
    clip_high: float = 0.28  # > 0; see clip_low
    dual_clip: float = 0.0  # 0 or > 1; bounds the loss of tokens with A < 0 to dual_clip * |A|; 0 = no bound
    aggregation: str = "token_mean"  # of the policy: token_mean | seq_mean_token_mean | seq_mean_token_sum | constant
    recompute_old_logprobs: bool = False  # True: old log-probs from a forward of the trainer, not from the engine
    importance_cap: float = 2.0  # >= 1; weights pi / pi_engine of tokens are truncated here (TIS)
    value_clip: float = 0.5  # > 0; new values stay this close to the old ones, reward units
    value_coef: float = 0.5  # >= 0; weight of the value loss
    entropy_coef: float = 0.001  # >= 0; weight of the entropy bonus
    kl_coef: float = 0.0  # >= 0; weight of KL against the frozen start; 0 = no reference model
    kl_in: str = "loss"  # loss | reward (of every token)
    kl_estimator: str = "k3"  # k1 (in the reward only) | k2 | k3
    mask_observations: bool = True  # False: the mask of the paper's own code, which trains on the environment's text
    # update
    batch_size: int = 32  # E, trajectories per optimizer step; at most what the filter can keep
    num_epochs: int = 1  # >= 1; passes over the kept trajectories of an iteration
    micro_batch_tokens: int = 16384  # >= max_context_tokens; tokens of one forward and backward pass
    learning_rate: float = 1e-6  # >= 0; AdamW, policy
    critic_lr: float = 1e-5  # >= 0; AdamW, critic
    adam_beta1: float = 0.9  # >= 0, < 1; policy and critic
    adam_beta2: float = 0.999  # >= 0, < 1; policy and critic
    weight_decay: float = 0.01  # >= 0; policy and critic
    grad_clip: float = 1.0  # > 0; largest gradient norm
    max_bad_steps: int = 5  # >= 1; optimizer steps in a row with a non-finite gradient before the run stops
    # evaluation
    eval_split: str = "eval"  # eval: the 256 prompts that are reported; heldout: 256 others, to choose settings on
    eval_size: int = 256  # 1..256; initial states that training never draws, one trajectory each
    eval_temperature: float = 0.5  # >= 0; 0 = greedy
    # diagnostics
    collapse_every: int = 0  # >= 0; iterations between measurements of mutual information; 0 = never
    collapse_pairs: int = 64  # >= 2; thoughts that are compared in one of them
    early_stop: bool = False  # True: end when rewards lose their variance, the filter keeps nothing or evaluation is 0
    # supervised learning (sft.py)
    sft_steps: int = 0  # >= 0; optimizer steps of sft.py; train.py makes none
    sft_batch_size: int = 16  # >= 1; demonstrations per step; in pretraining packs of micro_batch_tokens
    sft_lr: float = 1e-5  # >= 0; AdamW
    sft_muon_lr: float = 0.0  # >= 0; Muon, for the matrices; 0 = AdamW for all parameters
    sft_actions: int = 3  # >= 1; most actions that a demonstration commits a turn, actions_per_turn at most
    sft_file: str = ""  # demonstrations to read, over and over (sft.py --export=PATH); '' = new ones for every step
    sft_noise: float = 0.0  # 0..1; share of the turns of demonstrations with random actions

    def __post_init__(self) -> None:
        for key, legal in CHOICES.items():
            if getattr(self, key) not in legal:
                raise ValueError(f"{key} must be one of {', '.join(legal)}, got {getattr(self, key)!r}")
        for wanted, (is_legal, keys) in RANGES.items():
            for key in keys.split():
                if not (math.isfinite(getattr(self, key)) and is_legal(getattr(self, key))):
                    raise ValueError(f"{key} must be {wanted}, got {getattr(self, key)}")
        for low, high, reason in ORDERED:
            if getattr(self, low) > getattr(self, high):
                pair = f"{low} ({getattr(self, low)}) must not exceed {high} ({getattr(self, high)})"
                raise ValueError(f"{pair}: {reason}")
        counts, by_mass = self.filter_strategy == "count", self.filter_strategy not in ("fraction", "count")
        if not counts <= self.filter_keep <= (self.num_groups if counts else 1):
            wanted = f"must be {f'1 to {self.num_groups}' if counts else 'at most 1'} for {self.filter_strategy}"
            raise ValueError(f"filter_keep {wanted}, got {self.filter_keep}")
        if by_mass and (self.filter_smallest or self.filter_by == "reward_mean"):
            raise ValueError(f"filter_strategy {self.filter_strategy!r} adds up values >= 0 from the largest: "
                             "filter_smallest and filter_by='reward_mean' are for fraction and count")  # fmt: skip
        if self.kl_coef and self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ValueError("kl_estimator='k1' has no expected gradient in the loss; use k2, k3, or kl_in='reward'")
        unfiltered = self.filter_strategy == "fraction" and self.filter_keep == 1
        kept = self.filter_keep if counts else (1 if by_mass else self.filter_keep) * self.num_groups
        kept = max(1, int(kept + 1e-9)) * self.group_size
        kept *= self.group_size > 1 or unfiltered or self.filter_zero_std  # a group of one has no variance
        if self.batch_size > kept:
            product = f"filter_keep {self.filter_keep} of num_groups {self.num_groups}, group_size {self.group_size}"
            raise ValueError(f"batch_size ({self.batch_size}) is more than the {kept} trajectories kept ({product})")


FIELD_TYPES: dict[str, type] = {field.name: field.type for field in fields(Config)}
REFUSED = dict.fromkeys(
    ("top_p", "top_k"),
    "sampling from a cut distribution would make the log-probs in the loss those of another policy; use temperature",
)
CHOICES = {
    "device": ("auto", "cpu", "cuda"),
    "observation": ("grid", "coord", "relations"),
    "dtype": ("auto", "float32", "bfloat16"),
    "engine": ("vllm", "torch"),
    "reward_density": ("native", "sparse", "balanced", "dense", "plan"),
    "estimator": ("gae", "bi_level_gae", "grpo", "dr_grpo", "rloo",
                  "reinforce_plus_plus", "reinforce_plus_plus_baseline"),  # fmt: skip
    "reward_norm": ("none", "mean", "mean_std", "asym_clip"),
    "reward_norm_over": ("group", "batch", "env"),
    "filter_strategy": ("fraction", "count", "top_p", "top_p_softmax", "min_p"),
    "filter_by": ("reward_std", "reward_mean", "entropy", "length"),
    "filter_loss_scale": ("none", "linear", "sqrt"),
    "aggregation": ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"),
    "kl_in": ("loss", "reward"),
    "kl_estimator": ("k1", "k2", "k3"),
    "eval_split": ("eval", "heldout"),
}
COUNTS = """max_turns actions_per_turn actions_per_traj num_groups group_size max_response_tokens max_context_tokens
    max_running importance_cap batch_size num_epochs micro_batch_tokens max_bad_steps sft_batch_size
    sft_actions keep_checkpoints"""
NOT_NEGATIVE = """seed num_iterations eval_every save_every num_samples num_threads value_coef entropy_coef kl_coef
    learning_rate critic_lr weight_decay eval_temperature sft_steps sft_lr sft_muon_lr
    context_turns think_reward lora_rank collapse_every"""
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {  # every numeric field is in exactly one row
    "1 or more": (lambda x: x >= 1, COUNTS),  # importance_cap among them: below 1 it would bias on-policy tokens
    "0 or more": (lambda x: x >= 0, NOT_NEGATIVE),
    "0 or less": (lambda x: x <= 0, "format_penalty"),
    "more than 0": (lambda x: x > 0, "temperature clip_high value_clip grad_clip filter_keep grace_s step_timeout_s"),
    "between 0 and 1": (lambda x: 0 <= x <= 1, "gamma lam turn_gamma turn_lam sft_noise max_error_frac"),
    "at least 0 and less than 1": (lambda x: 0 <= x < 1, "clip_low adam_beta1 adam_beta2"),
    "0, or more than 1": (lambda x: x == 0 or x > 1, "dual_clip"),
    "2 or more": (lambda x: x >= 2, "collapse_pairs"),
    "between 1 and 256": (lambda x: 1 <= x <= 256, "eval_size"),
}
MAY_CHANGE = {  # when a run is continued
    "num_iterations", "eval_every", "save_every", "num_samples", "out_dir", "keep_checkpoints", "grace_s",
    "step_timeout_s", "max_error_frac",
}  # fmt: skip
ORDERED = [
    ("actions_per_turn", "actions_per_traj", "a trajectory must have room for one full turn"),
    ("max_response_tokens", "max_context_tokens", "a trajectory holds its prompts and its replies"),
    ("max_context_tokens", "micro_batch_tokens", "a trajectory must fit into one micro-batch"),
]


def load_config(argv: list[str], *, extra: dict | None = None, base: Config | None = None) -> tuple[Config, dict, dict]:
    """Reads config files and --key=value overrides, left to right, last wins.

    Args: argv: what follows the script name, such as ["config/frozenlake_ppo.py", "--seed=1"]; extra: a script's own
        options with their defaults, legal on the command line only; base: settings in place of the defaults.
    Returns: the checked settings; one value per key of extra; for every field of Config where its value comes from,
        "default" (or base), a file, or "command line".
    Raises ValueError or TypeError with the key, what is wanted, what was given, and by which source.
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
            wanted = _type_of(key, {**FIELD_TYPES, **extra_types}, "command line")
            value = check_type(key, parse_text(text, wanted), wanted, "command line")
            (extras if key in extra_types else values)[key] = value
            config_sources |= {key: "command line"} if key in FIELD_TYPES else {}
        elif arg.endswith(".py") and not arg.startswith("-"):
            files.append(arg)
            for key, value in _read_file(arg).items():
                values[key] = check_type(key, value, _type_of(key, FIELD_TYPES, arg), arg)
                config_sources[key] = arg
        else:
            raise ValueError(f"argument {arg!r} is neither a config/name.py file nor --key=value, such as --seed=1")
    config = Config(**values)  # checks the ranges
    out_dir = config.out_dir or f"out/{Path(files[0]).stem if files else 'default'}"
    if config.seed and not base and not (config.out_dir and config_sources["out_dir"] == "command line"):
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
    raise TypeError(f"{key} wants {name}, got {value!r} ({type(value).__name__}) from {source}")


def _type_of(key: str, known_types: dict[str, Any], source: str) -> Any:
    if key in known_types:
        return known_types[key]
    if key in REFUSED:
        raise ValueError(f"{key} from {source} is refused: {REFUSED[key]}")
    near = difflib.get_close_matches(key, known_types, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the keys are {', '.join(known_types)}"
    raise ValueError(f"unknown key {key!r} from {source}: {hint}")


def _read_file(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise ValueError(f"config file {path} does not exist")
    names: dict[str, Any] = {"__file__": path, "__name__": "config"}
    try:
        exec(compile(Path(path).read_text(encoding="utf-8"), path, "exec"), names)
    except Exception as error:
        raise ValueError(f"config file {path} fails with {type(error).__name__}: {error}") from error
    names = {key: value for key, value in names.items() if not key.startswith("_")}
    helpers = {key for key, value in names.items() if isinstance(value, types.ModuleType) or callable(value)}
    return {key: value for key, value in names.items() if key not in helpers - set(FIELD_TYPES)}


def describe(config: Config, sources: dict[str, str]) -> str:
    """One line "key = value (source)" for each setting that was given, and for out_dir."""
    keys = [key for key, source in sources.items() if source != "default" or key == "out_dir"]
    return "\n".join(f"{key} = {getattr(config, key)!r} ({sources[key]})" for key in keys)


def save_config(config: Config, sources: dict[str, str], out_dir: str | Path) -> Path:
    """Writes out_dir/config.json: the settings, their sources, the git commit and the command; returns its path."""
    path = Path(out_dir, "config.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"config": asdict(config), "sources": sources, "git_commit": git_commit(), "launch": sys.argv}
    write_whole(path, json.dumps(record, indent=1) + "\n")
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there with all of the text or not at all: beside, synced, then renamed."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load_saved(path: str | Path) -> Config:
    """Reads back a config.json (or the one in a folder); fields that it lacks take their defaults."""
    path = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        saved = dict(json.loads(path.read_text(encoding="utf-8"))["config"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a saved config ({type(error).__name__}: {error})") from error
    return Config(**{k: check_type(k, v, _type_of(k, FIELD_TYPES, str(path)), str(path)) for k, v in saved.items()})


def check_out_dir(config: Config, *, take: bool = False) -> None:
    """Raises: ValueError unless out_dir is free, or belongs to a run, which then continues: one with these settings, or
    with `take` any."""
    out_dir = Path(config.out_dir)
    if (out_dir / "config.json").is_file():
        saved, wanted = asdict(load_saved(out_dir)), asdict(config)
        changed = [k for k in wanted if wanted[k] != saved[k] and k not in MAY_CHANGE]
        if changed and not take:
            differences = ", ".join(f"{k} is {saved[k]!r} there and {wanted[k]!r} here" for k in changed)
            advice = "give another --out_dir, or --take_config=True to go on with these"
            raise ValueError(f"out_dir={config.out_dir!r} holds another run ({differences}); {advice}")
    elif out_dir.is_dir() and any(path.name != "lock" for path in out_dir.iterdir()):
        raise ValueError(f"out_dir={config.out_dir!r} is not empty and holds no run; give another --out_dir")


def git_commit() -> str | None:
    """Commit of this code, with "-dirty" if tracked files differ from it; None without git or a repository."""
    try:
        git = ["git", "-C", str(Path(__file__).resolve().parent)]
        commit = subprocess.check_output([*git, "rev-parse", "HEAD"], stderr=subprocess.DEVNULL, text=True).strip()
        changes = subprocess.check_output([*git, "status", "--porcelain", "--untracked-files=no"])
        return commit + ("-dirty" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def help_text(doc: str) -> str:
    """The script's own text, then every field with its default and comment, read from this file."""
    source = Path(__file__).read_text(encoding="utf-8").split("class Config:")[1].split("def __post_init__")[0]
    lines = [doc.strip(), "", "Settings and their defaults:"]
    for line in source.splitlines():
        if group := re.fullmatch(r"    # (.+)", line):
            lines += ["", f"{group[1]}:"]
        elif field := re.fullmatch(r"    (\w+): .+? = (.+?)  # (.+)", line):
            lines.append(f"  --{field[1]}={field[2]}  # {field[3]}")
    return "\n".join([*lines, "", "An error is one line; with NANORAGEN_TRACEBACK=1 it shows where it arose."])


def answer_help() -> None:
    """Ends a script that was asked for help. It runs when this file is imported, which every script does first: other
    imports take seconds."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(help_text(sys.modules["__main__"].__doc__ or ""))
        sys.exit()


def fail_clearly(main: Callable[[list[str]], Any]) -> None:
    """Runs main(sys.argv[1:]); a user's mistake ends as one line on stderr and exit code 2, without a traceback."""
    try:
        main(sys.argv[1:])
    except (ValueError, TypeError, OSError, OverflowError) as error:  # OSError includes FileNotFoundError
        if os.environ.get("NANORAGEN_TRACEBACK") == "1":
            raise
        sentence = " ".join(str(error).split()) or type(error).__name__
        print("error:", sentence, file=sys.stderr)
        if "TORCHELASTIC_ERROR_FILE" in os.environ:  # torchrun adds a report of its own, which then ends with this
            record = {"message": f"error: {sentence}", "timestamp": int(time.time())}
            Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(record), encoding="utf-8")
        sys.exit(2)


answer_help()
