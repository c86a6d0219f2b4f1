"""The pretraining corpus of the tiny base model: scripted dialogues, generated on the fly.

A document is a dialogue: a drill or a game. A pack holds the documents of one forward pass. All
documents of a pack are from one environment.
- A drill asks questions about a board. All answers are right (drills.py).
- A game is a dialogue as in RL. A scripted player, good or bad, chooses the actions
  (tools/crowd.py). The bandit has one player for each arm. The thoughts in games are true. A tenth
  of the packs of games have no thoughts.

Training begins with an easy part: drills that ask one question each. Without this part, a model as
small as the base model does not learn to read boards.

No document starts on an evaluation or held-out board of the environments in RESERVED. Sokoban
boards that differ only in their symbols count as the same board here. The corpus leaves out
three things, to allow tests of generalisation:
- the meanings that symbols=newvocab (an option of Sokoban) gives to symbols
- board sizes other than those of WORLDS
- the arms of pair=jobs_test (an option of Bandit)

    python -m studies.base_model.corpus --packs=600  # print a table of the documents in 600 packs
"""

from configurator import UserError, load_config

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dialogue import Chat, Episode, format_response
from envs import Env, make_env, reserved_keys
from rollout import Rollout, Trajectory
from studies.base_model.drills import Drill, draw_questions
from support.no_effect import print_unread
from support.terminal import run_main
from tools.crowd import crowd_reply, draw_player
from tools.demonstrations import recite
from tools.sft_config import SftConfig
from worlds.bandit import Bandit
from worlds.grids import Sokoban

SETTINGS_READ = "seed sft_planners micro_batch_tokens max_context_tokens step_timeout_s"
PRETRAINING = str(Path(__file__).parent / "config" / "pretraining.py")
SEED_CORPUS = 14  # makes the random streams of this file differ from those of other files

LAKE = "frozenlake:frozen_prob=0.8,success_rate=1"
SOKOBAN = "sokoban:search_depth=300"
LARGER = "sokoban:size=8,boxes=2,search_depth=10"
# Maps an environment to its share of the packs. The shares apply after the easy part of training.
WORLDS = {
    "frozenlake:frozen_prob=0.8,success_rate=0.8": 0.21,
    LAKE: 0.1,
    "frozenlake:frozen_prob=0.9,success_rate=0.8": 0.05,
    "frozenlake:frozen_prob=0.9,success_rate=1": 0.04,
    SOKOBAN: 0.25,
    LARGER: 0.3,
    "bandit:pair=jobs": 0.05,
}
# The easy part of the training (EASY) has these four stages of equal length. Each pack draws one
# environment of its stage.
EASY_STAGES = ((LAKE,), (LAKE, SOKOBAN), (SOKOBAN, LARGER), (LARGER,))
# No document starts on an evaluation or held-out instance of these environments.
RESERVED = (
    *(spec for spec in WORLDS if "bandit" not in spec),
    "sokoban:search_depth=30,symbols=newvocab",
)
# The names of two bandit arms are a pair from Bandit.PAIRS, or are made up from SYLLABLES.
PAIRS = " ".join(pairs for name, pairs in Bandit.PAIRS.items() if name != "jobs_test").split()
SYLLABLES = """
    ba de fi go lu ma ne pi ro su ta ve zi kor len mar nil
    pas ran sol tor vin dak fel gus hin jor ster
""".split()
SYMBOLS = "#_OXPSWFTBYZ.@*+=%&$ACDEHKLMNRU√"

# The shares below, except EASY, apply after the easy part of the training.
DRILLS = 0.45  # share of grid-world packs that hold drills
OTHER_SYMBOLS = 0.2  # share of Sokoban packs with randomly drawn symbols
UNKNOWN_ARMS = 0.5  # share of bandits whose arms have made-up names
THINK = 0.9  # share of packs whose games have thoughts
EASY = 0.2  # length of the easy part, as a share of the training; this part has only drills
FEW_ACTIONS = 0.5  # share of games that start with a random number of actions already used


class Document(NamedTuple):
    """A dialogue of the corpus."""

    kind: str  # "drill", or the name of the player of a game, such as "greedy" or "arm 0"
    trajectory: Trajectory


def documents(
    config: SftConfig, chat: Chat, step: int, index: int, progress: float
) -> Iterator[Document]:
    """Yield the documents of pack `index` of a step, until the pack has at least
    micro_batch_tokens tokens.

    Args: progress: the share of the training that is finished, 0 to 1."""
    path = (config.seed, SEED_CORPUS, step, index)
    rng = np.random.default_rng([*path, 1])
    easy = progress < EASY
    spec = draw_environment(rng, progress)
    env = make_env(spec, observation=draw_observation(rng, easy))
    drills = easy or (rng.random() < DRILLS and not env.repeats)
    if isinstance(env, Sokoban) and not easy and rng.random() < OTHER_SYMBOLS:
        env.alphabet = draw_symbols(rng)
    limits = draw_limits(config, env, rng)

    num_tokens = 0
    while num_tokens < config.micro_batch_tokens:
        instance = draw_unreserved(env, rng)
        if drills:
            num_questions = 1 if easy else int(rng.integers(3, 7))
            episode = Drill(env, draw_questions(env, rng, num_questions), rng)
            writers = {"drill": lambda episode=episode: episode.truth}
        else:
            episode = Episode(env, limits)
            writers = players_of(episode, config.sft_planners, rng)
        for kind, write_reply in writers.items():
            observation = env.start(instance, [*path, int(rng.integers(1, 2**31))])
            env.num_actions = 0
            if not drills and rng.random() < FEW_ACTIONS:
                env.num_actions = int(rng.integers(env.max_actions))
            rollout = Rollout(episode, path)
            rollout.trajectory.system, rollout.user = episode.open(observation)
            trajectory = recite(chat, rollout, write_reply, config)
            yield Document(kind, trajectory)
            num_tokens += len(trajectory.ids)


