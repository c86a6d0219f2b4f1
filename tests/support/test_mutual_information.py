"""Tests of support/mutual_information.py."""

import doctest
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from shared_fixtures import small_sft_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import parallel
from dialogue import Chat
from model import Policy
from packing import pack
from rollout import Trajectory, Turn
from support import mutual_information
from support.collapse_signs import classify_regime
from support.metrics import metric_groups
from support.mutual_information import (
    Thought,
    ThoughtScores,
    collapse_metrics,
    find_thoughts,
    measure_collapse,
    sample_thoughts,
    score_thoughts,
)
from tools.demonstrations import demonstration

CONFIG = small_sft_config(
    think=True, max_response_tokens=64, max_context_tokens=1024, collapse_pairs=4
)
MEASURED = {name for name, group in metric_groups(CONFIG).items() if group == "collapse"}
MEASURED -= {"regime"}


def test_doctests():
    results = doctest.testmod(mutual_information)
    assert results.attempted > 0 and results.failed == 0


# ---------- thoughts and prompts


def a_turn(chat, ids, prompt=(5, 6)):
    return Turn(list(prompt), list(ids), [], text=chat.decode(ids))


def the_thought(chat, ids):
    return find_thoughts(Trajectory((), 0, [a_turn(chat, ids)]), chat)[0]


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
    assert found.prompt_ids == (5, 6, *parts[0], *parts[1])
    assert tuple(found.ids) == parts[2] and chat.decode(found.ids) == thought
    sampled_before = list(found.prompt_ids[2:])
    sampled_after = ids[len(sampled_before) + len(found.ids) :]
    assert [*sampled_before, *found.ids, *sampled_after] == ids


def test_offsets_hold_for_any_sampled_ids(chat):
    """If the text of a thought is encoded, the tokens may differ from the sampled tokens."""
    rng = np.random.default_rng(0)
    (opening,) = chat.encode("<think>")
    (closing,) = chat.encode("</think>")
    special = (chat.start, chat.end, opening, closing)
    tokens = [i for i in range(len(chat.tokenizer)) if i not in special]
    broken = 0
    for _ in range(200):
        head, inner, tail = (rng.choice(tokens, n).tolist() for n in rng.integers(3, 12, 3))
        found = the_thought(chat, [*head, opening, *inner, closing, *tail, chat.end])
        assert found == Thought((5, 6, *head, opening), inner)
        broken += chat.encode(chat.decode(inner)) != tuple(inner)
    assert broken > 100


