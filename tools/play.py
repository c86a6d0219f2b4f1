"""Play a training instance in the terminal, through the prompt and the parser of the policy.

    python -m tools.play frozenlake --seed=3
    python -m tools.play sokoban --seed=3 --expert       # watch the optimal player, or --random

Type actions, such as: Down || Right. A line with "<" is sent as the whole reply, with its tags.
"""

from configurator import Config, UserError, run_main

from typing import NamedTuple

import numpy as np

from dialogue import Episode, format_response, reference_actions
from envs import make_env
from rollout import Conversation, Reply, play

PLAYERS = {"--expert": "optimal", "--random": "random"}


class Command(NamedTuple):
    """A parsed command line."""

    env: str
    seed: int = 0
    player: str = ""  # of `reference_actions`; "": a human plays


def main(argv: list[str]) -> None:
    command = parse_command(argv)
    conversation = Conversation(Episode(make_env(command.env), Config()), (command.seed,))
    conversation.reset("train")
    if conversation.failure:
        error = conversation.failure.record.error
        raise UserError(f"env={command.env!r} could not start: {error}")
    print(conversation.trajectory.system)
    answer = ask_human
    if command.player:
        answer = ScriptedPlayer(command.player, np.random.default_rng(command.seed))
    trajectory = play(conversation, answer)
    if trajectory.status == "out_of_tokens":  # the human ended the input
        return
    closing = trajectory.turns[-1].record.closing
    num_turns = len(trajectory.turns)
    print(f"\n{closing}\n{trajectory.status} after {num_turns} turns, score {trajectory.score:g}")


def parse_command(argv: list[str]) -> Command:
    """Read the command line. Raises: UserError for an argument that is not legal."""
    mistake = UserError(
        "expected an environment, --seed=N, and --expert, --random or neither; "
        f"got {' '.join(argv)!r}"
    )
    if not argv:
        raise mistake
    command = Command(argv[0])
    for arg in argv[1:]:
        name, _, value = arg.partition("=")
        if name == "--seed" and value.isdecimal():
            command = command._replace(seed=int(value))
        elif arg in PLAYERS and not command.player:
            command = command._replace(player=PLAYERS[arg])
        else:
            raise mistake
    return command


def ask_human(conversation: Conversation) -> Reply | None:
    """Read a reply from the terminal. Returns: None at the end of the input."""
    print(f"\n{conversation.user}")
    try:
        text = input("> ")
    except EOFError:
        return None
    return Reply(text if "<" in text else format_response("", text.split("||")))


class ScriptedPlayer:
    """Prints and returns the replies of a reference player, with true thoughts."""

    def __init__(self, player: str, rng: np.random.Generator):
        self.player = player
        self.rng = rng

    def __call__(self, conversation: Conversation) -> Reply:
        episode = conversation.episode
        actions = reference_actions(episode, self.player, self.rng)
        text = format_response(" ".join(episode.env.statements()), actions)
        print(f"\n{conversation.user}\n> {text}")
        return Reply(text)


if __name__ == "__main__":
    run_main(main)
