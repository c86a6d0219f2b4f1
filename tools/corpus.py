"""Scripted dialogues to imitate: demonstrations for SFT, and the corpus that the tiny base model is pretrained on.

The corpus is made on the fly and never ends. A document is a dialogue about a board (easy ones first, or a model of
this size does not begin to read):
- a *drill* asks where things are, what lies around, what one row or column holds, what a move makes of the board, and
  for a short plan; every answer is right;
- a *game* is a dialogue of RL itself, by a player whose skill is drawn for every game: thoughts are true, but with
  probability 1 - skill the actions of a turn are random. Players get worse towards the end of the training: a model
  that has learned to read and to plan becomes a broad imitator, which spoils its actions and not what it knows.
Boards of the evaluation and held-out instances of any environment here are never shown, whatever their symbols. Those
of "newvocab", other sizes and the pairs of "jobs_test" are left for generalisation.

    python corpus.py        # what a sample of it is made of
"""

from configurator import Config, UserError, load_config, run_main

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from dialogue import Episode, Outcome, format_response
from envs import Bandit, make_env, reserved_keys
from grids import FrozenLake, Grid, Sokoban
from rollout import Chat, Trajectory, Turn, make_episode, next_prompt
from tools.tiny_model import build_tiny_tokenizer

COMMIT_ONE = 0.75  # a turn of a demonstration means to commit one action in 75 % of cases, two in 19 %, more in 6 %
SEED_DEMOS, SEED_CORPUS = 11, 14  # purposes of the random streams
LAKE, SLIP = "frozenlake:frozen_prob=0.8,success_rate=1", "success_rate=0.8"
SOKOBAN, LARGER = "sokoban:search_depth=300", "sokoban:size=8,boxes=2,search_depth=10"
WORLDS = {
    f"frozenlake:frozen_prob=0.8,{SLIP}": 0.25,
    LAKE: 0.1,
    f"frozenlake:frozen_prob=0.9,{SLIP}": 0.05,
    "frozenlake:frozen_prob=0.9,success_rate=1": 0.05,
    SOKOBAN: 0.3,
    LARGER: 0.2,
    "bandit:pair=jobs": 0.05,
}  # shares of the corpus
RESERVED = (
    *(spec for spec in WORLDS if "bandit" not in spec),
    "sokoban:search_depth=30,symbols=newvocab",
)  # never shown
PAIRS = " ".join(pairs for name, pairs in Bandit.PAIRS.items() if name != "jobs_test").split()
SYMBOLS = "#_OXPSWFTBYZ.@*+=%&$ACDEHKLMNRU√"
SYLLABLES = (
    "ba",
    "de",
    "fi",
    "go",
    "lu",
    "ma",
    "ne",
    "pi",
    "ro",
    "su",
    "ta",
    "ve",
    "zi",
    "kor",
    "len",
    "mar",
    "nil",
    "pas",
    "ran",
    "sol",
    "tor",
    "vin",
    "dak",
    "fel",
    "gus",
    "hin",
    "jor",
    "ster",
)
DRILLS, OTHER_SYMBOLS, UNKNOWN_ARMS, THINK = (
    0.45,
    0.2,
    0.5,
    0.9,
)  # shares: of packs, of Sokoban, of Bandit, of games
EASY = 0.09  # part of the training with single questions about plain boards: of lakes, then small, then large rooms too
IMITATION_STARTS_AT = 0.75  # part of the training after which the players get worse
SKILL, LAST_SKILL = 0.8, {"frozenlake": 0.3, "sokoban": 0.11}  # mean skill before and after
BEST = 0.8  # part of the skilled turns on a lake that heed slips; the others walk a shortest path
FEW = (
    0.5  # part of the games that start with fewer actions left, so that the last ones are practised
)


def recite(
    chat: Chat, seed: tuple, episode, opening: tuple, reply: Callable[[], str], config: Config
) -> Trajectory:
    """Play an opened `episode` to its end with scripted replies, as tokens that a policy would have sampled."""
    trajectory, user, prompt = (
        Trajectory(seed, 0, system=opening[0]),
        opening[1],
        chat.opening(*opening),
    )
    while not trajectory.status:
        text = reply()
        outcome = episode.step(text)
        ids = [*chat.encode(text), chat.end]
        trajectory.turns.append(Turn(prompt, ids, [], outcome.reward, text, user, outcome.info))
        trajectory.status, user = outcome.status or "", outcome.user
        prompt = next_prompt(chat, trajectory, user, config.context_turns)
        used = (
            config.max_response_tokens if config.context_turns else len(trajectory.ids)
        )  # a window begins anew
        if used + len(prompt) > config.max_context_tokens:
            trajectory.status = trajectory.status or "out_of_tokens"
    return trajectory


def num_demonstrations(config: Config) -> int:
    """How many differ."""
    shown = config.sft_steps * config.sft_batch_size
    return min(config.sft_demos or shown, shown)


