"""
Tests of model.py: the packed forward against Hugging Face's own, log-probs against autograd, files and messages. CPU.

    python -m pytest -q tests/test_model.py
"""

from configurator import Config

import copy
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import dialogue
import envs
import model
import rollout
from model import Batch, Critic, Policy, chunked_logprobs, load_model, packed_hidden

SEQUENCES = [  # tokens, and the places in the sequence of its "sampled" ones
    ([5, 300, 17, 42, 42, 9, 700, 3, 8, 55], [3, 4, 8, 9]),
    ([11, 6], [1]),
    ([400, 401, 402, 5, 300, 17, 42], [1, 2, 3, 4, 5, 6]),
]


def close(actual, expected, tol):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


def packed(sequences):
    """One piece a sequence, written out without rollout.pack."""
    ids, positions, index = [], [], []
    for tokens, places in sequences:
        index += [len(ids) + place for place in places]
        ids += tokens
        positions += range(len(tokens))
    lengths = [len(tokens) for tokens, _ in sequences]
    return Batch(
        torch.tensor(ids),
        torch.tensor(positions),
        lengths,
        [()] * len(lengths),
        torch.tensor(index),
    )


# the sequences 1 2 3 4 5 7 8 9, 1 2 3 4 5 10 11 and 1 2 3 12 13 with their common beginnings written once
SHARED = Batch(
    torch.tensor([1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13]),
    torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 3, 4]),
    [3, 2, 3, 2, 2],
    [(), (0,), (0, 1), (0, 1), (0,)],
    torch.tensor([6, 7, 9, 11]),
)


def saved_reference(built, folder, attention):
    built.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attention, dtype=torch.float32
    )


def reference_scores(logits, tokens, places, temperature):
    """Log-probs and entropies of one sequence from its full logits (T, V): the logits at t - 1 score token t."""
    logp = (logits[[p - 1 for p in places]] / temperature).log_softmax(-1)
    chosen = logp[range(len(places)), [tokens[p] for p in places]]
    return chosen, -(logp.exp() * logp).sum(-1)


