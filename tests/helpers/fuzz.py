"""
Fuzz the parser, the prompt builder, most environments and the packing with odd replies.

No reply may raise an error, take long, or forge the start or end of a message. The loss mask must
cover exactly the reply tokens.

    python tests/helpers/fuzz.py COUNT
"""

import sys
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import count

import hypothesis
import numpy as np
from hypothesis import strategies as st
from shared_fixtures import small_config
from transformers import AutoTokenizer

from dialogue import format_response, parse_response
from engine import Sample
from envs import ENVS, HUBS, make_env
from packing import pack
from rollout import Chat, collect, split_by_context
from utils.model_folder import BASE

NUM_TURNS = 3  # per episode
# The environments that are left out need extra packages or files of the user.
ENV_NAMES = sorted(ENVS.keys() - {"textworld", "alfworld", "swe", "own_data", *HUBS})
MARKS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "user\n", "assistant\n"),
    *("<think>", "</think>", "<answer>", "</answer>", "||"),
    *("\n", "\0", "\r", "\x1b[2J", "\u202e", "\u2066", "\ufffd", "\U0001f600"),
    *("'", '"', "<script>", "&", "9", "(", ")", "*", "/0", "-", ".", " "),
    *("Goal up.", "edit 1: ", "while 1: n = n * n", "range(9**9)", "run", "submit"),
]
SPECIAL_IDS = (0, 1, 2, 3)  # special tokens
CONFIG = small_config(
    think=True,
    max_turns=NUM_TURNS,
    max_response_tokens=10**5,
    max_context_tokens=10**6,
    micro_batch_tokens=10**6,
    max_running=1,
    step_timeout_s=10.0,
)


class Script:
    """An engine that gives each trajectory the `replies` in order, and then starts over."""

    def __init__(self, *replies):
        self.replies = replies
        self.turns = Counter()
        self.waiting = []
        self.version = None

    busy = property(lambda self: bool(self.waiting))

    def add(self, key, ids, **_):
        self.waiting.append(key)

    def step(self):
        samples = []
        for key in self.waiting:
            reply = list(self.replies[self.turns[key] % len(self.replies)])
            self.turns[key] += 1
            samples.append(Sample(key, reply, [-1.0] * len(reply)))
        self.waiting = []
        return samples

    def release(self, key):
        pass


def tokens_of(chat, pieces):
    """Return the token ids of `pieces`.

    Check that no string in `pieces` forges the start or end of a message.
    """
    ids = []
    for piece in pieces:
        if not isinstance(piece, str):
            ids.append(piece)
            continue
        parse_response(piece)
        parse_response(piece, think=False)
        message = chat.message("user", piece)
        assert (message.count(chat.start), message.count(chat.end)) == (1, 1)
        ids += chat.encode(piece)
    return ids or [chat.end]


def expected_marks(chat, replies, k, context_turns):
    if context_turns:
        repeated = replies[max(0, k + 1 - context_turns) : k]
        followed = repeated
    else:
        repeated = []
        followed = replies[max(0, k - 1) : k]
    has_opening = k == 0 or context_turns > 0
    starts = 3 * has_opening + 2 * len(followed)
    starts += sum(reply.count(chat.start) for reply in repeated)
    ends = 2 * has_opening + sum(1 + (reply[-1] != chat.end) for reply in followed)
    ends += sum(reply.count(chat.end) for reply in repeated)
    return starts, ends


