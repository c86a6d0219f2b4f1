"""The corpus that the tiny base model is pretrained on: scripted dialogues, generated on the fly.

A document is a dialogue in one environment.
- A drill asks questions about a board: the places of things, the cells around the player, a row or
  column, the board after a move, a short plan. Every answer is right. (See tools/drills.py.)
- A game is a dialogue as in RL. Its player has a random skill. Thoughts are true, but with
  probability 1 - skill the actions of a turn are random.

Training begins with single questions about plain boards. Without them, a model of this size does
not learn to read boards. Towards the end of training the players get worse. This spoils the model's
actions but not its knowledge, so RL has something to improve.

The corpus never shows a board of the evaluation or held-out instances, with any symbols. It leaves
out the symbols of "newvocab", other sizes and the pairs of "jobs_test", to test generalisation.

    python -m tools.corpus --packs=600        # print a table of the documents in a sample
"""

from configurator import Config, UserError, load_config, run_main

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dialogue import Chat, Episode, format_response
from envs import Env, make_env, reserved_keys
from grids import Sokoban
from rollout import Conversation, Trajectory
from tools.demonstrations import recite
from tools.drills import Drill, draw_questions
from worlds.bandit import Bandit

SEED_CORPUS = 14  # purpose number of the random streams

LAKE = "frozenlake:frozen_prob=0.8,success_rate=1"
SOKOBAN = "sokoban:search_depth=300"
LARGER = "sokoban:size=8,boxes=2,search_depth=10"
WORLDS = {  # environment -> share of the packs
    "frozenlake:frozen_prob=0.8,success_rate=0.8": 0.25,
    LAKE: 0.1,
    "frozenlake:frozen_prob=0.9,success_rate=0.8": 0.05,
    "frozenlake:frozen_prob=0.9,success_rate=1": 0.05,
    SOKOBAN: 0.3,
    LARGER: 0.2,
    "bandit:pair=jobs": 0.05,
}
# Environments whose evaluation and held-out instances are never shown.
RESERVED = (
    *(spec for spec in WORLDS if "bandit" not in spec),
    "sokoban:search_depth=30,symbols=newvocab",
)
# The known pairs of arms, and the syllables of made-up names for other arms.
PAIRS = " ".join(pairs for name, pairs in Bandit.PAIRS.items() if name != "jobs_test").split()
SYLLABLES = """
    ba de fi go lu ma ne pi ro su ta ve zi kor len mar nil
    pas ran sol tor vin dak fel gus hin jor ster
""".split()
SYMBOLS = "#_OXPSWFTBYZ.@*+=%&$ACDEHKLMNRU√"

DRILLS = 0.45  # share of the packs
OTHER_SYMBOLS = 0.2  # share of the Sokoban packs
UNKNOWN_ARMS = 0.5  # share of the bandits
THINK = 0.9  # share of the packs whose players think
EASY = 0.09  # part of the training that asks single questions; `draw_environment` orders them
IMITATION_STARTS_AT = 0.75  # part of the training after which the players get worse
SKILL = 0.8  # mean skill of the players until then
LAST_SKILL = {"frozenlake": 0.3, "sokoban": 0.11}  # mean skill from then on
HEED_SLIPS = 0.8  # share of skilled turns that follow the optimal plan; others walk shortest paths
FEW_ACTIONS = 0.5  # share of the games that start with fewer actions left, to practise the end


def documents(
    config: Config, chat: Chat, step: int, index: int, progress: float
) -> Iterator[Trajectory]:
    """Pack `index` of a step: documents of one environment, until they have micro_batch_tokens.

    Args: progress: finished part of the training, 0 to 1. It sets the environments and the skill of
        the players."""
    path = (config.seed, SEED_CORPUS, step, index)
    rng = np.random.default_rng([*path, 1])
    easy = progress < EASY
    spec = draw_environment(rng, progress)
    env = make_env(spec, observation=draw_observation(rng, easy))
    drills = easy or (rng.random() < DRILLS and not env.repeats)
    if isinstance(env, Sokoban) and not easy and rng.random() < OTHER_SYMBOLS:
        env.alphabet = draw_symbols(rng)
    limits = draw_limits(config, env, rng)
    mean_skill = SKILL
    if progress >= IMITATION_STARTS_AT and not env.repeats:
        mean_skill = LAST_SKILL[spec.split(":")[0]]

    num_tokens = 0
    while num_tokens < config.micro_batch_tokens:
        instance = draw_unreserved(env, rng)
        if drills:
            num_questions = 1 if easy else int(rng.integers(3, 7))
            episode = Drill(env, draw_questions(env, rng, num_questions), rng)
        else:
            episode = Episode(env, limits)
        skill = rng.random() ** (1 / mean_skill - 1)  # between 0 and 1
        # No player knows the better arm, so a bandit is shown twice, once with each arm.
        for arm in range(2) if env.repeats else (None,):
            observation = env.start(instance, [*path, int(rng.integers(1, 2**31))])
            env.num_actions = 0
            if not drills and rng.random() < FEW_ACTIONS:
                env.num_actions = int(rng.integers(env.max_actions))
            conversation = Conversation(episode, path)
            conversation.open(*episode.open(observation))
            writer = ReplyWriter(episode, skill, rng, arm)
            document = recite(chat, conversation, writer, config)
            yield document
            num_tokens += len(document.ids)


