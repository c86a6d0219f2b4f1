"""
Tests of diagnostics.py: token offsets, matrices by hand, policies that ignore or repeat themselves, constructed runs.

    python -m pytest -q tests/test_diagnostics.py
"""

import doctest
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import small_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import parallel
from model import Policy
from packing import pack
from rollout import Chat, Trajectory, Turn
from support import collapse as diagnostics
from support.collapse import (
    KEYS,
    Thought,
    collapse_metrics,
    measure,
    regime,
    stop_reason,
    thoughts,
    warnings_of,
)
from tools.corpus import demonstration

CONFIG = small_config(think=True, max_response_tokens=64, max_context_tokens=1024, collapse_pairs=4)


def test_doctests():
    results = doctest.testmod(diagnostics)
    assert results.attempted > 0 and results.failed == 0


# ---------- thoughts and prompts


def a_turn(chat, ids, prompt=(5, 6)):
    return Turn(list(prompt), list(ids), [], text=chat.decode(ids))


def the_thought(chat, ids):
    return thoughts(Trajectory((), 0, [a_turn(chat, ids)]), chat)[0]


@pytest.mark.parametrize(
    "before, thought, after",
    [
        ("", "Goal 1 down, 2 left. Next hole.", "<answer>Up || Left</answer>"),
        ("\nWell: ", " é🙂\n√", "</think> again <think>no</think>"),
        ("<answer>Up</answer>", "<think> <think", "\n<answer>Up"),
    ],
)
def test_a_thought_is_what_was_sampled_between_the_tags(chat, before, thought, after):
    parts = [chat.encode(part) for part in (before, "<think>", thought, "</think>", after)]
    ids = [token for part in parts for token in part] + [chat.end]
    found = the_thought(chat, ids)
    assert found.prompt_ids == (5, 6, *parts[0], *parts[1]) and tuple(found.ids) == parts[2]
    assert [
        *found.prompt_ids[2:],
        *found.ids,
        *ids[len(found.prompt_ids) - 2 + len(found.ids) :],
    ] == ids
    assert chat.decode(found.ids) == thought


def test_offsets_hold_for_any_sampled_ids(chat):
    """Tokens at random, pieces of characters among them, which re-encoding would not return."""
    rng, (opening, closing) = (
        np.random.default_rng(0),
        (chat.encode(tag)[0] for tag in ("<think>", "</think>")),
    )
    tokens = [
        i for i in range(len(chat.tokenizer)) if i not in (chat.start, chat.end, opening, closing)
    ]
    broken = 0
    for _ in range(200):
        head, inner, tail = (rng.choice(tokens, n).tolist() for n in rng.integers(3, 12, 3))
        found = the_thought(chat, [*head, opening, *inner, closing, *tail, chat.end])
        assert found == Thought((5, 6, *head, opening), inner)
        broken += chat.encode(chat.decode(inner)) != tuple(inner)
    assert broken > 100


