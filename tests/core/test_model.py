"""Tests of model.py and packed attention against Hugging Face's own forward and autograd."""

import copy
import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import model
import packing
from dialogue import IM_END
from model import Critic, Policy, chunked_logprobs, load_model, packed_hidden
from packing import PackedBatch, PackedLayout

# (token ids, positions of sampled tokens)
SEQUENCES = [
    ([5, 300, 17, 42, 42, 9, 700, 3, 8, 55], [3, 4, 8, 9]),
    ([11, 6], [1]),
    ([400, 401, 402, 5, 300, 17, 42], [1, 2, 3, 4, 5, 6]),
]


def close(actual, expected, tol):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


def packed(sequences):
    """Build a batch without packing.pack. The sequences in the batch share nothing."""
    ids = []
    positions = []
    response_index = []
    for tokens, sampled in sequences:
        response_index += [len(ids) + position for position in sampled]
        ids += tokens
        positions += range(len(tokens))
    lengths = [len(tokens) for tokens, _ in sequences]
    contexts = [()] * len(lengths)
    return PackedBatch(
        torch.tensor(ids), torch.tensor(positions), lengths, contexts, torch.tensor(response_index)
    )


# The sequences 1 2 3 4 5 7 8 9, 1 2 3 4 5 10 11 and 1 2 3 12 13. Common prefixes are stored once.
SHARED = PackedBatch(
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


def reference_scores(logits, tokens, sampled, temperature):
    """Return log-probs and entropies of the sampled tokens of a sequence. Args: logits: (T, V)."""
    states = [position - 1 for position in sampled]  # logits at t - 1 score token t
    logp = (logits[states] / temperature).log_softmax(-1)
    chosen = logp[range(len(sampled)), [tokens[position] for position in sampled]]
    return chosen, -(logp.exp() * logp).sum(-1)


def joined(scores):
    logprobs, entropies = zip(*scores, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def padded_forward(reference, sequences, temperature, side):
    longest = max(len(tokens) for tokens, _ in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros(len(sequences), longest, dtype=torch.long)
    starts = [longest - len(tokens) if side == "left" else 0 for tokens, _ in sequences]
    for row, (start, (tokens, _)) in enumerate(zip(starts, sequences, strict=True)):
        ids[row, start : start + len(tokens)] = torch.tensor(tokens)
        mask[row, start : start + len(tokens)] = 1
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    logits = reference(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    scores = []
    for row, (start, (tokens, sampled)) in enumerate(zip(starts, sequences, strict=True)):
        scores.append(reference_scores(logits[row, start:], tokens, sampled, temperature))
    return joined(scores)


def one_by_one(reference, sequences, temperature):
    scores = []
    for tokens, sampled in sequences:
        logits = reference(input_ids=torch.tensor([tokens])).logits[0]
        scores.append(reference_scores(logits, tokens, sampled, temperature))
    return joined(scores)


# ---------- the padding token


@pytest.mark.parametrize("kind", ["policy", "critic"])
def test_a_padding_token_that_is_a_real_token_is_trained(random_model, tmp_path, kind):
    """config.json may name any token as the padding token. A Hugging Face model then gives the
    embedding of this token no gradient. A packed batch is never padded. If the batch contains this
    token, the token is a real one and must get a gradient."""

    def gradient(pad_token_id):
        random_model.config.pad_token_id = pad_token_id
        random_model.save_pretrained(tmp_path)
        network = AutoModelForCausalLM.from_pretrained(
            tmp_path, attn_implementation="layout", dtype=torch.float32
        )
        embedding = network.model.embed_tokens
        assert embedding.padding_idx == pad_token_id
        network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.detach().clone())
        batch = packed(SEQUENCES)
        if kind == "policy":
            Policy(network)(batch, 1.0)[0].sum().backward()
        else:
            critic = Critic(network.model)
            torch.nn.init.ones_(critic.value_head.weight)
            critic(batch).square().sum().backward()
        return embedding.weight.grad

    expected = gradient(None)
    assert expected[42].norm() > 1e-3
    assert torch.equal(gradient(42), expected)


# ---------- the packed forward


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_packing_equals_padding_equals_one_by_one(random_model, tmp_path, attention, temperature):
    reference = saved_reference(random_model, tmp_path, attention)
    torch.manual_seed(1)
    weights = torch.randn(2, 11)  # loss weights of log-probs (row 0) and entropies (row 1)

    def values_and_gradients(module, scores):
        module.zero_grad()
        values = torch.stack(scores)
        (values * weights).sum().backward()
        gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
        return values.detach(), gradients

    ours = Policy(random_model)(packed(SEQUENCES), temperature)
    values, gradients = values_and_gradients(random_model, ours)
    assert values[0].min() < -3 and values[0].max() > -8
    for scores in (
        padded_forward(reference, SEQUENCES, temperature, "right"),
        padded_forward(reference, SEQUENCES, temperature, "left"),
        one_by_one(reference, SEQUENCES, temperature),
    ):
        expected, expected_gradients = values_and_gradients(reference, scores)
        close(values, expected, 1e-5)
        assert gradients.keys() == expected_gradients.keys() and len(gradients) > 20
        for name, gradient in gradients.items():
            assert expected_gradients[name].abs().max() > 1e-4, name
            close_gradients(gradient, expected_gradients[name])


def close_gradients(actual, expected):
    scale = max(expected.abs().max().item(), 1.0)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * scale)


def test_order_of_the_pack_does_not_matter(random_model):
    with torch.no_grad():
        forward, _ = Policy(random_model)(packed(SEQUENCES), 1.0)
        backward, _ = Policy(random_model)(packed(SEQUENCES[::-1]), 1.0)
    close(torch.cat([backward[7:], backward[6:7], backward[:6]]), forward, 1e-5)


def test_shared_prompts_equal_repeated_ones(random_model):
    repeated = packed(
        [
            ([1, 2, 3, 4, 5, 7, 8, 9], [6, 7]),
            ([1, 2, 3, 4, 5, 10, 11], [6]),
            ([1, 2, 3, 12, 13], [4]),
        ]
    )
    check_scores_and_gradients(random_model, SHARED, repeated)


def test_long_pieces_after_a_short_context_equal_repeated_ones(random_model):
    # The shared context [1, 2] is short, so both long pieces use a causal kernel without a mask. A
    # causal kernel needs as many queries as keys, so the kernel also gets the queries of the
    # context. The outputs of the context's queries are dropped.
    first = [(3 * i + 1) % 13 for i in range(9)]
    second = [(3 * i + 2) % 13 for i in range(7)]
    shared = PackedBatch(
        torch.tensor([1, 2, *first, *second]),
        torch.tensor([0, 1, *range(2, 11), *range(2, 9)]),
        [2, 9, 7],
        [(), (0,), (0,)],
        torch.tensor([3, 10, 15, 17]),
    )
    assert PackedLayout(shared).masks == [None] * 3
    repeated = packed([([1, 2, *first], [3, 10]), ([1, 2, *second], [6, 8])])
    check_scores_and_gradients(random_model, shared, repeated)


def check_scores_and_gradients(random_model, shared, repeated):
    weights = torch.randn(2, 4)
    scores = []
    gradients = []
    for batch in (shared, repeated):
        random_model.zero_grad()
        found = torch.stack(Policy(random_model)(batch, 1.0))
        (found * weights).sum().backward()
        scores.append(found.detach())
        gradients.append([p.grad.clone() for p in random_model.parameters()])
    close(scores[0], scores[1], 1e-5)
    for actual, expected in zip(*gradients, strict=True):
        assert expected.abs().max() > 1e-4
        close_gradients(actual, expected)


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_sequence_does_not_see_its_neighbours(random_model, changed):
    other = copy.deepcopy(SEQUENCES)
    tokens, sampled = other[changed]
    other[changed] = ([(token + 100) % 768 for token in tokens], sampled)
    with torch.no_grad():
        before, _ = Policy(random_model)(packed(SEQUENCES), 1.0)
        after, _ = Policy(random_model)(packed(other), 1.0)
    owner = torch.tensor([0] * 4 + [1] + [2] * 6)
    close(after[owner != changed], before[owner != changed], 1e-6)
    assert (after - before)[owner == changed].abs().min() > 1e-3


def test_a_token_sees_the_past_and_not_the_future(random_model):
    tokens = [7, 8, 9, 10, 11, 12]
    sampled = [1, 2, 3, 4, 5]
    with torch.no_grad():
        before, _ = Policy(random_model)(packed([(tokens, sampled)]), 1.0)
        tokens[3] = 500
        after, _ = Policy(random_model)(packed([(tokens, sampled)]), 1.0)
    # Row i has the log-prob of token i + 1, because token 0 is not sampled. Token 3 has changed, so
    # rows 2, 3 and 4 change.
    close(after[:2], before[:2], 1e-6)
    assert (after - before)[2:].abs().min() > 1e-3


def slow_varlen(q, k, v, q_ends, k_ends, longest_q, longest_k, scale):
    """Compute varlen attention in a loop. If a sequence has fewer queries than keys, the queries
    are those of its last tokens."""
    assert (longest_q, longest_k) == (max(q_ends.diff()), max(k_ends.diff()))
    assert (q_ends[-1], k_ends[-1]) == (len(q), len(k))
    assert q_ends.dtype == k_ends.dtype == torch.int32
    outputs = []
    for i in range(len(q_ends) - 1):
        queries = q[q_ends[i] : q_ends[i + 1]].transpose(0, 1)[None]  # (1, heads, length, D)
        keys = k[k_ends[i] : k_ends[i + 1]].transpose(0, 1)[None]
        values = v[k_ends[i] : k_ends[i + 1]].transpose(0, 1)[None]
        num_queries = queries.shape[2]
        num_keys = keys.shape[2]
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
        output = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=True
        )
        outputs.append(output[0])
    return torch.cat(outputs, dim=1).transpose(0, 1)


# Fake kernels. `torch_211` has the parameters of varlen_attn in torch 2.11.0. `torch_212` has the
# parameters of varlen_attn in torch 2.12.0 and 2.13.0. `flash` has only the parameters that
# packing.py gives to flash-attn 2.8.


def torch_211(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
):
    assert window_size == (-1, 0)
    assert query.shape[1] == key.shape[1] == value.shape[1]
    return slow_varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale)


