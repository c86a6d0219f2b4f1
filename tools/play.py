"""Play a training instance in the terminal, with a policy's prompts and parser.

    python -m tools.play frozenlake --seed=3
    python -m tools.play sokoban --seed=3 --expert       # watch the optimal player, or --random
    python -m tools.play config/quest_ppo.py --max_turns=9      # with the settings of a run

Type actions, such as: Down || Right. After an unknown action you are asked again. A line
that contains "<" counts as a whole reply with tags and is sent unchanged.
"""

from configurator import Config, UserError, load_config

from functools import partial

import numpy as np

from dialogue import format_response
from envs import Env, check_uses, missing_method
from mixtures import env_specs
from players import reference_actions
from rollout import Reply, Rollout, make_episode, play
from support.no_effect import GAME, REWARDS, print_unread
from support.terminal import run_main
from utils.text import printable
from utils.time_limit import EnvError, call_with_timeout

SETTINGS_READ = f"{GAME} {REWARDS} seed"
PLAYERS = {"--expert": "optimal", "--random": "random"}
MAX_SHOWN = 100_000  # at most this many characters of a message are printed


def main(argv: list[str]) -> None:
    config, player, sources = parse_command(argv)
    print_unread("tools.play", SETTINGS_READ, sources)
    rollout = Rollout(make_episode(config), (config.seed,))
    answer = ask_human
    if player:
        check_uses(rollout.episode.env, player)
        answer = partial(printed_reply, player, np.random.default_rng(config.seed))
    rollout.reset("train")
    if rollout.failure:
        error = rollout.failure.record.error
        raise UserError(f"env={config.env!r} could not start: {error}")
    show(rollout.trajectory.system)
    trajectory = play(rollout, answer)
    if trajectory.error:
        raise UserError(f"env={config.env!r} failed: {trajectory.error}")
    if trajectory.status == "out_of_tokens":  # `ask_human` had no more input
        print("\nthe input ended before the game")
        return
    num_turns = len(trajectory.turns)
    show(f"\n{trajectory.turns[-1].record.closing}")
    turns = "1 turn" if num_turns == 1 else f"{num_turns} turns"
    print(f"{trajectory.status} after {turns}, score {trajectory.score:g}")


def parse_command(argv: list[str]) -> tuple[Config, str, dict[str, str]]:
    """Read the command line.

    Returns: the settings, the player, and the source of each setting. The player is the
        argument `player` of `reference_actions`, or "" for a human. A source is, for example,
        "command line".
    Raises: UserError for an argument that is not legal."""
    players = [PLAYERS[arg] for arg in argv if arg in PLAYERS]
    envs = [arg for arg in argv if not arg.startswith("-") and not arg.endswith(".py")]
    settings = [arg for arg in argv if arg not in PLAYERS and arg not in envs]
    settings += [f"--env={env}" for env in envs]
    config, _, sources = load_config(settings)
    has_file = any(source.endswith(".py") for source in sources.values())
    names_env = has_file or sources["env"] != "default"
    if not names_env or len(envs) > 1 or len(players) > 1:
        raise UserError(
            "expected an environment or a config file, settings such as --seed=3, and --expert, "
            f"--random or neither; got {' '.join(argv)!r}"
        )
    specs = env_specs(config.env)
    if len(specs) > 1:
        raise UserError(f"give one environment to play: {' or '.join(specs)}")
    return config, players[0] if players else "", sources


def show(text: str) -> None:
    """Print a text. Control characters other than line breaks are escaped."""
    print(printable(text, limit=MAX_SHOWN, keep="\n"))


# ---------- players


def ask_human(rollout: Rollout) -> Reply | None:
    """Read a reply from the terminal. Return None at the end of the input."""
    config = rollout.config
    env = rollout.episode.env
    show(f"\n{rollout.user}")
    while True:
        try:
            text = input("> ")
        except (EOFError, KeyboardInterrupt):
            return None
        if "<" in text:
            return Reply(text)
        actions = [part.strip() for part in text.split("||")]
        try:
            mistake = call_with_timeout(config.step_timeout_s, find_mistake, env, actions)
        except EnvError as error:
            return Reply("", error=str(error))
        if not mistake:
            return Reply(format_response("", actions, think=config.think))
        show(mistake)


def find_mistake(env: Env, actions: list[str]) -> str:
    """Return a message that names the first illegal action and, if known, legal actions.

    Returns: "" if the checked actions are legal."""
    # If `env.actions` is empty, the state decides what is legal. Then only the first typed action
    # is checked, because this action may change what is legal.
    checked = actions if env.actions else actions[:1]
    illegal = [action for action in checked if not env.is_legal(action)]
    if not illegal:
        return ""
    if env.actions:
        return f"{illegal[0]!r} is no action; the actions are {', '.join(env.actions)}"
    if missing_method(env, "random"):
        return f"{illegal[0]!r} is no action now"
    (example,) = env.random(1, np.random.default_rng(0))
    return f"{illegal[0]!r} is no action now; a possible one is: {example}"


def printed_reply(player: str, rng: np.random.Generator, rollout: Rollout) -> Reply:
    """Print and return a reference player's reply. The thought in the reply consists of true
    sentences about the state."""

    def write_reply() -> str:
        actions = reference_actions(rollout.episode, player, rng)
        thought = " ".join(rollout.episode.statements())
        return format_response(thought, actions, think=rollout.config.think)

    try:
        text = call_with_timeout(rollout.config.step_timeout_s, write_reply)
    except EnvError as error:
        return Reply("", error=str(error))
    show(f"\n{rollout.user}\n> {text}")
    return Reply(text)


if __name__ == "__main__":
    run_main(main)