def test_tags_of_several_tokens():
    """As in Qwen2.5: "<think>" is no token, and ".</" is one, which reaches into the tag and is left out."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    words.train_from_iterator(["<think>Go up.</think>"] * 9, trainer)
    chat = Chat(PreTrainedTokenizerFast(tokenizer_object=words))
    names = chat.tokenizer.convert_ids_to_tokens
    ids = [*chat.encode("<think>Go up.</think><answer>Up</answer>"), chat.end]
    found = the_thought(chat, ids)
    assert ".</" in names(ids) and "<think>" not in names(ids)
    first = len(found.prompt_ids) - 2
    assert chat.decode(ids[:first]) == "<think>" and first > 1
    assert found.ids == ids[first : names(ids).index(".</")] and chat.decode(found.ids) == "Go up"
    assert chat.decode(ids[first + len(found.ids) :]) == ".</think><answer>Up</answer>"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<answer>Up</answer>",
        "<think></think><answer>Up</answer>",
        "<think> \n</think>",
        "<think>never closed",
        "Goal up.</think><answer>Up</answer>",
        "</think>late<think>",
    ],
)
def test_what_is_no_thought(chat, text):
    assert the_thought(chat, [*chat.encode(text), chat.end]) is None


def test_prompts_are_all_that_came_before(chat):
    config = replace(CONFIG, actions_per_turn=1, sft_actions=1)
    played = next(t for i in range(20) if len((t := demonstration(config, chat, i)).turns) == 3)
    played.turns[1] = a_turn(
        chat, [*chat.encode("<answer>Up</answer>"), chat.end], played.turns[1].prompt_ids
    )
    found = thoughts(played, chat)
    assert len(found) == 3 and found[1] is None
    for turns, thought in ((played.turns[:0], found[0]), (played.turns[:2], found[2])):
        before, turn = Trajectory((), 0, turns).ids, played.turns[len(turns)]
        assert thought.prompt_ids == (*before, *turn.prompt_ids, *chat.encode("<think>"))
        rest = turn.response_ids[1 + len(thought.ids) :]
        assert [*thought.prompt_ids, *thought.ids, *rest] == [
            *before,
            *turn.prompt_ids,
            *turn.response_ids,
        ]
        assert turn.text == f"<think>{chat.decode(thought.ids)}{chat.decode(rest)}"


def test_draws():
    a, b, c, d = (Thought((i,), [i]) for i in range(4))
    found = [[a], [None, b, c, d], [None]]
    many = [diagnostics.draw(found, 1, np.random.default_rng(seed)) for seed in range(900)]
    assert all(pairs["first"] == [a] for pairs in many)
    counts = [sum(pairs["sampled"] == [z] for pairs in many) for z in (a, b, c, d)]
    assert (
        sum(counts) == 900
    )  # the trajectories that have a thought 450 each, its turns 150 each: sd 15 and 11
    assert abs(counts[0] - 450) < 45 and all(abs(n - 150) < 35 for n in counts[1:])
    pairs = diagnostics.draw(found, 9, np.random.default_rng(0))
    assert a in pairs["sampled"] and len(pairs["sampled"]) == 2  # no trajectory twice
    assert pairs == diagnostics.draw(found, 9, np.random.default_rng(0))


# ---------- the matrix


def log(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


def metrics_of(matrix, own, lengths=None):
    return collapse_metrics(matrix, torch.tensor(lengths or [1] * len(own)), torch.tensor(own))


def test_two_by_two_by_hand():
    # thought 0 has two tokens, p = 1/4 after its own prompt and 1/16 after the other: 1/2 and 1/4 per token
    # thought 1 has one token, p = 1/2 after its own, 1/8 after the other
    found = metrics_of(log([1 / 4, 1 / 8], [1 / 16, 1 / 2]), [0, 1], [2, 1])
    marginal, marginal_seq = (
        [math.log(3 / 8), math.log(5 / 16)],
        [math.log(5 / 32), math.log(5 / 16)],
    )
    matched, matched_seq = [math.log(1 / 2)] * 2, [math.log(1 / 4), math.log(1 / 2)]
    expected = {"pairs": 2, "mi_bound": math.log(2)}
    for unit, p, q in (("", matched, marginal), ("_seq", matched_seq, marginal_seq)):
        expected |= {
            f"conditional_entropy{unit}": -sum(p) / 2,
            f"marginal_entropy{unit}": -sum(q) / 2,
        }
        expected[f"mi{unit}"] = (sum(p) - sum(q)) / 2
        expected[f"mi_zscore{unit}"] = expected[f"mi{unit}"] / (
            abs(q[0] - q[1]) / 2 + 1e-3
        )  # std of two numbers
    expected |= {"retrieval@1": 1, "retrieval_chance@1": 0.5, "retrieval_above@1": 0.5}
    for k in (2, 4, 8):
        expected |= {f"retrieval@{k}": 1, f"retrieval_chance@{k}": 1, f"retrieval_above@{k}": 0}
    assert found == pytest.approx(expected, abs=1e-12)


def test_three_thoughts_of_two_prompts_by_hand():
    # weights 2/3 and 1/3: marginals (2 * .6 + .3) / 3 = .5, (2 * .2 + .2) / 3 = .2, (2 * .1 + .4) / 3 = .2
    found = metrics_of(log([0.6, 0.2, 0.1], [0.3, 0.2, 0.4]), [0, 0, 1])
    assert (
        found["mi"]
        == found["mi_seq"]
        == pytest.approx((math.log(1.2) + math.log(1) + math.log(2)) / 3)
    )
    assert found["mi_bound"] == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
    assert found["retrieval@1"] == pytest.approx((1 + 1 / 2 + 1) / 3)  # the second thought ties
    assert found["retrieval_chance@1"] == 0.5 and found["retrieval_above@2"] == 0


def test_retrieval_by_rank():
    # the own prompt of thought 0 is the third of three, that of 1 the second, that of 2 ties for the last two places
    found = metrics_of(log([0.1, 0.3, 0.2], [0.2, 0.2, 0.5], [0.3, 0.1, 0.2]), [0, 1, 2])
    assert found["retrieval@1"] == 0 and found["retrieval_chance@1"] == pytest.approx(1 / 3)
    assert found["retrieval@2"] == pytest.approx((0 + 1 + 1 / 2) / 3)
    assert found["retrieval@4"] == found["retrieval_chance@4"] == 1


def test_shared_prompts_weigh_like_their_copies():
    """Against one row per pair, 1/N each, in a slow loop: the definition of RAGEN-2."""
    rng = np.random.default_rng(0)
    own = [0, 2, 2, 1, 2, 0]
    matrix = rng.normal(size=(3, 6))
    found = metrics_of(torch.tensor(matrix), own)
    marginal = [math.log(sum(math.exp(matrix[j][i]) for j in own) / 6) for i in range(6)]
    gap = [matrix[own[i]][i] - marginal[i] for i in range(6)]
    assert found["mi"] == pytest.approx(sum(gap) / 6) and found[
        "marginal_entropy"
    ] == pytest.approx(-sum(marginal) / 6)
    assert found["mi_zscore"] == pytest.approx(sum(gap) / 6 / (np.std(marginal) + 1e-3))
    # every thought certain of its prompt: MI is the entropy of the prompts' shares 2/6, 1/6, 3/6
    certain = torch.full((3, 6), -1e9).index_put_(
        (torch.tensor(own), torch.arange(6)), torch.zeros(())
    )
    found = metrics_of(certain, own)
    shares = math.log(3) / 3 + math.log(6) / 6 + math.log(2) / 2
    assert found["mi"] == pytest.approx(shares) and found["mi_bound"] == pytest.approx(shares)
    assert found["conditional_entropy"] == 0 and found["marginal_entropy"] == pytest.approx(shares)


def test_a_policy_that_ignores_prompts_is_at_chance():
    column = torch.tensor([[-3.0, -0.5, -7.0, -2.0, -1.0]])
    rounding = 1e-5 * torch.randn(
        3, 5, generator=torch.Generator().manual_seed(0)
    )  # as forwards have it
    found = metrics_of(column.expand(3, 5) + rounding, [0, 1, 1, 1, 2], [3, 1, 4, 2, 2])
    assert found["mi"] == pytest.approx(0, abs=1e-4) and found["mi_seq"] == pytest.approx(
        0, abs=1e-4
    )
    assert found["retrieval@1"] == pytest.approx(1 / 3, abs=1e-12) and found[
        "retrieval@2"
    ] == pytest.approx(2 / 3)
    assert [found[f"retrieval_above@{k}"] for k in (1, 2, 4, 8)] == pytest.approx(
        [0] * 4, abs=1e-12
    )
    assert found["marginal_entropy"] == pytest.approx((3 / 3 + 0.5 + 7 / 4 + 1 + 0.5) / 5, abs=1e-4)


def test_one_prompt_tells_nothing():
    found = metrics_of(torch.tensor([[-3.0, -1.0]]), [0, 0], [3, 1])
    assert (
        found["mi"] == found["mi_bound"] == found["mi_zscore"] == 0
        and found["conditional_entropy"] == 1
    )
    assert found["retrieval@1"] == found["retrieval_chance@1"] == 1


# ---------- end to end


class Stub(torch.nn.Module):
    """A policy that ignores its prompt: the log-prob of a token is `scale` times a fixed number between -1 and -2."""

    def __init__(self, scale, size=1024):
        super().__init__()
        self.table = torch.nn.Parameter(-scale * torch.linspace(1, 2, size))

    def forward(self, batch, temperature):
        logprobs = self.table[batch.ids[batch.response_index]] / temperature
        return logprobs, torch.zeros_like(logprobs)


@pytest.fixture(scope="module")
def played(chat):
    """Six demonstrations on three boards: two trajectories each have the same first prompt."""
    return [demonstration(CONFIG, chat, i // 2) for i in range(6)]


def test_the_matrix_equals_single_forwards(random_model, chat, played, monkeypatch):
    scored = []
    spy = lambda policy, sequences, *args: (
        scored.extend(sequences) or parallel.score_tokens(policy, sequences, *args)
    )  # noqa: E731
    monkeypatch.setattr(diagnostics, "score_tokens", spy)
    policy, config = Policy(random_model), replace(CONFIG, temperature=0.7, micro_batch_tokens=1024)
    pairs = [thoughts(t, chat)[0] for t in played]
    found, lengths, own = diagnostics.score(policy, pairs, config)
    assert len(scored) == 3 * 6 and own.tolist() == [0, 0, 1, 1, 2, 2]
    assert lengths.tolist() == [len(z.ids) for z in pairs] and len(set(lengths.tolist())) > 1
    for j in range(3):
        for i, z in enumerate(pairs):
            one = Trajectory((), 0, [Turn(list(pairs[2 * j].prompt_ids), z.ids, [])])
            with torch.no_grad():
                expected = policy(pack([one]), 0.7)[0].sum().item()
            assert found[j, i].item() == pytest.approx(expected, rel=1e-5)


def test_measure_a_model_that_depends_on_its_prompt(random_model, chat, played):
    """The small model has random but large weights: a prompt changes what follows, though not towards what was said."""
    row = measure(
        Policy(random_model), played, chat, CONFIG, rng=np.random.default_rng(0), history=[]
    )
    assert tuple(row) == KEYS and None not in row.values()
    assert row["pairs_first"] == row["pairs_sampled"] == 4 and row["valid_thinking_rate"] == 1
    assert abs(row["mi_seq_first"]) > 0.01 and row["mi_seq_first"] < row["mi_bound_first"]
    for unit in ("", "_seq"):
        entropies = row[f"marginal_entropy{unit}_first"] - row[f"conditional_entropy{unit}_first"]
        assert row[f"mi{unit}_first"] == pytest.approx(entropies)
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize("scale, expected", [(0.8, "template"), (0.0, "collapsed")])
def test_measure_a_policy_that_ignores_its_prompt(chat, played, scale, expected):
    config = replace(CONFIG, collapse_pairs=6)
    row = measure(Stub(scale), played, chat, config, rng=np.random.default_rng(0), history=[])
    ids = [thoughts(t, chat)[0].ids for t in played]
    per_token = [scale * sum(1 + token / 1023 for token in z) / len(z) for z in ids]
    assert row["conditional_entropy_first"] == pytest.approx(sum(per_token) / 6, abs=1e-6)
    assert row["mi_bound_first"] == pytest.approx(math.log(3)) and row["mi_first"] == pytest.approx(
        0, abs=1e-6
    )
    for sampling in ("first", "sampled"):
        above = [row[f"retrieval_above@{k}_{sampling}"] for k in (1, 2, 4, 8)]
        assert above == pytest.approx([0] * 4, abs=1e-12)
    assert row["retrieval@1_first"] == pytest.approx(1 / 3, abs=1e-12)
    assert regime(healthy(1)[0] | row, []) == expected


def test_a_measurement_repeats_and_its_average_continues(random_model, chat, played):
    again = lambda seed, history: measure(
        Policy(random_model),
        played,
        chat,
        CONFIG,  # noqa: E731
        rng=np.random.default_rng(seed),
        history=history,
    )
    first = again(1, [])
    assert first == again(1, []) and first["mi_zscore_ema_first"] == first["mi_zscore_first"]
    history = [first, dict.fromkeys(KEYS)]  # not measured in between
    for key in ("first", "sampled"):
        second = again(2, history)
        expected = 0.9 * first[f"mi_zscore_{key}"] + 0.1 * second[f"mi_zscore_{key}"]
        assert (
            second[f"mi_zscore_ema_{key}"]
            == pytest.approx(expected)
            != pytest.approx(second[f"mi_zscore_{key}"])
        )


def test_turns_without_a_thought_are_counted_and_left_out(random_model, chat, played):
    silent = [
        Trajectory((), 0, [a_turn(chat, [*chat.encode("<answer>Up</answer>"), chat.end])])
    ] * 3
    row = measure(
        Policy(random_model), silent, chat, CONFIG, rng=np.random.default_rng(0), history=[]
    )
    assert row == dict.fromkeys(KEYS) | {"valid_thinking_rate": 0}
    row = measure(
        Policy(random_model),
        [*silent, played[0]],
        chat,
        CONFIG,
        rng=np.random.default_rng(0),
        history=[],
    )
    assert row["valid_thinking_rate"] == len(played[0].turns) / (len(played[0].turns) + 3)
    assert (
        row["pairs_first"] == row["pairs_sampled"] == 1
        and row["mi_first"] == row["mi_bound_first"] == 0
    )


# ---------- regimes


def healthy(n):
    """Rows of a run that learns: success rises to 0.8, std of rewards and entropy fall slowly, all with some noise."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        noise, success = rng.uniform(0.85, 1.15, 3), 0.3 + 0.5 * min(1, i / 100)
        row = dict(
            step=i + 1,
            in_group_reward_std=noise[0] * math.sqrt(success * (1 - success)),
            success=success,
        )
        row |= dict(reward=success, kept_groups=2, entropy=noise[1] * (0.3 - 0.2 * min(1, i / 100)))
        row |= dict(
            grad_norm=0.3 * noise[2] * (8 if i % 17 == 5 else 1)
        )  # single large ones are common
        row |= dict(eval_success=success if i % 10 == 9 else None)
        rows.append(row | dict.fromkeys(KEYS))
    return rows