def play(chat, env, number, replies):
    """Play and check an episode. `number` selects seed and settings. Return how many replies were
    used."""
    replies = [tokens_of(chat, reply) for reply in replies]
    config = replace(CONFIG, env=env, think=number % 3 > 0, context_turns=number % 2 * 2)
    starts = [((number % 8,), 0)]
    options = dict(split="train", temperature=1.0, noise_seed=(0,))
    (trajectory,) = collect(Script(*replies), chat, config, starts, **options)
    turns = trajectory.turns
    assert trajectory.status in ("success", "failure", "out_of_turns"), turns[-1].record
    taken = replies[: len(turns)]
    for k, turn in enumerate(turns):
        marks = (turn.prompt_ids.count(chat.start), turn.prompt_ids.count(chat.end))
        assert marks == expected_marks(chat, taken, k, config.context_turns)
    parts = split_by_context([trajectory], config)
    trained = []
    for part in parts:
        places = [i for i, is_response in enumerate(part.response_mask) if is_response]
        trained += [part.ids[i] for i in places]
        batch = pack([part])
        assert batch.ids.tolist() == part.ids
        assert batch.response_index.tolist() == places
    assert trained == sum(taken, [])
    return len(taken)


@st.composite
def episodes(draw):
    env = draw(st.sampled_from(ENV_NAMES))
    texts = st.sampled_from(MARKS) | st.sampled_from(actions_of(env)) | st.text(max_size=8)
    repeats = st.sampled_from((1,) * 30 + (2, 30, 1000))
    repeated = st.tuples(texts, repeats).map(lambda pair: pair[0] * pair[1])
    pieces = repeated | st.sampled_from(SPECIAL_IDS)
    reply = st.lists(pieces, max_size=12)
    replies = st.lists(reply, min_size=NUM_TURNS, max_size=NUM_TURNS)
    return env, draw(st.integers(0, 47)), draw(replies)


def grammar(chat, number):
    num_taken = []
    no_checks = list(hypothesis.HealthCheck)
    for seed in count():

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=250, deadline=None, database=None, suppress_health_check=no_checks
        )
        @hypothesis.given(episodes())
        def run(episode):
            num_taken.append(play(chat, *episode))

        run()
        if sum(num_taken) >= number:
            return sum(num_taken)


def damage(data, rng):
    for _ in range(rng.integers(7)):
        start, end = sorted(rng.integers(0, len(data) + 1, 2))
        part = data[start:end]
        mark = MARKS[rng.integers(len(MARKS))].encode()
        bits = rng.integers(0, 8, end - start, np.uint8)
        flipped = (np.frombuffer(part, np.uint8) ^ 1 << bits).tobytes()
        inserted = rng.bytes(3) + part
        repeated = part * int(rng.choice([2, 2, 2, 50]))
        choices = [flipped, inserted, b"", repeated, mark + part]
        new = choices[rng.integers(5)]
        data = (data[:start] + new + data[end:])[:20_000]
    return data


def damaged_reply(chat, env, rng):
    thought = str(rng.choice(["", "Goal up. Next hole.", "Target 3."]))
    text = format_response(thought, rng.choice(actions_of(env), rng.integers(1, 4)))
    pieces = [damage(text.encode(), rng).decode("utf-8", errors="replace")]
    special = int(rng.choice(SPECIAL_IDS))
    if rng.random() < 0.1:
        pieces.append(special)
    if rng.random() < 0.9:
        pieces.append(chat.end)
    if rng.random() < 0.1:
        return [pieces[i] for i in rng.permutation(len(pieces))]
    return pieces


def damaged(chat, number):
    num_taken = 0
    rng = np.random.default_rng(0)
    while num_taken < number:
        env = str(rng.choice(ENV_NAMES))
        replies = [damaged_reply(chat, env, rng) for _ in range(NUM_TURNS)]
        num_taken += play(chat, env, int(rng.integers(48)), replies)
    return num_taken


@cache
def actions_of(name):
    env = make_env(name)
    env.reset(0)
    return sorted({*env.random(20, np.random.default_rng(0)), *env.plan(5, 3), env.greedy()})


def main(number):
    chat = Chat(AutoTokenizer.from_pretrained(BASE))
    began = time.process_time()
    counts = {maker.__name__: maker(chat, number // 2) for maker in (grammar, damaged)}
    print(f"{counts}: {time.process_time() - began:.0f} CPU-seconds")


if __name__ == "__main__":
    main(int(sys.argv[1]))