def demonstration(config: Config, chat: Chat, index: int) -> Trajectory:
    """A player on training instance `index` who states what is true and walks a shortest path (`Env.demonstrate`),
    mostly one action a turn; with probability `sft_noise` a turn has a random number of random actions, except in the
    first `sft_clean` of all demonstrations."""
    seed, episode = (config.seed, SEED_DEMOS, index), make_episode(config)
    rng = np.random.default_rng(
        [*seed, 1]
    )  # not 0: numpy seeds [a, b, c] and [a, b, c, 0] alike, and one is taken
    opening, env = episode.reset(seed), episode.env

    def reply() -> str:
        most = min(config.sft_actions, config.actions_per_turn, env.actions_left)
        noisy = rng.random() < config.sft_noise * (
            index >= round(config.sft_clean * num_demonstrations(config))
        )
        count = min(int(rng.integers(1, most + 1) if noisy else rng.geometric(COMMIT_ONE)), most)
        actions = (not noisy and env.demonstrate(count, rng)) or env.random(count, rng)
        return format_response(" ".join(env.statements()), actions, think=config.think)

    return as_played(recite(chat, seed, episode, opening, reply, config), config)


def as_played(t: Trajectory, config: Config) -> Trajectory:
    """Without the turns for which the context has no room. Raises: UserError for a longer reply than a policy may
    give, and if there is no room for one turn."""
    if (longest := max(len(turn.response_ids) for turn in t.turns)) > config.max_response_tokens:
        raise UserError(
            f"a demonstration in {config.env} has a reply of {longest} tokens and max_response_tokens is "
            f"{config.max_response_tokens}; raise it"
        )
    while t.turns and not config.context_turns and len(t.ids) > config.max_context_tokens:
        t = replace(
            t, turns=t.turns[:-1], status="out_of_tokens"
        )  # a rollout would cut the last reply
    if not t.turns:
        raise UserError(
            f"one turn of a demonstration in {config.env} is longer than max_context_tokens, "
            f"{config.max_context_tokens}; raise it"
        )
    return t


# ---------- drills


class Drill(Episode):
    """Questions about a board of a grid world, which is shown with each; a turn earns 1 for the right answer.
    A move in it never slips, and later questions are about the board after it."""

    def __init__(self, env: Grid, questions: list[str], rng: np.random.Generator):
        self.env, self.config, self.questions, self.rng = env, Config(), questions, rng
        if isinstance(env, FrozenLake):
            env.success_rate = 1.0

    def system(self) -> str:
        return f"{self.env.rules()}\nAnswer questions about the board."

    def _turn_text(self, observation: str, _: str = "") -> str:
        """The next question; `truth` becomes the answer to it."""
        question = self.questions[self.turn_idx]
        env, size, (kind, *number) = self.env, self.env.size, question.split()
        if number:
            i = int(number[0]) - 1
            self.truth = env.words(
                range(i * size, (i + 1) * size) if kind == "Row" else range(i, size * size, size)
            )
        elif kind == "Plan":
            self.truth = " || ".join(env.demonstrate(5, self.rng)) or "none"
        elif kind in env.actions:
            env.step(kind)
            self.truth = env.render()
        else:
            about = {
                "Where": env.coordinates,
                "Around": env.relations,
                "Facts": lambda: " ".join(env.statements()),
            }
            self.truth = about[kind]()
        return f"{observation}\n{question}?"

    def step(self, response: str) -> Outcome:
        info = {"question": self.questions[self.turn_idx], "truth": self.truth, "answer": response}
        self.turn_idx += 1
        over = self.turn_idx == len(self.questions) or self.env.terminated
        user = "" if over else self._turn_text(self.env.observe())
        return Outcome(user, float(response == info["truth"]), "success" if over else None, info)


def draw_questions(env: Grid, rng: np.random.Generator, count: int) -> list[str]:
    """Random questions, more of some kinds."""
    kinds = [
        "Where",
        "Where",
        "Around",
        "Facts",
        "Facts",
        "Plan",
        "line",
        "line",
        "line",
        "move",
        "move",
    ]
    more = {
        "line": [f"{kind} {i + 1}" for kind in ("Row", "Column") for i in range(env.size)],
        "move": env.actions,
    }
    return [str(rng.choice(more.get(kind, [kind]))) for kind in rng.choice(kinds, count)]


# ---------- games


def random_reply(
    episode: Episode, skill: float, rng: np.random.Generator, arm: int | None = None
) -> str:
    """A true thought, and actions of the optimal plan or a shortest path with probability `skill`, else careless.
    `arm`: which one of a bandit, because no player knows the better one."""
    env, config, actions = episode.env, episode.config, []
    count = int(rng.integers(1, min(config.actions_per_turn, env.actions_left) + 1))
    if arm is not None:
        actions = [env.actions[arm]]
    elif rng.random() < skill:
        # plans of more than 3 slippery actions take long to find
        best = rng.random() < BEST and env.plan(min(count, 3), config.max_turns - episode.turn_idx)
        actions = best or env.demonstrate(count, rng)
    return format_response(
        " ".join(env.statements()), actions or env.random(count, rng), think=config.think
    )


# ---------- the corpus


