"""
Tests of two ranks that train with FSDP2. test_parallel.py runs these tests:

    torchrun --standalone --nproc_per_node=2 -m pytest -q tests/core/ranks_fsdp.py
"""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from families import save_family
from learners import backward, make_learner, weighted
from shared_fixtures import small_config

import model
import parallel
import train
from dialogue import Chat
from packing import pack
from parallel import all_gather_lists, rank, world_size
from rollout import collect
from support import checkpoint


@pytest.fixture(scope="module", autouse=True)
def ranks():
    parallel.init_distributed(small_config())
    yield
    dist.barrier()


def plain(learner, start):
    policy = model.Policy(model.load_model(str(start))[0])
    if learner.config.lora_rank:
        model.add_lora(policy.model, learner.config.lora_rank, learner.config.seed)
    critic = None
    if learner.critic:
        critic = model.Critic(copy.deepcopy(policy.model.model))
        critic.value_head.weight.data = (
            parallel.full_tensor(learner.critic.value_head.weight).detach().clone()
        )
    ref = model.Policy(model.load_model(str(start))[0]) if learner.ref else None
    return SimpleNamespace(config=learner.config, policy=policy, critic=critic, ref=ref)


def one_process(single, kept, experience, optimizers):
    """Take one optimizer step with unsharded modules. Each micro-batch has one trajectory.

    Returns: the sum of each metric over micro-batches, and the gradient norm of each module.
    """
    num_tokens = sum(t.num_response_tokens for t in kept)
    sums = {}
    for index, t in enumerate(kept):
        batch = pack([t])
        part = weighted(experience.select([index]))
        loss, metrics = train.policy_loss(single, batch, part, num_tokens)
        loss.backward()
        if single.critic:
            loss, value_metrics = train.critic_loss(single, batch, part, num_tokens)
            loss.backward()
            metrics.update(value_metrics)
        for key, value in metrics.items():
            sums[key] = sums.get(key, 0.0) + value.item()
    norms = []
    for module in filter(None, (single.policy, single.critic)):
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), single.config.grad_clip)
        norms.append(norm.item())
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return sums, norms


def played_experience(learner, count):
    """Return `count` trajectories and their experience. Old log-probs are shifted, so that ratios
    differ from 1."""
    played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    kept = played[:count]
    for i, t in enumerate(played):
        t.turns[-1].reward += 0.1 * i
    experience = train.build_experience(learner, played)
    wave = torch.sin(torch.arange(len(experience.old_logprobs)))
    experience.old_logprobs = experience.old_logprobs + 0.1 * wave
    return kept, experience.select(range(count))


CASES = {  # maps a case to its number of trajectories and its settings
    "one micro-batch each": (16, {}),
    "accumulation": (16, dict(micro_batch_tokens=640)),
    "unequal data": (7, dict(micro_batch_tokens=1280)),
    "one rank without work": (1, {}),
    "no critic": (9, dict(estimator="grpo", micro_batch_tokens=1280)),
    "a reference": (9, dict(kl_coef=0.1)),
    "clipping": (9, dict(grad_clip=1e-3)),
    "an LM head of its own": (9, dict(model="qwen3_untied")),
    # With lora_rank=3, LoRA's matrix A has 3 rows. Two processes cannot share 3 rows equally, so
    # rank 0 holds two rows, and rank 1 holds one.
    "LoRA": (9, dict(lora_rank=3, micro_batch_tokens=1280)),
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process(trained_folder, tmp_path, case):
    count, changes = CASES[case]
    start = trained_folder
    if "model" in changes:
        start = all_gather_lists([str(save_family(changes["model"], tmp_path))])[0][0]
    learner = make_learner(start, bias=True, learning_rate=1e-5, critic_lr=1e-4, **changes)
    kept, experience = played_experience(learner, count)
    single = plain(learner, start)
    config = learner.config
    betas = (config.adam_beta1, config.adam_beta2)
    modules = {single.policy: config.learning_rate}
    if single.critic:
        modules[single.critic] = config.critic_lr
    optimizers = []
    for module, lr in modules.items():
        optimizers.append(
            torch.optim.AdamW(module.parameters(), lr, betas=betas, weight_decay=0.01)
        )
    for _ in range(2):
        expected, norms = one_process(single, kept, experience, optimizers)
        metrics = backward(learner, experience)
        found = train.optimizer_step(learner, metrics)
        for key in expected.keys() - {"logprob_diff_max", "clipfrac", "vf_clipfrac"}:
            assert metrics[key].item() == pytest.approx(expected[key], abs=1e-6, rel=1e-6), key
        assert list(found.values()) == pytest.approx(norms, rel=1e-5)
        assert norms[0] > 1e-3
    if not config.lora_rank:
        expected = single.policy.model.state_dict()
        streamed = dict(parallel.stream_weights(learner.policy))
        assert streamed.keys() == expected.keys()
        for name, weight in streamed.items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-4)