def padded_forward(reference, sequences, temperature, side):
    longest = max(len(tokens) for tokens, _ in sequences)
    ids, mask = (torch.zeros(len(sequences), longest, dtype=torch.long) for _ in range(2))
    starts = [longest - len(tokens) if side == "left" else 0 for tokens, _ in sequences]
    for row, (start, (tokens, _)) in enumerate(zip(starts, sequences, strict=True)):
        ids[row, start : start + len(tokens)] = torch.tensor(tokens)
        mask[row, start : start + len(tokens)] = 1
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    logits = reference(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    rows = [logits[row, start:] for row, start in enumerate(starts)]
    scores = [reference_scores(z, *s, temperature) for z, s in zip(rows, sequences, strict=True)]
    return tuple(torch.cat(parts) for parts in zip(*scores, strict=True))


def one_by_one(reference, sequences, temperature):
    scores = [
        reference_scores(reference(input_ids=torch.tensor([s[0]])).logits[0], *s, temperature)
        for s in sequences
    ]
    return tuple(torch.cat(parts) for parts in zip(*scores, strict=True))


# ---------- the packed forward


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_packing_equals_padding_equals_one_by_one(random_model, tmp_path, attention, temperature):
    reference = saved_reference(random_model, tmp_path, attention)
    torch.manual_seed(1)
    weights = torch.randn(2, 11)  # a random functional of the 4 + 1 + 6 log-probs and entropies

    def values_and_gradients(module, scores):
        module.zero_grad()
        (torch.stack(scores) * weights).sum().backward()
        return torch.stack(scores).detach(), {
            n: p.grad.clone() for n, p in module.named_parameters()
        }

    value, gradients = values_and_gradients(
        random_model, Policy(random_model)(packed(SEQUENCES), temperature)
    )
    assert value[0].min() < -3 and value[0].max() > -8  # neither uniform nor saturated
    for scores in (
        padded_forward(reference, SEQUENCES, temperature, "right"),
        padded_forward(reference, SEQUENCES, temperature, "left"),
        one_by_one(reference, SEQUENCES, temperature),
    ):
        expected, expected_gradients = values_and_gradients(reference, scores)
        close(value, expected, 1e-5)
        assert gradients.keys() == expected_gradients.keys() and len(gradients) > 20
        for name, gradient in gradients.items():
            scale = expected_gradients[name].abs().max().item()
            assert scale > 1e-4, name
            torch.testing.assert_close(
                gradient, expected_gradients[name], rtol=1e-5, atol=1e-5 * max(scale, 1.0)
            )


def test_order_of_the_pack_does_not_matter(random_model):
    with torch.no_grad():
        forward, _ = Policy(random_model)(packed(SEQUENCES), 1.0)
        backward, _ = Policy(random_model)(packed(SEQUENCES[::-1]), 1.0)
    close(torch.cat([backward[7:], backward[6:7], backward[:6]]), forward, 1e-5)


def test_shared_prompts_equal_repeated_ones(random_model):
    # 1 2 3 is in all three sequences, 4 5 in two of them; log-probs of 8, 9, 11 and 13
    repeated = packed(
        [
            ([1, 2, 3, 4, 5, 7, 8, 9], [6, 7]),
            ([1, 2, 3, 4, 5, 10, 11], [6]),
            ([1, 2, 3, 12, 13], [4]),
        ]
    )
    equal_scores_and_gradients(random_model, SHARED, repeated)


def test_long_pieces_behind_a_short_context_equal_repeated_ones(random_model):
    # 1 2 is shared, and short beside what follows: no mask, but the queries of the context once more
    rest = [[(3 * i + j) % 13 for i in range(n)] for j, n in ((1, 9), (2, 7))]
    ids, places = [1, 2, *rest[0], *rest[1]], [0, 1, *range(2, 11), *range(2, 9)]
    shared = Batch(
        torch.tensor(ids),
        torch.tensor(places),
        [2, 9, 7],
        [(), (0,), (0,)],
        torch.tensor([3, 10, 15, 17]),
    )
    assert model.PackedLayout(shared).masks == [None] * 3
    repeated = packed([([1, 2, *rest[0]], [3, 10]), ([1, 2, *rest[1]], [6, 8])])
    equal_scores_and_gradients(random_model, shared, repeated)


def equal_scores_and_gradients(random_model, *batches):
    results, weights = [], torch.randn(2, 4)
    for batch in batches:
        random_model.zero_grad()
        scores = torch.stack(Policy(random_model)(batch, 1.0))
        (scores * weights).sum().backward()
        results.append((scores.detach(), [p.grad.clone() for p in random_model.parameters()]))
    close(results[0][0], results[1][0], 1e-5)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        assert b.abs().max() > 1e-4
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * max(b.abs().max().item(), 1.0))


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_sequence_does_not_see_its_neighbours(random_model, changed):
    other = copy.deepcopy(SEQUENCES)
    other[changed] = ([(token + 100) % 768 for token in other[changed][0]], other[changed][1])
    with torch.no_grad():
        before, _ = Policy(random_model)(packed(SEQUENCES), 1.0)
        after, _ = Policy(random_model)(packed(other), 1.0)
    owner = torch.tensor([0] * 4 + [1] + [2] * 6)
    close(after[owner != changed], before[owner != changed], 1e-6)
    assert (after - before)[owner == changed].abs().min() > 1e-3


def test_a_token_sees_the_past_and_not_the_future(random_model):
    tokens, places = [7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 5]
    with torch.no_grad():
        before, _ = Policy(random_model)(packed([(tokens, places)]), 1.0)
        tokens[3] = 500
        after, _ = Policy(random_model)(packed([(tokens, places)]), 1.0)
    close(after[:2], before[:2], 1e-6)  # tokens 1 and 2 come earlier
    assert (after - before)[2:].abs().min() > 1e-3  # token 3 itself and what follows


