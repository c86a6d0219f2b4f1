"""Play a training instance in the terminal, through the prompt and the parser of the policy.

    python -m tools.play frozenlake --seed=3
    python -m tools.play sokoban --seed=3 --expert       # watch the optimal player, or --random

A typed line may have tags. Without any "<" it is taken as the actions of an answer: Down || Right
"""

from configurator import Config, UserError, run_main

import numpy as np

from dialogue import Episode, format_response, reference_actions
from envs import make_env
from rollout import Conversation, Reply, play

PLAYERS = {"--expert": "optimal", "--random": "random"}


def main(argv: list[str]) -> None:
    seed = "0"
    player = ""
    for arg in argv[1:]:
        if arg.startswith("--seed="):
            seed = arg.removeprefix("--seed=")
        elif arg in PLAYERS and not player:
            player = PLAYERS[arg]
        else:
            seed = ""  # not legal
    if not argv or not seed.isdecimal():
        raise UserError(
            "expected an environment, --seed=N, and --expert, --random or neither; "
            f"got {' '.join(argv)!r}"
        )
    conversation = Conversation(Episode(make_env(argv[0]), Config()), (int(seed),))
    conversation.reset("train")
    if conversation.failure:
        raise UserError(f"env={argv[0]!r} could not start: {conversation.failure.record.error}")
    print(conversation.trajectory.system)
    rng = np.random.default_rng(int(seed))
    trajectory = play(conversation, ScriptedPlayer(player, rng) if player else ask_human)
    if trajectory.status == "out_of_tokens":  # the human ended the input
        return
    closing = trajectory.turns[-1].record.closing
    num_turns = len(trajectory.turns)
    print(f"\n{closing}\n{trajectory.status} after {num_turns} turns, score {trajectory.score:g}")


def ask_human(conversation: Conversation) -> Reply | None:
    """Read a reply from the terminal; None at the end of the input."""
    print(f"\n{conversation.user}")
    try:
        text = input("> ")
    except EOFError:
        return None
    return Reply(text if "<" in text else format_response("", text.split("||")))


class ScriptedPlayer:
    """Shows how a reference player plays, with true thoughts."""

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