def test_the_work_is_shared_out_once_and_equally_often(trained_folder):
    learner = make_learner(trained_folder)
    played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    for count, tokens in ((16, 4096), (16, 700), (7, 700), (1, 700)):
        work = all_gather_lists(parallel.local_micro_batches(played[:count], tokens))
        assert len(work) == world_size() == 2
        assert len(work[0]) == len(work[1])  # each FSDP forward waits for all ranks
        counted = []
        num_tokens = []
        for part in work:
            assert all(micro_batch.is_real in (0.0, 1.0) for micro_batch in part)
            surplus = [played[indices[0]] for indices, is_real in part if not is_real]
            fewest = min(len(trajectory.ids) for trajectory in played[:count])
            assert all(len(trajectory.ids) == fewest for trajectory in surplus)
            mine = [i for indices, is_real in part if is_real for i in indices]
            counted += mine
            num_tokens.append(sum(len(played[i].ids) for i in mine))
        assert sorted(counted) == list(range(count))
        if count == 16:  # token counts of the ranks differ by at most the longest trajectory
            longest = max(len(t.ids) for t in played)
            assert abs(num_tokens[0] - num_tokens[1]) <= longest


def test_a_forward_after_a_step_uses_the_new_weights(trained_folder):
    """FSDP2 must reshard the root module after a forward, or the next forward uses old weights."""
    learner = make_learner(trained_folder)
    played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    for factor in (1.1, 1.2):
        before, _ = parallel.forward_sequences(learner.policy, played, learner.config, 1.0)
        with torch.no_grad():
            for p in learner.policy.parameters():
                p.to_local().mul_(factor)
        after, _ = parallel.forward_sequences(learner.policy, played, learner.config, 1.0)
        assert (after - before).abs().max() > 0.1
        single = model.load_model(str(trained_folder))[0]
        with torch.no_grad():
            for p in single.parameters():
                p.mul_(factor if factor == 1.1 else 1.1 * 1.2)
            expected = torch.cat([model.Policy(single)(pack([t]), 1.0)[0] for t in played])
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)


def test_sharding_keeps_what_is_no_parameter(trained_folder):
    """Rotary frequencies are not in the state dict. If sharding built the model on the device
    "meta" and loaded the state dict, the frequencies would be lost."""
    learner, single = make_learner(trained_folder), model.load_model(str(trained_folder))[0]
    found = learner.policy.model.model.rotary_emb.inv_freq
    assert torch.equal(found, single.model.rotary_emb.inv_freq) and len(found) == 16


def test_streamed_weights_are_whole_and_name_the_tied_head(trained_folder):
    learner, single = make_learner(trained_folder), model.load_model(str(trained_folder))[0]
    played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    assert parallel.forward_sequences(learner.policy, played, learner.config, 1.0)
    for dtype in (torch.float32, torch.bfloat16):
        streamed = list(parallel.stream_weights(learner.policy, dtype))
        expected = single.state_dict()
        assert sorted(name for name, _ in streamed) == sorted(expected)
        assert "lm_head.weight" in expected
        for name, weight in streamed:
            assert weight.dtype == dtype and torch.equal(weight, expected[name].to(dtype)), name
    local = sum(p.to_local().numel() for p in learner.policy.parameters())
    assert local < 0.6 * sum(p.numel() for p in single.parameters())


def test_lora_is_merged_from_shards(trained_folder):
    learner = make_learner(trained_folder, lora_rank=3)
    expected = model.load_model(str(trained_folder))[0].state_dict()
    noise = torch.Generator().manual_seed(rank())
    own = dict(learner.policy.model.named_parameters())
    with torch.no_grad():
        for name in own:
            if "lora_B" in name:
                own[name].to_local().normal_(generator=noise)
                b = parallel.full_tensor(own[name])
                a = parallel.full_tensor(own[name.replace("lora_B", "lora_A")])
                expected[name.replace("lora_B.default.", "")] += b @ a
    for name, weight in parallel.stream_weights(learner.policy):
        torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-5)
    # Each merged weight is rounded up or down to bfloat16 at random, but all ranks get the same
    # result.
    for name, weight in parallel.stream_weights(learner.policy, torch.bfloat16):
        step = expected[name].abs() * torch.finfo(torch.bfloat16).eps + 1e-5
        assert ((weight - expected[name]).abs() <= step).all()
        for other in parallel.all_gather_lists([weight]):
            assert torch.equal(other[0], weight)