def slow_varlen(q, k, v, q_ends, k_ends, longest_q, longest_k, scale):
    """Flat queries and keys of every sequence and their bounds; the queries are the last ones of their keys."""
    assert (longest_q, longest_k) == (max(q_ends.diff()), max(k_ends.diff()))
    assert (q_ends[-1], k_ends[-1]) == (
        len(q),
        len(k),
    ) and q_ends.dtype == k_ends.dtype == torch.int32
    out = []
    for a, b, c, d in zip(q_ends, q_ends[1:], k_ends, k_ends[1:], strict=False):
        mask = torch.ones(b - a, d - c, dtype=torch.bool).tril(int((d - c) - (b - a)))
        parts = (x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], v[c:d]))
        options = dict(attn_mask=mask, scale=scale, enable_gqa=True)
        out.append(torch.nn.functional.scaled_dot_product_attention(*parts, **options)[0])
    return torch.cat(out, dim=1).transpose(0, 1)


@pytest.mark.parametrize("installed", ["flash-attn", "torch 2.11", "torch 2.13"])
def test_the_gpu_path_with_stand_ins_for_its_kernels(random_model, monkeypatch, installed):
    """Each with the argument names of that version; causality is asked for in every one."""
    calls = []

    def flash(*args, softmax_scale, causal):
        calls.append(causal)
        return slow_varlen(*args, softmax_scale)

    def torch_211(*args, is_causal=False, return_aux=None, scale=None):
        calls.append(
            is_causal and args[0].shape[1] == args[1].shape[1]
        )  # it knows no shared key heads
        return slow_varlen(*args, scale)

    def torch_213(*args, return_aux=None, scale=None, window_size=(-1, -1), enable_gqa=False):
        calls.append(window_size == (-1, 0) and enable_gqa and args[1].shape[1] == 1)
        return slow_varlen(*args, scale)

    expected = Policy(random_model)(SHARED, 1.0)[0]
    monkeypatch.setattr(
        model, "flash_attn_varlen_func", flash if installed == "flash-attn" else None
    )
    kernel = {"torch 2.11": torch_211, "torch 2.13": torch_213}.get(installed)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    monkeypatch.setattr(
        model.PackedLayout, "attend", lambda self, _, *args: self.attend_varlen(*args)
    )
    actual = Policy(random_model)(SHARED, 1.0)[0]
    assert calls == [True] * 2  # two layers
    close(actual, expected, 1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_bfloat16_is_close_to_float32(random_model, temperature):
    with torch.no_grad():
        exact, _ = Policy(random_model)(packed(SEQUENCES), temperature)
        with torch.autocast("cpu", torch.bfloat16):
            rounded, _ = Policy(random_model)(packed(SEQUENCES), temperature)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.3


# ---------- log-probs without full logits


def flat_problem(rows=7, width=5, vocab=13):
    torch.manual_seed(3)
    hidden, weight = torch.randn(rows, width), torch.randn(vocab, width)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(vocab, (rows,))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("chunk", [1, 3, 7, 4096])
@pytest.mark.parametrize("output", ["logprobs", "entropy", "both"])
def test_chunked_logprobs_against_autograd(temperature, chunk, output):
    hidden, weight, targets = flat_problem()
    h, w = (x.detach().double().requires_grad_() for x in (hidden, weight))
    logp = (h @ w.T / temperature).log_softmax(-1)
    expected = torch.stack([logp[range(7), targets], -(logp.exp() * logp).sum(-1)])
    coefficients = torch.randn(2, 7)
    coefficients[0] *= output != "entropy"
    coefficients[1] *= output != "logprobs"
    (expected * coefficients).sum().backward()
    actual = torch.stack(
        chunked_logprobs(hidden, weight, targets, temperature=temperature, chunk=chunk)
    )
    (actual * coefficients).sum().backward()
    assert actual.dtype == torch.float32
    close(actual, expected.float(), 1e-5)
    close(hidden.grad, h.grad.float(), 1e-5)
    close(weight.grad, w.grad.float(), 1e-5)
    assert hidden.grad.abs().max() > 0.1 and weight.grad.abs().max() > 0.1


@pytest.mark.filterwarnings(
    "ignore:Input .* requires gradient"
)  # gradcheck prefers float64; the outputs are float32
def test_chunked_logprobs_against_finite_differences():
    hidden, weight, targets = flat_problem(rows=3, width=2, vocab=4)
    assert torch.autograd.gradcheck(
        lambda h, w: chunked_logprobs(h, w, targets, temperature=0.5, chunk=2),
        (hidden, weight),
        eps=1e-2,
        atol=5e-3,
        rtol=1e-2,
    )


def test_chunked_logprobs_by_hand():
    # logits (0, ln 3) at temperature 1: p = (1/4, 3/4); at temperature 0.5 logits (0, 2 ln 3): p = (1/10, 9/10)
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [1.0986123]])
    for temperature, p in ((1.0, torch.tensor([0.25, 0.75])), (0.5, torch.tensor([0.1, 0.9]))):
        logprobs, entropy = chunked_logprobs(
            hidden, weight, torch.tensor([1]), temperature=temperature
        )
        close(logprobs, p[1:].log(), 1e-6)
        close(entropy, -(p * p.log()).sum()[None], 1e-6)