def torch_212(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    assert window_size == (-1, 0)
    assert enable_gqa and key.shape[1] == 1
    return slow_varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale)


def flash(q, k, v, q_ends, k_ends, max_q, max_k, *, softmax_scale=None, causal=False):
    assert causal and k.shape[1] == 1
    return slow_varlen(q, k, v, q_ends, k_ends, max_q, max_k, softmax_scale)


@pytest.mark.parametrize("kernel", [flash, torch_211, torch_212])
def test_the_gpu_path_with_stand_ins_for_its_kernels(random_model, monkeypatch, kernel):
    calls = []

    def counted(*args, **options):
        calls.append(kernel.__name__)
        return kernel(*args, **options)

    def update():
        logprobs, _ = Policy(random_model)(SHARED, 1.0)
        random_model.zero_grad()
        logprobs.sum().backward()
        return logprobs, random_model.model.layers[0].self_attn.k_proj.weight.grad.clone()

    expected, expected_gradient = update()
    monkeypatch.setattr(packing, "flash_attn_varlen_func", counted if kernel is flash else None)
    monkeypatch.setattr(packing, "varlen_attn", counted)
    monkeypatch.setattr(packing, "VARLEN_HAS_GQA", kernel is torch_212)
    monkeypatch.setattr(PackedLayout, "attend", lambda self, _, *args: self.attend_varlen(*args))
    actual, gradient = update()
    assert calls == [kernel.__name__] * 2
    close(actual, expected, 1e-5)
    close(gradient, expected_gradient, 1e-4)


