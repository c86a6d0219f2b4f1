"""Tests of packing.py. test_model.py tests attention in packs."""

from dataclasses import dataclass

import numpy as np
import torch

from packing import micro_batches, pack


@dataclass
class Sequence:
    """The attributes of a trajectory that packing.py reads if `pack` gets observations=False."""

    first_prompt_ids: list[int]
    ids: list[int]
    response_mask: list[bool]


def sequence(*turns):
    ids = []
    response_mask = []
    for prompt, response in turns:
        ids += [*prompt, *response]
        response_mask += [False] * len(prompt) + [True] * len(response)
    return Sequence(list(turns[0][0]), ids, response_mask)


def with_prompts(*prompts):
    return [sequence((prompt, [50 + i])) for i, prompt in enumerate(prompts)]


def test_pack_by_hand():
    first = sequence(([5, 6, 7], [8]), ([9, 10], [11, 12, 13]))
    batch = pack([first, sequence(([20], [21, 22]))])
    assert batch.ids.tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 13, 20, 21, 22]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2]
    # Piece 0 is [5, 6], piece 1 is the rest of the first sequence, and piece 2 is the whole second
    # sequence. The first prompt of a sequence is cut before the prompt's last token. In the second
    # sequence this prompt has only one token, so it is not cut.
    assert batch.lengths == [2, 7, 3]
    assert batch.contexts == [(), (0,), ()]
    assert batch.response_index.tolist() == [3, 6, 7, 8, 10, 11]
    for tensor in (batch.ids, batch.position_ids, batch.response_index):
        assert tensor.dtype == torch.int64


def test_pack_shares_what_prompts_have_in_common():
    # All prompts begin with [1, 2]. Two prompts are equal. The last token of a prompt is never
    # shared.
    batch = pack(with_prompts([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 7]))
    assert batch.ids.tolist() == [1, 2, 3, 4, 50, 4, 51, 7, 52]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 3, 4, 2, 3]
    assert batch.lengths == [2, 1, 2, 2, 2]
    assert batch.contexts == [(), (0,), (0, 1), (0, 1), (0,)]
    assert batch.response_index.tolist() == [4, 6, 8]


def test_the_example_of_the_module():
    prompt = [1, 2, 3, 4]
    batch = pack([sequence((prompt, [5, 6])), sequence((prompt, [7]))])
    assert batch.ids.tolist() == [1, 2, 3, 4, 5, 6, 4, 7]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 3, 4]
    assert batch.lengths == [3, 3, 2]
    assert batch.contexts == [(), (0,), (0,)]
    assert batch.response_index.tolist() == [4, 5, 7]


def test_micro_batches_keep_equal_prompts_together_and_count_them_once():
    a = list(range(10))
    b = list(range(20, 30))
    # A sequence has 10 + 1 tokens. A repeated prompt adds only its last token and the response.
    sequences = with_prompts(a, b, a, b, a)
    # Sequences 0, 2, 4 and 1 have 11 + 2 + 2 + 11 = 26 tokens. With sequence 3, the pack would have
    # 28 tokens.
    assert micro_batches(sequences, 26) == [[0, 2, 4, 1], [3]]
    assert micro_batches(sequences, 25) == [[0, 2, 4], [1, 3]]
    assert micro_batches([], 10) == []


def test_micro_batches_never_exceed_the_budget():
    rng = np.random.default_rng(0)
    for _ in range(200):
        prompts = [[first] * int(rng.integers(1, 60)) for first in range(8)]
        max_tokens = int(rng.integers(20, 120))
        sequences = with_prompts(*(prompts[i] for i in rng.integers(8, size=rng.integers(1, 30))))

        def num_tokens(indices, sequences=sequences):
            return len(pack([sequences[i] for i in indices]).ids)

        packs = micro_batches(sequences, max_tokens)
        assert sorted(i for indices in packs for i in indices) == list(range(len(sequences)))
        for indices in packs:
            assert len(indices) == 1 or num_tokens(indices) <= max_tokens
        for indices, following in zip(packs, packs[1:], strict=False):
            assert num_tokens([*indices, following[0]]) > max_tokens