def changed(rows, start, **changes):
    """The rows with other values from index `start` on; a function is given the row."""
    value = lambda new, row: new(row) if callable(new) else new  # noqa: E731
    return rows[:start] + [
        row | {k: value(new, row) for k, new in changes.items()} for row in rows[start:]
    ]


def measured(matrix, own, lengths=None):
    return {f"{key}_first": value for key, value in metrics_of(matrix, own, lengths).items()}


UNIFORM = log([1 / 4] * 4, [1 / 4] * 4)  # four thoughts, whatever the prompt
READING = log([1 / 2, 1 / 2, 0, 0], [0, 0, 1 / 2, 1 / 2])  # two for each of the prompts
CERTAIN = log([1, 1, 0, 0], [0, 0, 1, 1])  # one for each
SAME = log([1] * 4, [1] * 4)  # one for both


@pytest.mark.parametrize(
    "matrix, mi, entropy, expected",
    [
        (READING, math.log(2), math.log(2), "diverse"),
        (UNIFORM, 0, math.log(4), "template"),
        (CERTAIN, math.log(2), 0, "compressed"),
        (SAME, 0, 0, "collapsed"),
    ],
)
def test_the_four_regimes(matrix, mi, entropy, expected):
    values = measured(matrix, [0, 0, 1, 1])
    assert values["mi_first"] == pytest.approx(mi) and values[
        "conditional_entropy_first"
    ] == pytest.approx(entropy)
    row = healthy(1)[0] | values
    assert regime(row, []) == expected
    assert regime(healthy(1)[0], [row]) == expected  # holds until the next measurement
    start = healthy(1)[0] | measured(READING, [0, 0, 1, 1])
    assert regime(row, [start] * 30) == expected