def draw_symbols(rng: np.random.Generator) -> str:
    """Seven symbols for Sokoban, none in the role that it has in the held-out set."""
    while True:
        symbols = "".join(rng.choice(list(SYMBOLS), 7, replace=False))
        if all(a != b for a, b in zip(symbols, Sokoban.SYMBOLS["newvocab"], strict=True)):
            return symbols


def draw_arms(rng: np.random.Generator) -> tuple:
    """A bandit of arms from the known pairs, or with made-up names."""
    low, high = PAIRS[rng.integers(len(PAIRS))].split("/")
    if rng.random() < UNKNOWN_ARMS:
        low, high = (
            "".join(rng.choice(SYLLABLES, rng.integers(1, 4))).capitalize() for _ in range(2)
        )
    return "bandit", low, high, bool(rng.integers(2))


def documents(
    config: Config, chat: Chat, step: int, index: int, progress: float
) -> Iterator[Trajectory]:
    """Pack `index` of a step: documents of one environment under one system prompt, until they have micro_batch_tokens.
    `progress`: part of the training that is done, 0 to 1; it sets how good players are."""
    path, num_tokens = (config.seed, SEED_CORPUS, step, index), 0
    rng, easy = np.random.default_rng([*path, 1]), progress < EASY
    spec = str(
        rng.choice(
            [LAKE, SOKOBAN, LARGER][: 1 + int(progress / EASY * 3)] if easy else list(WORLDS),
            p=None if easy else list(WORLDS.values()),
        )
    )
    observation = (
        "grid" if easy else str(rng.choice(["grid", "coord", "relations"], p=[0.8, 0.1, 0.1]))
    )
    env = make_env(spec, observation=observation)
    drill = easy or (rng.random() < DRILLS and not env.repeats)
    if isinstance(env, Sokoban) and not easy and rng.random() < OTHER_SYMBOLS:
        env.alphabet = draw_symbols(rng)
    turns, actions = (
        (1, 1) if env.repeats else (5, 5) if rng.random() < 0.7 else rng.integers(1, 6, 2).tolist()
    )
    limits = dict(
        max_turns=turns,
        actions_per_turn=actions,
        max_response_tokens=int(rng.choice([40, 64, 400])),
    )
    limited = replace(config, **limits, think=rng.random() < THINK, context_turns=0)
    mean = (
        SKILL if progress < IMITATION_STARTS_AT or env.repeats else LAST_SKILL[spec.split(":")[0]]
    )
    while num_tokens < config.micro_batch_tokens:
        instance = draw_arms(rng) if env.repeats else env.draw(rng)
        while env.key(instance) in reserved_keys(*RESERVED):
            instance = env.draw(rng)
        count = drill and (1 if easy else int(rng.integers(3, 7)))
        episode = (
            Drill(env, draw_questions(env, rng, count), rng) if drill else Episode(env, limited)
        )
        skill = rng.random() ** (1 / mean - 1)  # between 0 and 1
        for arm in range(2) if env.repeats else (None,):  # a bandit is shown twice
            observation = env.start(instance, [*path, int(rng.integers(1, 2**31))])
            env.num_actions = (
                int(rng.integers(env.max_actions)) if not drill and rng.random() < FEW else 0
            )
            opening = episode.open(observation)
            reply = (
                (lambda: episode.truth)
                if drill
                else (lambda: random_reply(episode, skill, rng, arm))
            )  # noqa: B023
            yield (document := recite(chat, path, episode, opening, reply, config))
            num_tokens += len(document.ids)


def main(argv: list[str]) -> None:
    """Print what a sample of the corpus of config/base.py is made of."""
    config, options, _ = load_config(["config/base.py", *argv], extra={"packs": 600})
    chat, kinds = Chat(build_tiny_tokenizer()), defaultdict(list)
    for i in range(options["packs"]):
        part = (i + 0.5) / options["packs"]
        stage = (
            "1 easy"
            if part < EASY
            else "2 learning"
            if part < IMITATION_STARTS_AT
            else "3 imitating"
        )
        for document in documents(config, chat, i, 0, part):
            world = (
                "Bandit"
                if "arms" in document.system
                else "Sokoban"
                if "box" in document.system
                else "FrozenLake"
            )
            kind = "drills" if "question" in document.turns[0].info else "games"
            kinds[f"{stage} | {world} | {kind}"].append(document)
    total = sum(len(d.ids) for found in kinds.values() for d in found)
    print(
        "| stage | environment | kind | documents | different openings | tokens % | trained % | success % |"
    )
    print("|---" * 8 + "|")
    for kind, found in sorted(kinds.items()):
        tokens, openings = (
            sum(len(d.ids) for d in found),
            len({d.turns[0].observation for d in found}),
        )
        trained, wins = (
            sum(d.num_response_tokens for d in found) / tokens,
            sum(d.success for d in found) / len(found),
        )
        percent = f"{100 * tokens / total:.1f} | {100 * trained:.0f} | {100 * wins:.0f}"
        print(f"| {kind} | {len(found)} | {openings} | {percent} |")


if __name__ == "__main__":
    run_main(main)