def test_chunked_logprobs_of_certain_choices_are_as_exact_as_a_softmax():
    torch.manual_seed(0)
    hidden, weight = (
        torch.randn(64, 8),
        6 * torch.randn(50, 8),
    )  # logits up to 70, half of the choices over 99 %
    h, w = (x.double().requires_grad_() for x in (hidden, weight))
    logp = (h @ w.T).log_softmax(-1)
    targets, exact = logp.argmax(-1), -(logp.exp() * logp).sum(-1)
    (logp.amax(-1) + exact).sum().backward()
    hidden.requires_grad_()
    logprobs, entropy = chunked_logprobs(hidden, weight, targets, chunk=7)
    (logprobs + entropy).sum().backward()
    assert logprobs.max() <= 0 and entropy.min() >= -1e-7 and logp.amax(-1).median() > -1e-2
    close(entropy, exact.float(), 1e-4)  # the logits themselves are rounded
    assert (hidden.grad - h.grad).norm() < 1e-4 * h.grad.norm()


def test_chunked_logprobs_go_backward_in_the_precision_of_autocast():
    torch.manual_seed(0)
    hidden, weight = torch.randn(64, 8), 6 * torch.randn(50, 8)
    found = []
    for chunk in (None, 7):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            targets = (h @ w.T).argmax(-1)
            logprobs = chunked_logprobs(h, w, targets, chunk=chunk)[0] if chunk else None
            full = (h @ w.T).float().log_softmax(-1).gather(1, targets[:, None])
        (logprobs if chunk else full).sum().backward()
        found.append((h.grad, w.grad))
    for ours, theirs in zip(*found, strict=True):
        assert theirs.norm() > 1 and (ours - theirs).norm() < 0.01 * theirs.norm()


def test_chunked_logprobs_of_nothing():
    logprobs, entropy = chunked_logprobs(
        torch.randn(0, 5), torch.randn(13, 5), torch.zeros(0).long(), chunk=4
    )
    assert logprobs.shape == entropy.shape == (0,)


# ---------- critic


def test_critic_starts_at_exactly_zero_and_reads_the_state_before_the_token(random_model):
    critic, batch = Critic(random_model.model), packed(SEQUENCES)
    values = critic(batch)
    assert values.shape == (11,) and values.tolist() == [0.0] * 11
    torch.nn.init.normal_(critic.value_head.weight)
    critic.value_head.bias.data.fill_(0.5)
    hidden = [
        random_model.model(
            input_ids=torch.tensor([s]), layout=model.PackedLayout(packed([(s, [1])]))
        ).last_hidden_state[0]
        for s, _ in SEQUENCES
    ]
    states = torch.cat(
        [h[[p - 1 for p in places]] for h, (_, places) in zip(hidden, SEQUENCES, strict=True)]
    )
    close(critic(batch), (states * critic.value_head.weight).sum(-1) + 0.5, 1e-5)


def test_value_loss_reaches_the_head_from_the_start(random_model):
    critic = Critic(random_model.model)
    ((critic(packed(SEQUENCES)) - 1.0) ** 2).sum().backward()
    assert critic.value_head.bias.grad.item() == pytest.approx(
        -22.0
    )  # 11 tokens, d/db (v - 1)^2 = -2 at v = 0


# ---------- the tiny model and its tokenizer