def test_entropy_is_low_against_the_start():
    # p = 0.9 for each of ten tokens, and 0.5 before: 0.105 nats a token, under a quarter of 0.693 and over 0.05
    before, after = (10 * log([p, 0.01], [0.01, p]) for p in (0.5, 0.9))
    rows = [healthy(1)[0] | measured(matrix, [0, 1], [10, 10]) for matrix in (before, after)]
    assert regime(rows[1], []) == "diverse" and regime(rows[1], rows[:1]) == "compressed"
    assert regime(rows[0], []) == "diverse"


def test_without_measurements_the_traces_of_the_trap_decide():
    rows = healthy(60)
    assert {regime(row, rows[:i]) for i, row in enumerate(rows)} == {"diverse"}
    flat = changed(rows, 30, in_group_reward_std=0.05, success=0.1)
    assert regime(flat[-1], flat[:-1]) == "template"
    certain = changed(flat, 40, entropy=0.01)
    assert regime(certain[-1], certain[:-1]) == "collapsed"
    learned = changed(rows, 30, in_group_reward_std=0.05, success=0.95, entropy=0.01)
    assert (
        regime(learned[-1], learned[:-1]) == "compressed"
    )  # rewards do not vary because all succeed
    blown = changed(rows, 30, grad_norm=1e4)
    assert regime(blown[-1], blown[:-1]) == "template"
    idle = changed(rows, 0, entropy=None, grad_norm=None)
    assert regime(idle[-1], idle[:-1]) is None
    single = [
        row | measured(torch.tensor([[-1.0, -1.0]]), [0, 0]) for row in flat
    ]  # one prompt: MI means nothing
    assert (
        regime(single[-1], single[:-1]) == "template"
        and regime(single[20], single[:20]) == "diverse"
    )