def test_the_stand_in_has_the_signature_of_the_installed_kernel():
    real = inspect.signature(varlen_attn).parameters
    stand_in = torch_212 if packing.VARLEN_HAS_GQA else torch_211
    assert ("enable_gqa" in real) == packing.VARLEN_HAS_GQA
    assert list(real) == list(inspect.signature(stand_in).parameters)
    for name, parameter in inspect.signature(stand_in).parameters.items():
        assert real[name].default == parameter.default and real[name].kind == parameter.kind


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
    hidden = torch.randn(rows, width)
    weight = torch.randn(vocab, width)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(vocab, (rows,))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("chunk_size", [1, 3, 7, 4096])
@pytest.mark.parametrize("output", ["logprobs", "entropy", "both"])
def test_chunked_logprobs_against_autograd(temperature, chunk_size, output):
    hidden, weight, targets = flat_problem()
    h, w = (x.detach().double().requires_grad_() for x in (hidden, weight))
    logp = (h @ w.T / temperature).log_softmax(-1)
    expected = torch.stack([logp[range(7), targets], -(logp.exp() * logp).sum(-1)])
    coefficients = torch.randn(2, 7)
    coefficients[0] *= output != "entropy"
    coefficients[1] *= output != "logprobs"
    (expected * coefficients).sum().backward()
    found = chunked_logprobs(
        hidden, weight, targets, temperature=temperature, chunk_size=chunk_size
    )
    actual = torch.stack(found)
    (actual * coefficients).sum().backward()
    assert actual.dtype == torch.float32
    close(actual, expected.float(), 1e-5)
    close(hidden.grad, h.grad.float(), 1e-5)
    close(weight.grad, w.grad.float(), 1e-5)
    assert hidden.grad.abs().max() > 0.1 and weight.grad.abs().max() > 0.1