def test_tags_of_several_tokens():
    """The tokenizer splits <think> into several tokens, as the tokenizer of Qwen2.5 does. The token
    ".</" holds a part of the closing tag, so the thought ends before this token."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    words.train_from_iterator(["<think>Go up.</think>"] * 9, trainer)
    chat = Chat(PreTrainedTokenizerFast(tokenizer_object=words))
    ids = [*chat.encode("<think>Go up.</think><answer>Up</answer>"), chat.end]
    tokens = chat.tokenizer.convert_ids_to_tokens(ids)
    assert ".</" in tokens and "<think>" not in tokens
    found = the_thought(chat, ids)
    first = len(found.prompt_ids) - 2
    assert chat.decode(ids[:first]) == "<think>" and first > 1
    assert found.ids == ids[first : tokens.index(".</")] and chat.decode(found.ids) == "Go up"
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
def test_a_reply_without_a_thought(chat, text):
    assert the_thought(chat, [*chat.encode(text), chat.end]) is None


def test_a_prompt_is_everything_before_the_thought(chat):
    config = replace(CONFIG, actions_per_turn=1, sft_actions=1)
    demonstrations = (demonstration(config, chat, i) for i in range(20))
    played = next(played for played in demonstrations if len(played.turns) == 3)
    silent = [*chat.encode("<answer>Up</answer>"), chat.end]
    played.turns[1] = a_turn(chat, silent, played.turns[1].prompt_ids)
    found = find_thoughts(played, chat)
    assert len(found) == 3 and found[1] is None
    for index in (0, 2):
        thought = found[index]
        turn = played.turns[index]
        before = Trajectory((), 0, played.turns[:index]).ids
        assert thought.prompt_ids == (*before, *turn.prompt_ids, *chat.encode("<think>"))
        rest = turn.response_ids[1 + len(thought.ids) :]
        whole = [*before, *turn.prompt_ids, *turn.response_ids]
        assert [*thought.prompt_ids, *thought.ids, *rest] == whole
        assert turn.text == f"<think>{chat.decode(thought.ids)}{chat.decode(rest)}"


def test_samples_are_uniform_over_trajectories_and_turns():
    a, b, c, d = (Thought((i,), [i]) for i in range(4))
    found = [[a], [None, b, c, d], [None]]
    many = [sample_thoughts(found, 1, np.random.default_rng(seed)) for seed in range(900)]
    assert all(samples.first == [a] for samples in many)
    counts = [sum(samples.sampled == [thought] for samples in many) for thought in (a, b, c, d)]
    # Each of the 900 draws chooses one of the two trajectories with thoughts, and then one thought
    # of this trajectory. Expect `a` in 450 draws, and `b`, `c` and `d` in 150 each. The standard
    # deviation is 15 for `a`, and 11 for each of `b`, `c` and `d`.
    assert sum(counts) == 900
    assert abs(counts[0] - 450) < 45 and all(abs(count - 150) < 35 for count in counts[1:])
    samples = sample_thoughts(found, 9, np.random.default_rng(0))
    assert a in samples.sampled and len(samples.sampled) == 2
    assert samples == sample_thoughts(found, 9, np.random.default_rng(0))


# ---------- the matrix


def log(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


def metrics_of(matrix, own, lengths=None):
    lengths = torch.tensor(lengths or [1] * len(own))
    return collapse_metrics(ThoughtScores(matrix, lengths, torch.tensor(own)))


def test_two_by_two_by_hand():
    # Thought 0 has two tokens. After its own prompt, thought 0 has the probability 1/4, so the
    # geometric mean over the two tokens is 1/2. After the other prompt, thought 0 has the
    # probability 1/16, so the geometric mean is 1/4. Thought 1 has one token. The probability of
    # thought 1 is 1/2 after its own prompt and 1/8 after the other prompt.
    found = metrics_of(log([1 / 4, 1 / 8], [1 / 16, 1 / 2]), [0, 1], [2, 1])
    per_token = [math.log(1 / 2), math.log(1 / 2)], [math.log(3 / 8), math.log(5 / 16)]
    per_thought = [math.log(1 / 4), math.log(1 / 2)], [math.log(5 / 32), math.log(5 / 16)]
    expected = {"pairs": 2, "mi_bound": math.log(2)}
    for ending, (matched, marginal) in (("", per_token), ("_seq", per_thought)):
        mi = (sum(matched) - sum(marginal)) / 2
        std = abs(marginal[0] - marginal[1]) / 2
        expected[f"conditional_entropy{ending}"] = -sum(matched) / 2
        expected[f"marginal_entropy{ending}"] = -sum(marginal) / 2
        expected[f"mi{ending}"] = mi
        expected[f"mi_zscore{ending}"] = mi / (std + 1e-3)
        expected[f"marginal_std{ending}"] = std
    expected |= {"retrieval@1": 1, "retrieval_chance@1": 0.5, "retrieval_above@1": 0.5}
    for k in (2, 4, 8):
        expected |= {f"retrieval@{k}": 1, f"retrieval_chance@{k}": 1, f"retrieval_above@{k}": 0}
    assert found == pytest.approx(expected, abs=1e-12)


def test_three_thoughts_of_two_prompts_by_hand():
    # Two of the three thoughts belong to prompt 0, so prompt 0 has the weight 2/3. The last thought
    # belongs to prompt 1, so prompt 1 has the weight 1/3. The thoughts have these marginal
    # probabilities:
    # - (2 * .6 + .3) / 3 = .5
    # - (2 * .2 + .2) / 3 = .2
    # - (2 * .1 + .4) / 3 = .2
    found = metrics_of(log([0.6, 0.2, 0.1], [0.3, 0.2, 0.4]), [0, 0, 1])
    expected = (math.log(1.2) + math.log(1) + math.log(2)) / 3
    assert found["mi"] == found["mi_seq"] == pytest.approx(expected)
    assert found["mi_bound"] == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
    # the two prompts tie for thought 1, so thought 1 counts 1/2
    assert found["retrieval@1"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert found["retrieval_chance@1"] == 0.5 and found["retrieval_above@2"] == 0


def test_retrieval_by_rank():
    # Rank the three prompts by the log-prob of a thought. For thought 0, its own prompt is third.
    # For thought 1, its own prompt is second. For thought 2, its own prompt ties for second and
    # third place.
    found = metrics_of(log([0.1, 0.3, 0.2], [0.2, 0.2, 0.5], [0.3, 0.1, 0.2]), [0, 1, 2])
    assert found["retrieval@1"] == 0 and found["retrieval_chance@1"] == pytest.approx(1 / 3)
    assert found["retrieval@2"] == pytest.approx((0 + 1 + 1 / 2) / 3)
    assert found["retrieval@4"] == found["retrieval_chance@4"] == 1


def test_shared_prompts_weigh_like_their_copies():
    """In the averages of RAGEN-2, the prompt of each of the N thoughts has the weight 1/N. So if
    several thoughts share a prompt, the sum below counts the prompt once for each of these
    thoughts."""
    rng = np.random.default_rng(0)
    own = [0, 2, 2, 1, 2, 0]
    matrix = rng.normal(size=(3, 6))
    found = metrics_of(torch.tensor(matrix), own)
    marginal = [math.log(sum(math.exp(matrix[j][i]) for j in own) / 6) for i in range(6)]
    mi = sum(matrix[own[i]][i] - marginal[i] for i in range(6)) / 6
    assert found["mi"] == pytest.approx(mi)
    assert found["marginal_entropy"] == pytest.approx(-sum(marginal) / 6)
    assert found["mi_zscore"] == pytest.approx(mi / (np.std(marginal) + 1e-3))


def test_thoughts_that_identify_their_prompts_reach_the_bound():
    own = [0, 2, 2, 1, 2, 0]
    certain = torch.full((3, 6), -1e9)
    certain[torch.tensor(own), torch.arange(6)] = 0.0
    found = metrics_of(certain, own)
    entropy = math.log(3) / 3 + math.log(6) / 6 + math.log(2) / 2
    assert found["mi"] == pytest.approx(entropy) and found["mi_bound"] == pytest.approx(entropy)
    assert found["conditional_entropy"] == 0 and found["marginal_entropy"] == pytest.approx(entropy)


def test_a_policy_that_ignores_prompts_is_at_chance():
    row = torch.tensor([[-3.0, -0.5, -7.0, -2.0, -1.0]])
    noise = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    matrix = row.expand(3, 5) + 1e-5 * noise  # like the rounding errors of forward passes
    found = metrics_of(matrix, [0, 1, 1, 1, 2], [3, 1, 4, 2, 2])
    assert found["mi"] == pytest.approx(0, abs=1e-4)
    assert found["mi_seq"] == pytest.approx(0, abs=1e-4)
    assert found["retrieval@1"] == pytest.approx(1 / 3, abs=1e-12)
    assert found["retrieval@2"] == pytest.approx(2 / 3)
    above = [found[f"retrieval_above@{k}"] for k in (1, 2, 4, 8)]
    assert above == pytest.approx([0] * 4, abs=1e-12)
    assert found["marginal_entropy"] == pytest.approx((3 / 3 + 0.5 + 7 / 4 + 1 + 0.5) / 5, abs=1e-4)


def test_one_prompt_has_no_information():
    found = metrics_of(torch.tensor([[-3.0, -1.0]]), [0, 0], [3, 1])
    assert found["mi"] == found["mi_bound"] == found["mi_zscore"] == 0
    assert found["conditional_entropy"] == 1
    assert found["retrieval@1"] == found["retrieval_chance@1"] == 1


# ---------- measurements


class PromptBlindPolicy(torch.nn.Module):
    def __init__(self, scale, size=1024):
        super().__init__()
        self.table = torch.nn.Parameter(-scale * torch.linspace(1, 2, size))

    def forward(self, batch, temperature):
        logprobs = self.table[batch.ids[batch.response_index]] / temperature
        return logprobs, torch.zeros_like(logprobs)


@pytest.fixture(scope="module")
def played(chat):
    return [demonstration(CONFIG, chat, i // 2) for i in range(6)]


def measure(policy, trajectories, chat, config=CONFIG, *, seed=0, history=()):
    rng = np.random.default_rng(seed)
    return measure_collapse(policy, trajectories, chat, config, rng=rng, history=history)


def test_the_matrix_equals_single_forwards(random_model, chat, played, monkeypatch):
    scored = []

    def spy(policy, sequences, *args):
        scored.extend(sequences)
        return parallel.forward_sequences(policy, sequences, *args)

    monkeypatch.setattr(mutual_information, "forward_sequences", spy)
    policy = Policy(random_model)
    thoughts = [find_thoughts(trajectory, chat)[0] for trajectory in played]
    config = replace(CONFIG, temperature=0.7, micro_batch_tokens=1024)
    scores = score_thoughts(policy, thoughts, config)
    assert len(scored) == 3 * 6 and scores.own_prompts.tolist() == [0, 0, 1, 1, 2, 2]
    lengths = [len(thought.ids) for thought in thoughts]
    assert scores.lengths.tolist() == lengths and len(set(lengths)) > 1
    for j in range(3):
        prompt_ids = list(thoughts[2 * j].prompt_ids)
        for i, thought in enumerate(thoughts):
            single = Trajectory((), 0, [Turn(prompt_ids, thought.ids, [])])
            with torch.no_grad():
                expected = policy(pack([single]), 0.7)[0].sum().item()
            assert scores.logprobs[j, i].item() == pytest.approx(expected, rel=1e-5)


def test_measure_a_model_that_depends_on_its_prompt(random_model, chat, played):
    row = measure(Policy(random_model), played, chat)
    assert set(row) == MEASURED and None not in row.values()
    assert row["pairs_first"] == row["pairs_sampled"] == 4 and row["valid_thinking_rate"] == 1
    assert abs(row["mi_seq_first"]) > 0.01 and row["mi_seq_first"] < row["mi_bound_first"]
    for ending in ("_first", "_seq_first"):
        entropies = row[f"marginal_entropy{ending}"] - row[f"conditional_entropy{ending}"]
        assert row[f"mi{ending}"] == pytest.approx(entropies)
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize("scale, expected", [(0.8, "template"), (0.0, "collapsed")])
def test_measure_a_policy_that_ignores_its_prompt(chat, played, scale, expected):
    row = measure(PromptBlindPolicy(scale), played, chat, replace(CONFIG, collapse_pairs=6))
    all_ids = [find_thoughts(trajectory, chat)[0].ids for trajectory in played]
    per_token = [scale * sum(1 + token / 1023 for token in ids) / len(ids) for ids in all_ids]
    assert row["conditional_entropy_first"] == pytest.approx(sum(per_token) / 6, abs=1e-6)
    assert row["mi_bound_first"] == pytest.approx(math.log(3))
    assert row["mi_first"] == pytest.approx(0, abs=1e-6)
    for sampling in ("first", "sampled"):
        above = [row[f"retrieval_above@{k}_{sampling}"] for k in (1, 2, 4, 8)]
        assert above == pytest.approx([0] * 4, abs=1e-12)
    assert row["retrieval@1_first"] == pytest.approx(1 / 3, abs=1e-12)
    assert classify_regime(row, []) == expected


def test_a_measurement_repeats_and_its_average_continues(random_model, chat, played):
    policy = Policy(random_model)
    first = measure(policy, played, chat, seed=1)
    assert first == measure(policy, played, chat, seed=1)
    assert first["mi_zscore_ema_first"] == first["mi_zscore_first"]
    not_measured = dict.fromkeys(MEASURED)
    second = measure(policy, played, chat, seed=2, history=[first, not_measured])
    for sampling in ("first", "sampled"):
        before = first[f"marginal_std_{sampling}"]
        now = second[f"marginal_std_{sampling}"]
        average = second[f"marginal_std_ema_{sampling}"]
        assert average == pytest.approx(0.9 * before + 0.1 * now) != pytest.approx(now)
        # As in RAGEN-2, mi_zscore_ema is mi / (moving average of marginal_std + 0.001). The
        # metric mi_zscore_ema is not an average of z-scores.
        zscore = second[f"mi_zscore_ema_{sampling}"]
        assert zscore == pytest.approx(second[f"mi_{sampling}"] / (average + 1e-3))
    # The row `oldest` is from an earlier version of the code, which wrote no marginal_std_ema. So
    # the row adds nothing to the moving average.
    oldest = {"mi_zscore_ema_first": 5.0}
    assert measure(policy, played, chat, seed=1, history=[oldest]) == first


def test_turns_without_a_thought_are_counted_and_left_out(random_model, chat, played):
    policy = Policy(random_model)
    silent_turn = a_turn(chat, [*chat.encode("<answer>Up</answer>"), chat.end])
    silent = [Trajectory((), 0, [silent_turn])] * 3
    assert measure(policy, silent, chat) == {"valid_thinking_rate": 0}
    row = measure(policy, [*silent, played[0]], chat)
    assert row["valid_thinking_rate"] == len(played[0].turns) / (len(played[0].turns) + 3)
    assert row["pairs_first"] == row["pairs_sampled"] == 1
    assert row["mi_first"] == row["mi_bound_first"] == 0