# ---------- early signs and stops


def all_warnings(rows):
    return {i: said for i in range(1, len(rows) + 1) if (said := warnings_of(rows[:i]))}


def test_a_healthy_run_is_left_alone():
    rows = healthy(200)
    assert all_warnings(rows) == {}
    assert [stop_reason(rows[:i]) for i in range(201)] == [None] * 201
    learned = changed(rows, 50, in_group_reward_std=0.01, success=0.99, kept_groups=1)
    assert all_warnings(learned) == {}


@pytest.mark.parametrize(
    "changes, sentence",
    [
        (dict(in_group_reward_std=0.1), "std of rewards inside groups went from"),
        (dict(entropy=0.01), "entropy per token went from"),
        (dict(entropy=6.5), "entropy per token went from"),
        (dict(grad_norm=400.0), "gradient norm went from"),
    ],
)
def test_early_signs_are_said_once(changes, sentence):
    rows = changed(changed(healthy(60), 0, success=0.3), 30, **changes)
    said = all_warnings(rows)
    assert list(said) == [33]  # three of five iterations make the median
    assert len(said[33]) == 1 and sentence in said[33][0]
    (new,) = changes.values()
    assert said[33][0].endswith(f" to {new:.3g}")


def test_levels_in_a_sentence_by_hand():
    rows = changed(changed(healthy(20), 0, entropy=0.5), 17, entropy=0.1)
    assert warnings_of(rows) == ["early sign of collapse: entropy per token went from 0.5 to 0.1"]
    assert warnings_of(rows[:19]) == []  # two of five
    assert warnings_of(changed(rows, 17, entropy=0.126)) == []  # not a quarter
    assert (
        warnings_of(changed(changed(rows, 0, entropy=0.04), 17, entropy=0.001)) == []
    )  # it was certain already