def players_of(
    episode: Episode, planners: float, rng: np.random.Generator
) -> dict[str, Callable[[], str]]:
    """Draw the players for one instance of the environment.

    A bandit gets two players, one for each arm, because the prompt does not say which arm is
    better.

    Returns: a dict that maps the name of a player to a function that writes the next reply."""
    if episode.env.repeats:
        return {f"arm {arm}": partial(pull_arm, episode, arm) for arm in range(2)}
    player = draw_player(rng, planners)
    return {player.name: partial(crowd_reply, episode, player, rng)}


def pull_arm(episode: Episode, arm: int) -> str:
    env = episode.env
    thought = " ".join(env.statements())
    return format_response(thought, [env.actions[arm]], think=episode.config.think)


# ---------- random choices for a pack of documents


def draw_environment(rng: np.random.Generator, progress: float) -> str:
    if progress < EASY:
        stage = int(progress / EASY * len(EASY_STAGES))
        return str(rng.choice(EASY_STAGES[stage]))
    return str(rng.choice(list(WORLDS), p=list(WORLDS.values())))


def draw_observation(rng: np.random.Generator, easy: bool) -> str:
    if easy:
        return "grid"
    return str(rng.choice(["grid", "coord", "relations"], p=[0.8, 0.1, 0.1]))


def draw_limits(config: SftConfig, env: Env, rng: np.random.Generator) -> SftConfig:
    if env.repeats:
        max_turns, actions_per_turn = 1, 1
    elif rng.random() < 0.7:
        max_turns, actions_per_turn = 5, 5
    else:
        max_turns, actions_per_turn = rng.integers(1, 6, 2).tolist()
    return replace(
        config,
        max_turns=max_turns,
        actions_per_turn=actions_per_turn,
        max_response_tokens=int(rng.choice([40, 64, 400])),
        think=rng.random() < THINK,
        context_turns=0,
    )


def draw_unreserved(env: Env, rng: np.random.Generator) -> tuple:
    instance = draw_arms(rng) if env.repeats else env.draw(rng)
    while env.key(instance) in reserved_keys(*RESERVED):
        instance = env.draw(rng)
    return instance


def draw_symbols(rng: np.random.Generator) -> str:
    """Draw seven symbols for Sokoban. No symbol gets the meaning that it has in the held-out set
    "newvocab"."""
    while True:
        symbols = "".join(rng.choice(list(SYMBOLS), 7, replace=False))
        pairs = zip(symbols, Sokoban.SYMBOLS["newvocab"], strict=True)
        if all(symbol != heldout for symbol, heldout in pairs):
            return symbols


def draw_arms(rng: np.random.Generator) -> tuple:
    low, high = PAIRS[rng.integers(len(PAIRS))].split("/")
    if rng.random() < UNKNOWN_ARMS:
        low = high = made_up_name(rng)
        while high == low:
            high = made_up_name(rng)
    return "bandit", low, high, bool(rng.integers(2))


def made_up_name(rng: np.random.Generator) -> str:
    return "".join(rng.choice(SYLLABLES, rng.integers(1, 4))).capitalize()


# ---------- the table of documents


def main(argv: list[str]) -> None:
    config, options, sources = load_config(
        [PRETRAINING, *argv], extra={"packs": 600}, kind=SftConfig
    )
    if options["packs"] < 1:
        raise UserError(f"packs must be 1 or more, got {options['packs']}")
    print_unread("studies.base_model.corpus", SETTINGS_READ, sources)
    # This import comes after the checks of the arguments, because tiny_model.py imports torch,
    # which takes seconds.
    from studies.base_model.tiny_model import build_tiny_tokenizer

    chat = Chat(build_tiny_tokenizer())
    rows = defaultdict(list)  # maps "stage | environment | kind" to trajectories
    for step in range(options["packs"]):
        progress = (step + 0.5) / options["packs"]
        stage = "1 easy" if progress < EASY else "2 all"
        for document in documents(config, chat, step, 0, progress):
            world = world_of(document.trajectory)
            rows[f"{stage} | {world} | {document.kind}"].append(document.trajectory)
    total = sum(len(trajectory.ids) for row in rows.values() for trajectory in row)
    print(
        "| stage | environment | kind | documents | different openings | tokens % | trained % "
        "| success % |"
    )
    print("|---" * 8 + "|")
    for name, row in sorted(rows.items()):
        tokens = sum(len(trajectory.ids) for trajectory in row)
        trained = sum(trajectory.num_response_tokens for trajectory in row)
        wins = sum(trajectory.success for trajectory in row)
        openings = {trajectory.turns[0].observation for trajectory in row}
        print(
            f"| {name} | {len(row)} | {len(openings)} | {100 * tokens / total:.1f} "
            f"| {100 * trained / tokens:.0f} | {100 * wins / len(row):.0f} |"
        )


def world_of(trajectory: Trajectory) -> str:
    if "arms" in trajectory.system:
        return "Bandit"
    return "Sokoban" if "box" in trajectory.system else "FrozenLake"


if __name__ == "__main__":
    run_main(main, kind=SftConfig)