@pytest.mark.filterwarnings("ignore:Input .* requires gradient")
def test_chunked_logprobs_against_finite_differences():
    hidden, weight, targets = flat_problem(rows=3, width=2, vocab=4)

    def function(hidden, weight):
        return chunked_logprobs(hidden, weight, targets, temperature=0.5, chunk_size=2)

    assert torch.autograd.gradcheck(function, (hidden, weight), eps=1e-2, atol=5e-3, rtol=1e-2)


def test_chunked_logprobs_by_hand():
    # The logits (0, ln 3) give p = (1/4, 3/4). Temperature 0.5 doubles the logits to (0, 2 ln 3),
    # which give p = (1/10, 9/10).
    hidden = torch.tensor([[1.0]])
    weight = torch.tensor([[0.0], [1.0986123]])
    targets = torch.tensor([1])
    for temperature, p in ((1.0, torch.tensor([0.25, 0.75])), (0.5, torch.tensor([0.1, 0.9]))):
        logprobs, entropy = chunked_logprobs(hidden, weight, targets, temperature=temperature)
        close(logprobs, p[1:].log(), 1e-6)
        close(entropy, -(p * p.log()).sum()[None], 1e-6)


def test_chunked_logprobs_of_certain_choices_are_as_exact_as_a_softmax():
    torch.manual_seed(0)
    hidden = torch.randn(64, 8)
    # Logits reach 84. In half of the 64 rows, the most probable token has p > 0.99.
    weight = 6 * torch.randn(50, 8)
    h, w = (x.double().requires_grad_() for x in (hidden, weight))
    logp = (h @ w.T).log_softmax(-1)
    targets = logp.argmax(-1)
    exact = -(logp.exp() * logp).sum(-1)
    (logp.amax(-1) + exact).sum().backward()
    hidden.requires_grad_()
    logprobs, entropy = chunked_logprobs(hidden, weight, targets, chunk_size=7)
    (logprobs + entropy).sum().backward()
    assert logprobs.max() <= 0 and entropy.min() >= -1e-7 and logp.amax(-1).median() > -1e-2
    close(entropy, exact.float(), 1e-4)  # float32 rounds the logits
    assert (hidden.grad - h.grad).norm() < 1e-4 * h.grad.norm()