def test_tiny_model_is_tiny_and_seeded(tokenizer, monkeypatch):
    monkeypatch.setattr(model, "build_tiny_tokenizer", lambda: tokenizer)
    first, same, other = (model.build_tiny(seed, "3x96")[0] for seed in (0, 0, 1))
    assert 100_000 < sum(p.numel() for p in first.parameters()) < 1_000_000
    assert first.config.num_hidden_layers == 3
    for shape in ("3", "x96", "0x96", "3x48", "3x-32", "threex96"):
        with pytest.raises(
            ValueError, match="tiny_shape must be layers x width, .* such as 4x128; got"
        ):
            model.build_tiny(0, shape)
    for (_, a), (_, b) in zip(first.named_parameters(), same.named_parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_saved_model_loads_in_plain_transformers(random_model, tokenizer, tmp_path):
    random_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert (
        '"layout"' not in (tmp_path / "config.json").read_text()
    )  # our attention is unknown to other programs
    loaded, words = (
        AutoModelForCausalLM.from_pretrained(tmp_path),
        AutoTokenizer.from_pretrained(tmp_path),
    )
    assert type(loaded).__name__ == "Qwen2ForCausalLM"
    assert words.eos_token == model.IM_END and loaded.config.eos_token_id == words.eos_token_id
    assert words.chat_template == tokenizer.chat_template
    ids = torch.tensor(tokenizer("<|im_start|>user\nGoal 1 up.<|im_end|>\n")["input_ids"])
    with torch.no_grad():
        hidden = packed_hidden(random_model.model, packed([(ids.tolist(), [1])]))
        close(hidden @ random_model.lm_head.weight.T, loaded(input_ids=ids[None]).logits[0], 1e-5)


@pytest.mark.parametrize(
    "load", [lambda folder: load_model(folder)[1], AutoTokenizer.from_pretrained]
)
def test_saved_tokenizer_encodes_as_before(random_model, tokenizer, tmp_path, load):
    random_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    words = load(
        str(tmp_path)
    )  # AutoTokenizer makes a Qwen2Tokenizer of it, with Qwen's own word pattern
    texts = [
        *environment_texts(),
        "<|im_start|>user\nTurn 2 of 5<|im_end|>\n",
        f"a{model.IM_END}",
        *boards(),
    ]
    for text in texts:
        assert words(text)["input_ids"] == tokenizer(text)["input_ids"], text
        assert rollout.Chat(words).encode(text) == rollout.Chat(tokenizer).encode(text), text


def test_loading_returns_the_same_weights_and_runs_our_attention(random_model, tokenizer, tmp_path):
    random_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, words = load_model(str(tmp_path))
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    for (_, a), (_, b) in zip(
        loaded.named_parameters(), random_model.named_parameters(), strict=True
    ):
        assert torch.equal(a, b)
    assert words.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]) == [1, 2]
    with torch.no_grad():
        assert torch.equal(
            Policy(loaded)(packed(SEQUENCES), 1.0)[0],
            Policy(random_model)(packed(SEQUENCES), 1.0)[0],
        )


def environment_texts():
    """Other instances than those the tokenizer was made from."""
    texts, bandits = [], [f"bandit:pair={pair}" for pair in envs.Bandit.PAIRS]
    for spec in [*bandits, "frozenlake", "sokoban", "sokoban:symbols=newvocab"]:
        for observation in envs.OBSERVATIONS:
            episode = dialogue.Episode(envs.make_env(spec, observation=observation), Config())
            texts += episode.reset([92, 5])
            thought = " ".join(episode.env.statements())
            texts += [
                dialogue.format_response(thought, episode.env.plan(3, 5)),
                episode.step("nonsense").user,
            ]
    assert len(texts) > 100
    return texts


def boards():
    for spec in (
        "frozenlake",
        "frozenlake:size=5,frozen_prob=0.7",
        "sokoban",
        "sokoban:symbols=newvocab",
        "sokoban:size=8,boxes=2,search_depth=10",
    ):
        env = envs.make_env(spec)
        for seed in range(8):
            yield env.reset([91, seed])
            for action in env.actions * 2:
                yield env.step(action).observation


