"""Finds settings from the command line that a command other than train.py does not use.

    these settings have no effect: seed, temperature: eval.py does not use them

Such a command prints the line at its start, as train.py does (support/inert.py). Settings
from files are not named: an experiment's file is for train.py, and other commands read a part of
it.
"""

from configurator import SFT_FIELDS, Config, SftConfig

from collections.abc import Collection, Iterable, Iterator

# (names of settings, separated by blanks; why none of them has an effect)
Reason = tuple[str, str]

# Settings of a game and of its rewards. max_response_tokens is in GAME because the system message
# states it.
GAME = """env observation think max_turns actions_per_turn actions_per_traj max_response_tokens
    step_timeout_s"""
REWARDS = "format_penalty reward_density think_reward"
SAMPLING = "model device dtype engine engine_dtype context_turns max_context_tokens max_running"
SCORING = f"""{GAME} {REWARDS} {SAMPLING} num_threads max_error_frac micro_batch_tokens
    eval_env eval_split eval_size eval_temperature"""
SUPERVISED = """model seed out_dir eval_every save_every keep_checkpoints device num_threads dtype
    max_context_tokens micro_batch_tokens weight_decay grad_clip"""
IMITATION = f"""{GAME} {SUPERVISED} {" ".join(SFT_FIELDS)} lora_rank engine_dtype context_turns
    max_running max_error_frac eval_size eval_temperature"""
DOCUMENTS = "seed sft_planners micro_batch_tokens max_context_tokens step_timeout_s"
READ_BY = {  # command -> the settings that change its result
    "eval.py": SCORING,
    "tools.api_models": SCORING,
    "tools.check_env": "observation actions_per_traj",
    "tools.crowd": f"{GAME} {REWARDS} eval_split eval_size",
    "tools.play": f"{GAME} {REWARDS} seed",
    "studies.base_model.corpus": DOCUMENTS,
    "studies.base_model.pretrain": f"""{SUPERVISED} {DOCUMENTS}
        sft_steps sft_batch_size sft_lr sft_muon_lr""",
    "studies.credit.regret": f"{GAME} {REWARDS} {SAMPLING} seed num_groups group_size temperature",
    "tools.replay": f"{GAME} {REWARDS} device num_threads eval_env eval_split eval_temperature",
    "tools.sft": IMITATION,
}


def warn_unread(command: str, config: Config, sources: dict[str, str]) -> str:
    """The line about the settings from the command line that have no effect; '' if there are none.

    Args: command: a key of READ_BY; sources: from `load_config`."""
    given = [name for name, source in sources.items() if source == "command line"]
    reasons = list(_imitation(config)) if command == "tools.sft" else []
    unread = [name for name in given if name not in READ_BY[command].split()]
    reasons.append((" ".join(unread), f"{command} does not use {_them(unread)}"))
    return sentence(among(given, reasons))


def print_unread(command: str, config: Config, sources: dict[str, str]) -> None:
    """Print the line of `warn_unread`, if any."""
    line = warn_unread(command, config, sources)
    if line:
        print(line, flush=True)


def _them(names: Collection[str]) -> str:
    return "it" if len(names) == 1 else "them"


def among(given: Collection[str], reasons: Iterable[Reason]) -> dict[str, str]:
    """Given setting that has no effect -> the first reason why."""
    inert: dict[str, str] = {}
    for names, reason in reasons:
        for name in names.split():
            if name in given:
                inert.setdefault(name, reason)
    return inert


def sentence(inert: dict[str, str]) -> str:
    """One line that names the settings without effect, and why; '' if there are none.

    Args: inert: setting -> why it has no effect."""
    names_of: dict[str, list[str]] = {}  # reason -> settings
    for name, reason in inert.items():
        names_of.setdefault(reason, []).append(name)
    if not names_of:
        return ""
    phrases = [f"{', '.join(names)}: {reason}" for reason, names in names_of.items()]
    return f"these settings have no effect: {'; '.join(phrases)}"


def _imitation(config: SftConfig) -> Iterator[Reason]:
    """Yield the settings that tools.sft does not use because of its other settings, and why."""
    player = "sft_player sft_actions sft_noise sft_clean"
    if config.sft_file:
        yield f"{player} sft_planners", "sft_file holds the demonstrations"
    else:
        yield "sft_lost sft_eval_games", "sft_file is empty"
    if config.sft_player == "crowd":
        yield "sft_actions sft_noise sft_clean", "the crowd's players already make errors"
    else:
        yield "sft_planners", f"sft_player is {config.sft_player}"
    if config.sft_noise == 0:
        yield "sft_clean", "sft_noise is 0"
    if config.lora_rank and config.sft_muon_lr:
        yield "sft_lr", "with LoRA all trained weights are matrices, which use sft_muon_lr"
