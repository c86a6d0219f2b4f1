"""
Hostile replies, made by a grammar (hypothesis) and by damaging bytes: through parser, prompt builder, every environment
and the mask. Nothing may raise, take long, or forge a role or a mask.

    python tests/fuzz.py COUNT
"""

import sys
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import count

import hypothesis
import numpy as np
from conftest import small_config
from hypothesis import strategies as st

from dialogue import format_response, parse_response
from engine import Sample
from envs import ENVS, make_env
from packing import pack
from rollout import Chat, collect, split_by_context
from tools.tiny_model import build_tiny_tokenizer

TURNS = 3  # of an episode
OURS = sorted(
    ENVS.keys() - {"textworld", "alfworld", "swe"}
)  # those need packages, or files of their own
MARKS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "user\n",
    "assistant\n",
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "||",
    "\n",
    "\0",
    "\r",
    "\x1b[2J",
    "\u202e",
    "\u2066",
    "\ufffd",
    "\U0001f600",
    "'",
    '"',
    "<script>",
    "&",
    "9",
    "(",
    ")",
    "*",
    "/0",
    "-",
    ".",
    " ",
    "Goal up.",
    "edit 1: ",
    "while 1: n = n * n",
    "range(9**9)",
    "run",
    "submit",
]
SPECIAL = (0, 1, 2, 3)  # ids: those of the marks among them, which a policy may sample anywhere
CONFIG = small_config(
    think=True,
    max_turns=TURNS,
    max_response_tokens=10**5,
    max_context_tokens=10**6,
    micro_batch_tokens=10**6,
    max_running=1,
    step_timeout_s=10.0,
)


class Script:
    """An engine whose replies are given: the n-th turn of a trajectory gets the n-th of these, then they begin anew."""

    def __init__(self, *replies):
        self.replies, self.turns, self.waiting, self.version = replies, Counter(), [], None

    busy = property(lambda self: bool(self.waiting))

    def add(self, key, ids, **_):
        self.waiting.append(key)

    def step(self):
        keys, self.waiting, samples = self.waiting, [], []
        for key in keys:
            reply = list(self.replies[self.turns[key] % len(self.replies)])
            self.turns[key] += 1
            samples.append(Sample(key, reply, [-1.0] * len(reply)))
        return samples

    def release(self, key):
        pass


def tokens_of(chat, pieces):
    """Of a reply made of texts and of ids; the texts alone can forge nothing, from whomever they come."""
    ids = []
    for piece in pieces:
        if isinstance(piece, str):
            parse_response(piece), parse_response(piece, think=False)
            message = chat.message("user", piece)
            assert (message.count(chat.start), message.count(chat.end)) == (1, 1)
        ids += chat.encode(piece) if isinstance(piece, str) else [piece]
    return ids or [chat.end]  # nobody samples nothing


def play(chat, env, number, replies):
    """One episode with these replies, lists of texts and ids; returns how many it took."""
    replies = [tokens_of(chat, reply) for reply in replies]
    config = replace(CONFIG, env=env, think=number % 3 > 0, context_turns=number % 2 * 2)
    (t,) = collect(
        Script(*replies),
        chat,
        config,
        [((number % 8,), 0)],
        split="train",
        temperature=1.0,
        noise_seed=(0,),
    )
    assert t.status in ("success", "failure", "out_of_turns"), t.turns[-1].info
    taken, windows = replies[: len(t.turns)], config.context_turns
    for k, turn in enumerate(
        t.turns
    ):  # every mark in a prompt is one that we put there, or of a reply it repeats
        seen = taken[max(0, k + 1 - windows) : k] if windows else []
        links, opens = seen if windows else taken[max(0, k - 1) : k], k == 0 or windows > 0
        starts = 3 * opens + 2 * len(links) + sum(reply.count(chat.start) for reply in seen)
        ends = (
            2 * opens
            + sum(1 + (r[-1] != chat.end) for r in links)
            + sum(reply.count(chat.end) for reply in seen)
        )
        assert (turn.prompt_ids.count(chat.start), turn.prompt_ids.count(chat.end)) == (
            starts,
            ends,
        )
    parts = split_by_context([t], config)
    assert [i for s in parts for i, m in zip(s.ids, s.response_mask, strict=True) if m] == sum(
        taken, []
    )
    for part in parts:
        batch = pack([part])
        assert batch.ids.tolist() == part.ids
        assert batch.response_index.tolist() == [
            i for i, flag in enumerate(part.response_mask) if flag
        ]
    return len(taken)