def test_slow_decline_is_no_cliff():
    rows = changed(
        healthy(150), 0, success=0.2, in_group_reward_std=lambda row: 0.5 * 0.97 ** row["step"]
    )
    assert rows[-1]["in_group_reward_std"] < 0.01 and all_warnings(rows) == {}


def test_updates_that_were_skipped_leave_gaps():
    rows = changed(healthy(60), 20, entropy=None, grad_norm=None, kept_groups=0)
    assert all_warnings(rows) == {}


def test_rewards_that_no_longer_vary_stop_a_run():
    rows = changed(healthy(40), 0, in_group_reward_std=0.5)
    low = changed(rows, 15, in_group_reward_std=0.049)
    assert stop_reason(low[:24]) is None and "std of rewards" in stop_reason(low[:25])
    assert stop_reason(changed(low, 24, in_group_reward_std=0.5)[:25]) is None  # nine in a row
    assert stop_reason(changed(rows, 15, in_group_reward_std=0.051)) is None
    assert (
        stop_reason(changed(rows, 0, in_group_reward_std=0.0, success=0.0)) is None
    )  # of 0 there is no 10 %


def test_dead_evaluations_stop_a_run():
    rows = changed(
        healthy(60), 0, eval_success=lambda row: 0.004 if row["step"] % 10 == 0 else None
    )
    assert stop_reason(rows[:49]) is None
    assert stop_reason(rows[:50]) == "success was below 1% in 5 evaluations in a row"
    alive = (
        changed(rows[:49], 39, eval_success=lambda row: 0.01 if row["step"] == 40 else None)
        + rows[49:]
    )
    assert stop_reason(alive[:50]) is None


def test_an_empty_filter_stops_a_run():
    rows = changed(healthy(30), 10, kept_groups=0)
    assert stop_reason(rows[:14]) is None and "filter" in stop_reason(rows[:15])
    assert stop_reason(changed(rows, 14, kept_groups=1)[:15]) is None
    assert stop_reason([]) is None and warnings_of([]) == []