class ReplyWriter:
    """Writes the replies of a document: right answers in a drill, moves of a player in a game."""

    def __init__(
        self, episode: Episode, skill: float, rng: np.random.Generator, arm: int | None = None
    ):
        self.episode = episode
        self.skill = skill
        self.rng = rng
        self.arm = arm

    def __call__(self) -> str:
        if isinstance(self.episode, Drill):
            return self.episode.truth
        return random_reply(self.episode, self.skill, self.rng, self.arm)


def random_reply(
    episode: Episode, skill: float, rng: np.random.Generator, arm: int | None = None
) -> str:
    """A true thought, with good actions at probability `skill`, otherwise with random ones.

    Good actions follow the optimal plan or a shortest path.
    Args: arm: index of the arm of a bandit to choose; None in other environments."""
    env = episode.env
    config = episode.config
    count = int(rng.integers(1, min(config.actions_per_turn, env.actions_left) + 1))
    actions = []
    if arm is not None:
        actions = [env.actions[arm]]
    elif rng.random() < skill:
        if rng.random() < HEED_SLIPS:
            # Plans of more than three slippery actions take long to find.
            actions = env.plan(min(count, 3), config.max_turns - episode.turn_idx)
        actions = actions or env.demonstrate(count, rng)
    actions = actions or env.random(count, rng)
    return format_response(" ".join(env.statements()), actions, think=config.think)


# ---------- random parts of a pack


def draw_environment(rng: np.random.Generator, progress: float) -> str:
    """The environment of a pack.

    The easy part has lakes only, then also small rooms of Sokoban, then also large rooms."""
    if progress < EASY:
        stages = [LAKE, SOKOBAN, LARGER]
        num_stages = 1 + int(progress / EASY * 3)
        return str(rng.choice(stages[:num_stages]))
    return str(rng.choice(list(WORLDS), p=list(WORLDS.values())))


def draw_observation(rng: np.random.Generator, easy: bool) -> str:
    if easy:
        return "grid"
    return str(rng.choice(["grid", "coord", "relations"], p=[0.8, 0.1, 0.1]))


def draw_limits(config: Config, env: Env, rng: np.random.Generator) -> Config:
    """Settings with random limits on turns, actions and tokens; the system prompt states them."""
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
    """An instance that no evaluation uses."""
    instance = draw_arms(rng) if env.repeats else env.draw(rng)
    while env.key(instance) in reserved_keys(*RESERVED):
        instance = env.draw(rng)
    return instance


def draw_symbols(rng: np.random.Generator) -> str:
    """Seven symbols for Sokoban, none in the role that it has in "newvocab"."""
    while True:
        symbols = "".join(rng.choice(list(SYMBOLS), 7, replace=False))
        pairs = zip(symbols, Sokoban.SYMBOLS["newvocab"], strict=True)
        if all(symbol != heldout for symbol, heldout in pairs):
            return symbols


def draw_arms(rng: np.random.Generator) -> tuple:
    """A bandit with arms of a known pair, or with made-up names."""
    low, high = PAIRS[rng.integers(len(PAIRS))].split("/")
    if rng.random() < UNKNOWN_ARMS:
        low = made_up_name(rng)
        high = made_up_name(rng)
    return "bandit", low, high, bool(rng.integers(2))


def made_up_name(rng: np.random.Generator) -> str:
    return "".join(rng.choice(SYLLABLES, rng.integers(1, 4))).capitalize()


# ---------- the table of documents


def main(argv: list[str]) -> None:
    """Print a table of the documents in a sample of the corpus of config/base.py."""
    config, options, _ = load_config(["config/base.py", *argv], extra={"packs": 600})
    if options["packs"] < 1:
        raise UserError(f"packs must be 1 or more, got {options['packs']}")
    from tools.tiny_model import build_tiny_tokenizer  # it imports torch, which takes seconds

    chat = Chat(build_tiny_tokenizer())
    documents_of = defaultdict(list)  # by stage, environment and kind
    for step in range(options["packs"]):
        progress = (step + 0.5) / options["packs"]
        for document in documents(config, chat, step, 0, progress):
            documents_of[kind_of(document, progress)].append(document)
    total = 0
    for found in documents_of.values():
        total += sum(len(document.ids) for document in found)
    print(
        "| stage | environment | kind | documents | different openings | tokens % | trained % "
        "| success % |"
    )
    print("|---" * 8 + "|")
    for kind, found in sorted(documents_of.items()):
        tokens = sum(len(document.ids) for document in found)
        trained = sum(document.num_response_tokens for document in found)
        wins = sum(document.success for document in found)
        openings = {document.turns[0].observation for document in found}
        print(
            f"| {kind} | {len(found)} | {len(openings)} | {100 * tokens / total:.1f} "
            f"| {100 * trained / tokens:.0f} | {100 * wins / len(found):.0f} |"
        )


def kind_of(document: Trajectory, progress: float) -> str:
    """The row of the table that counts a document."""
    stage = "2 learning"
    if progress < EASY:
        stage = "1 easy"
    elif progress >= IMITATION_STARTS_AT:
        stage = "3 imitating"
    world = "FrozenLake"
    if "arms" in document.system:
        world = "Bandit"
    elif "box" in document.system:
        world = "Sokoban"
    is_drill = hasattr(document.turns[0].record, "question")
    return f"{stage} | {world} | {'drills' if is_drill else 'games'}"


if __name__ == "__main__":
    run_main(main)