def test_groups_are_dealt_out_and_gathered_in_order(trained_folder):
    learner = make_learner(trained_folder)
    config, chat = learner.config, Chat(learner.tokenizer)
    starts = [((9, group), member) for group in range(3) for member in range(4)]
    options = dict(split="train", temperature=1.0, noise_seed=(5,))
    parallel.sync_weights(learner.engine, learner.policy)
    requested = set()
    add = learner.engine.add

    def spy(key, *args, **kwargs):
        requested.add(key)
        add(key, *args, **kwargs)

    learner.engine.add = spy
    played = parallel.collect_all(
        learner.engine, learner.policy, chat, config, starts, group_size=4, **options
    )
    learner.engine.add = add
    assert len(requested) == (8 if rank() == 0 else 4)
    alone = collect(learner.engine, chat, config, starts, **options)
    assert [(t.seed, t.member, t.ids, t.score) for t in played] == [
        (t.seed, t.member, t.ids, t.score) for t in alone
    ]


def test_an_engine_with_old_weights_is_refused(trained_folder):
    learner = make_learner(trained_folder)
    chat = Chat(learner.tokenizer)
    options = dict(group_size=1, split="train", temperature=1.0, noise_seed=(0,))

    def play():
        return parallel.collect_all(
            learner.engine, learner.policy, chat, learner.config, [((0,), 0)], **options
        )

    with pytest.raises(RuntimeError, match="the engine has weights None, the policy is at"):
        play()
    parallel.sync_weights(learner.engine, learner.policy)
    assert len(play()) == 1
    learner.policy.bump_version()
    with pytest.raises(RuntimeError, match="call sync_weights first"):
        play()


def test_a_number_that_is_not_finite_on_one_rank_stops_both(trained_folder, monkeypatch):
    learner = make_learner(trained_folder, batch_size=8)
    kept, experience = played_experience(learner, 8)
    before = [p.detach().to_local().clone() for p in learner.policy.parameters()]
    policy_loss = train.policy_loss

    def spoilt(*args):
        loss, metrics = policy_loss(*args)
        return (loss * float("nan") if rank() == 1 else loss), metrics

    monkeypatch.setattr(train, "policy_loss", spoilt)
    train.optimizer_step(learner, backward(learner, experience))
    assert learner.bad_steps == 1
    for weight, parameter in zip(before, learner.policy.parameters(), strict=True):
        assert torch.equal(weight, parameter.to_local())


@pytest.mark.parametrize("lora_rank", [0, 3])
def test_a_checkpoint_of_two_ranks(trained_folder, tmp_path, lora_rank):
    folder = all_gather_lists([tmp_path])[0][0]  # both ranks use the tmp_path of rank 0
    learner = make_learner(trained_folder, bias=True, learning_rate=1e-3, lora_rank=lora_rank)
    kept, experience = played_experience(learner, 8)
    train.optimizer_step(learner, backward(learner, experience))
    learner.step = 3
    with checkpoint.Saver(folder, 2) as saver:
        checkpoint.save_learner(learner, saver)
    assert sorted(p.name for p in folder.iterdir()) == ["checkpoint-000003"]
    dist.barrier()  # both ranks must list the folder before policy/ is added
    checkpoint.export(folder / "policy", learner.policy, learner.tokenizer)
    other = make_learner(trained_folder, lora_rank=lora_rank)
    checkpoint.load_learner(other, folder / "checkpoint-000003")
    exported = model.load_model(str(folder / "policy"))[0].state_dict()
    saved, loaded = (dict(parallel.stream_weights(each.policy)) for each in (learner, other))
    for name, weight in saved.items():
        assert torch.equal(weight, loaded[name]) and torch.equal(weight, exported[name]), name
    for each in (learner, other):
        train.optimizer_step(each, backward(each, experience))
    for a, b in zip(learner.critic.parameters(), other.critic.parameters(), strict=True):
        assert torch.equal(a.to_local(), b.to_local())


def test_the_engine_plays_the_same_on_every_rank(trained_folder):
    """Rank 1 plays eight games, rank 0 four. If a game waited for the other rank, it would hang."""
    learner = make_learner(trained_folder)
    parallel.sync_weights(learner.engine, learner.policy)
    options = dict(split="train", temperature=1.0, noise_seed=(5,))
    starts = [((9,), member) for member in range(4 + 4 * rank())]
    played = collect(learner.engine, Chat(learner.tokenizer), learner.config, starts, **options)
    both = all_gather_lists([t.ids for t in played])
    assert both[0] == both[1][:4] and len(both[1]) == 8