@st.composite
def episodes(draw):
    """Environment, number and replies of marks, actions, text and special ids, some repeated."""
    env = draw(st.sampled_from(OURS))
    texts = st.sampled_from(MARKS) | st.sampled_from(actions_of(env)) | st.text(max_size=8)
    repeats = st.sampled_from((1,) * 30 + (2, 30, 1000))
    pieces = st.tuples(texts, repeats).map(lambda pair: pair[0] * pair[1]) | st.sampled_from(
        SPECIAL
    )
    replies = st.lists(st.lists(pieces, max_size=12), min_size=TURNS, max_size=TURNS)
    return env, draw(st.integers(0, 47)), draw(replies)


def grammar(chat, number):
    """At least this many replies that hypothesis composes; returns how many."""
    taken, quiet = [], list(hypothesis.HealthCheck)
    for seed in count():

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=500, deadline=None, database=None, suppress_health_check=quiet
        )
        @hypothesis.given(episodes())
        def run(episode):
            taken.append(play(chat, *episode))

        run()
        if sum(taken) >= number:
            return sum(taken)


def damage(data, rng):
    """Flip, insert, cut, repeat or splice bytes; up to six times."""
    for _ in range(rng.integers(7)):
        i, j = sorted(rng.integers(0, len(data) + 1, 2))
        part, mark = data[i:j], MARKS[rng.integers(len(MARKS))].encode()
        flipped = (
            np.frombuffer(part, np.uint8) ^ 1 << rng.integers(0, 8, j - i, np.uint8)
        ).tobytes()
        new = [
            flipped,
            rng.bytes(3) + part,
            b"",
            part * int(rng.choice([2, 2, 2, 50])),
            mark + part,
        ][rng.integers(5)]
        data = (data[:i] + new + data[j:])[:20_000]
    return data


def damaged(chat, number):
    """At least this many replies that were in order before their bytes were damaged; returns how many."""
    used, rng = 0, np.random.default_rng(0)
    while used < number:
        env, replies = str(rng.choice(OURS)), []
        for _ in range(TURNS):
            reply = format_response(
                str(rng.choice(["", "Goal up. Next hole.", "Target 3."])),
                rng.choice(actions_of(env), rng.integers(1, 4)),
            )
            pieces = [damage(reply.encode(), rng).decode("utf-8", errors="replace")]
            pieces += [int(rng.choice(SPECIAL))] * (rng.random() < 0.1) + [chat.end] * (
                rng.random() < 0.9
            )
            replies.append(
                [pieces[i] for i in rng.permutation(len(pieces))] if rng.random() < 0.1 else pieces
            )
        used += play(chat, env, int(rng.integers(48)), replies)
    return used


@cache
def actions_of(name):
    """Some actions that are known in this environment."""
    env, rng = make_env(name), np.random.default_rng(0)
    env.reset(0)
    return sorted({*env.random(20, rng), *env.plan(5, 3), env.greedy()})


def main(number):
    chat, began = Chat(build_tiny_tokenizer()), time.process_time()
    counts = {maker.__name__: maker(chat, number // 2) for maker in (grammar, damaged)}
    print(f"{counts}: {time.process_time() - began:.0f} CPU-seconds")


if __name__ == "__main__":
    main(int(sys.argv[1]))