def pieces(tokenizer, text):
    return [tokenizer.decode([i]) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]


def test_every_cell_of_a_grid_is_one_token(tokenizer):
    seen = set()
    for board in boards():
        if "√" not in board:  # see the next test
            assert pieces(tokenizer, board) == list(board)
            seen |= set(board)
    assert seen >= set("PGO_#XSW.BA@\n")


@pytest.mark.parametrize("symbol", [*"#_OXPSG√W.CBA@"])
def test_every_symbol_is_one_token_next_to_every_other(tokenizer, symbol):
    for other in "#_OXPSG\n" if symbol in "#_OXPSG√" else "W.GCBA@\n":
        assert pieces(tokenizer, symbol + other) == [symbol, other]
        assert pieces(tokenizer, other + symbol) == [other, symbol]


ROLES = [
    *("system", "user", "assistant"),
]


@pytest.mark.parametrize(
    "text",
    ["<think>", "</think>", "<answer>", "</answer>", " ||", "Left", "Up", "Push", "7", *ROLES],
)
def test_frequent_words_are_single_tokens(tokenizer, text):
    assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) == 1


def test_round_trip_of_all_environment_texts(chat):
    strange = "Naïve 東京 \t\r\n\n  <b>&amp; 12345 ; 'don't' <Think> \x00"
    for text in [strange, *environment_texts(), *boards()]:
        assert chat.decode(chat.encode(text)) == text


def test_special_tokens_in_text_are_plain_text(chat, tokenizer):
    text = f"a{model.IM_START}user\nb{model.IM_END}{model.END_OF_TEXT}"
    special = set(
        tokenizer.convert_tokens_to_ids([model.IM_START, model.IM_END, model.END_OF_TEXT])
    )
    assert len(special & set(tokenizer(text)["input_ids"])) == 3  # what a plain call makes of it
    ids = chat.encode(text)
    assert special & set(ids) == set()
    assert chat.decode(ids) == text


# ---------- messages


def message_of(name, device="cpu"):
    with pytest.raises(ValueError) as error:
        load_model(str(name), device=device)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    "name", ["./nothing", "out/run/checkpoint-000010/policy", "/nowhere/at/all"]
)
def test_missing_folder(name):
    assert message_of(name) == f"model={name!r} is not a model folder: it has no config.json"


def test_folder_without_config(tmp_path):
    (tmp_path / "readme.txt").write_text("no model here")
    assert (
        message_of(tmp_path)
        == f"model={str(tmp_path)!r} is not a model folder: it has no config.json"
    )
    for path in (tmp_path / "run/config.json", tmp_path / "run/policy/config.json"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    run = tmp_path / "run"
    assert (
        message_of(run)
        == f"model={str(run)!r} is the folder of a run; give its model, {run}/policy"
    )


def test_folder_with_a_broken_weight_file(random_model, tokenizer, tmp_path):
    random_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert re.match(
        r"model='.+' could not be loaded or downloaded \(.*\)\. Give a folder", message_of(tmp_path)
    )


def test_home_is_found(random_model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    random_model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert load_model("~/model")[0].config.hidden_size == 64


def test_folder_without_weights(random_model, tokenizer, tmp_path):
    random_model.config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert re.match(
        r"model='.+' could not be loaded or downloaded \(.*\)\. Give a folder", message_of(tmp_path)
    )


def test_hub_name_without_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(
        "huggingface_hub.constants.HF_HUB_OFFLINE", True
    )  # the variable is read at import
    text = message_of("nanoragen-tests/no-such-model")
    assert text.startswith(
        "model='nanoragen-tests/no-such-model' could not be loaded or downloaded ("
    )
    assert text.endswith(
        "Give a folder with --model=PATH, or add config/tiny.py to run with the tiny model of this project."
    )


def test_other_architecture(tokenizer, tmp_path):
    config = GPT2Config(
        n_layer=1, n_embd=8, n_head=1, n_positions=16, vocab_size=len(tokenizer), bos_token_id=None
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert (
        message_of(tmp_path)
        == f"model={str(tmp_path)!r} is of type 'gpt2'; expected the Qwen2 family"
    )