def test_chunked_logprobs_go_backward_in_the_precision_of_autocast():
    torch.manual_seed(0)
    hidden = torch.randn(64, 8)
    weight = 6 * torch.randn(50, 8)
    gradients = []
    for chunk_size in (None, 7):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logits = h.bfloat16().float() @ w.bfloat16().float().T
        targets = logits.argmax(-1)
        with torch.autocast("cpu", torch.bfloat16):
            if chunk_size:
                logprobs, _ = chunked_logprobs(h, w, targets, chunk_size=chunk_size)
            else:
                logprobs = logits.log_softmax(-1).gather(1, targets[:, None])
        logprobs.sum().backward()
        gradients.append((h.grad, w.grad))
    for theirs, ours in zip(*gradients, strict=True):
        assert theirs.norm() > 1 and (ours - theirs).norm() < 0.01 * theirs.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_16_bit_states_are_not_rounded_to_16_bits(dtype):
    """Rounded to 16 bits, the logits 1 and 1 + 2^-11 would be equal."""
    hidden = torch.tensor([[1.0, 2.0**-11]], dtype=dtype)
    weight = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=dtype)
    logprobs, _ = chunked_logprobs(hidden, weight, torch.tensor([1]))
    # log(e^x / (1 + e^x)) = -ln 2 + x / 2 for a small difference x of the logits
    assert logprobs.item() == pytest.approx(-0.693147 + 2.0**-12, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_a_16_bit_head_are_added_up_in_float32(dtype):
    torch.manual_seed(0)
    hidden, weight = torch.randn(64, 32).to(dtype), (torch.randn(5000, 32) * 0.3).to(dtype)
    targets = torch.randint(5000, (64,))
    exact_hidden = hidden.double().requires_grad_()
    logp = (exact_hidden @ weight.double().T).log_softmax(-1)
    logp[range(64), targets].sum().backward()
    hidden.requires_grad_()
    logprobs, _ = chunked_logprobs(hidden, weight, targets, chunk_size=50)
    logprobs.sum().backward()
    close(logprobs.double(), logp[range(64), targets], 1e-5)
    assert (hidden.grad - exact_hidden.grad).norm() < 4e-3 * exact_hidden.grad.norm()


def test_a_gpu_takes_larger_chunks(monkeypatch):
    """Qwen's vocabulary of 151,936 tokens makes 149 chunks on a CPU and 19 on a GPU."""
    sizes = []
    monkeypatch.setattr(
        model._ChunkedLogProbs, "apply", lambda *args: sizes.append(args[-1]) or (None, None)
    )
    weight = torch.zeros(4, 2)
    chunked_logprobs(torch.zeros(1, 2), weight, torch.tensor([0]))
    on_gpu = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    chunked_logprobs(on_gpu, weight, torch.tensor([0]))
    chunked_logprobs(torch.zeros(1, 2), weight, torch.tensor([0]), chunk_size=7)
    assert sizes == [1024, 8192, 7]
    assert [-(-151_936 // size) for size in sizes[:2]] == [149, 19]


def test_chunked_logprobs_of_nothing():
    hidden = torch.randn(0, 5)
    weight = torch.randn(13, 5)
    logprobs, entropy = chunked_logprobs(hidden, weight, torch.zeros(0).long(), chunk_size=4)
    assert logprobs.shape == entropy.shape == (0,)


# ---------- critic


def test_critic_starts_at_exactly_zero_and_reads_the_state_before_the_token(random_model):
    critic = Critic(random_model.model)
    batch = packed(SEQUENCES)
    values = critic(batch)
    assert values.shape == (11,) and values.tolist() == [0.0] * 11
    torch.nn.init.normal_(critic.value_head.weight)
    critic.value_head.bias.data.fill_(0.5)
    states = []
    for tokens, sampled in SEQUENCES:
        layout = PackedLayout(packed([(tokens, [1])]))
        output = random_model.model(input_ids=torch.tensor([tokens]), layout=layout)
        hidden = output.last_hidden_state[0]
        states.append(hidden[[position - 1 for position in sampled]])
    expected = (torch.cat(states) * critic.value_head.weight).sum(-1) + 0.5
    close(critic(batch), expected, 1e-5)


def test_value_loss_reaches_the_head_from_the_start(random_model):
    critic = Critic(random_model.model)
    ((critic(packed(SEQUENCES)) - 1.0) ** 2).sum().backward()
    # All values v start at 0, so each of the 11 sampled tokens adds d/db (v - 1)^2 = -2 to the
    # gradient of the bias b.
    assert critic.value_head.bias.grad.item() == pytest.approx(-22.0)


# ---------- saving and loading


def test_saved_model_loads_in_plain_transformers(random_model, tokenizer, tmp_path):
    random_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert '"layout"' not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    loaded_tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded).__name__ == "Qwen2ForCausalLM"
    assert loaded_tokenizer.eos_token == IM_END
    assert loaded.config.eos_token_id == loaded_tokenizer.eos_token_id
    assert loaded_tokenizer.chat_template == tokenizer.chat_template
    ids = torch.tensor(tokenizer("<|im_start|>user\nGoal 1 up.<|im_end|>\n")["input_ids"])
    with torch.no_grad():
        hidden = packed_hidden(random_model.model, packed([(ids.tolist(), [1])]))
        close(hidden @ random_model.lm_head.weight.T, loaded(input_ids=ids[None]).logits[0], 1e-5)


def test_loading_returns_the_same_weights_and_runs_our_attention(random_model, tokenizer, tmp_path):
    random_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, loaded_tokenizer = load_model(str(tmp_path))
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    for a, b in zip(loaded.parameters(), random_model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert loaded_tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]) == [1, 2]
    with torch.no_grad():
        actual, _ = Policy(loaded)(packed(SEQUENCES), 1.0)
        expected, _ = Policy(random_model)(packed(SEQUENCES), 1.0)
    assert torch.equal(actual, expected)


def test_home_is_found(random_model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    random_model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert load_model("~/model")[0].config.hidden_size == 64


# ---------- messages


def message_of(name):
    with pytest.raises(ValueError) as error:
        load_model(str(name))
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
    expected = f"model={str(tmp_path)!r} is not a model folder: it has no config.json"
    assert message_of(tmp_path) == expected


def test_folder_of_a_run(tmp_path):
    (tmp_path / "policy").mkdir()
    for path in (tmp_path / "config.json", tmp_path / "policy/config.json"):
        path.write_text("{}")
    expected = f"model={str(tmp_path)!r} is the folder of a run; give its model, {tmp_path}/policy"
    assert message_of(tmp_path) == expected


def test_hub_name_without_network(monkeypatch, capsys):
    # huggingface_hub reads HF_HUB_OFFLINE only at its import, so the test patches the constant.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    name = "nanoragen-tests/no-such-model"
    text = message_of(name)
    assert text.startswith(
        f"model={name!r} could not be downloaded from the Hugging Face hub; give a folder with "
        "--model=PATH, or add config/models/tiny.py to run with the tiny model of this project ("
    )
    assert capsys.readouterr().err == f"model={name!r}: asking the Hugging Face hub\n"


def test_a_model_of_the_hub_is_loaded_from_the_cache(monkeypatch):
    asked = []

    def snapshot_download(name, **options):
        asked.append((name, options))
        return str(Path(packing.__file__).with_name("base"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    loaded, _ = load_model("owner/name")
    assert loaded.config.hidden_size == 96 and loaded.name_or_path == "owner/name"
    ((name, options),) = asked
    assert name == "owner/name" and options["etag_timeout"] == 5.0
    assert "*.bin" not in options["allow_patterns"]


def test_other_architecture(tokenizer, tmp_path):
    config = GPT2Config(
        n_layer=1, n_embd=8, n_head=1, n_positions=16, vocab_size=len(tokenizer), bos_token_id=None
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    expected = (
        f"model={str(tmp_path)!r} is of type 'gpt2'; expected one of qwen2 (Qwen2.5), "
        "qwen3 (dense Qwen3), llama (SmolLM2), smollm3 (SmolLM3), with a ChatML tokenizer"
    )
    assert message_of(tmp_path) == expected
