"""
What two ranks must do like one process. Run by test_parallel.py:

    torchrun --standalone --nproc_per_node=2 -m pytest -q tests/ranks_fsdp.py
"""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from conftest import make_learner, small_config

import model
import parallel
import rollout
import train
from parallel import gather, rank, world_size
from rollout import Chat, collect, pack
from support import checkpoint


@pytest.fixture(scope="module", autouse=True)
def ranks():
    parallel.init_distributed(small_config())
    yield
    dist.barrier()


def plain(learner, start):
    """Policy, critic and reference of a fresh learner, not sharded."""
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


def one_process(single, kept, pieces, optimizers):
    """One optimizer step of plain modules, one trajectory after the other; returns metrics and gradient norms."""
    num_tokens, sums = sum(t.num_response_tokens for t in kept), {}
    for i, t in enumerate(kept):
        for loss, metrics in train.losses(
            single, pack([t]), {key: x[i] for key, x in pieces.items()}, num_tokens
        ):
            loss.backward()
            sums |= {key: sums.get(key, 0.0) + value.item() for key, value in metrics.items()}
    modules = [m for m in (single.policy, single.critic) if m]
    norms = [
        torch.nn.utils.clip_grad_norm_(m.parameters(), single.config.grad_clip).item()
        for m in modules
    ]
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return sums, norms


def played_and_pieces(learner, count):
    played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    kept = played[:count]
    for i, t in enumerate(played):
        t.turns[-1].reward += 0.1 * i  # never all the same
    targets = train.compute_targets(learner, played)
    targets.weights = torch.ones_like(targets.advantages)
    targets.old_logprobs = targets.old_logprobs + 0.1 * torch.sin(
        torch.arange(len(targets.old_logprobs))
    )
    pieces = {
        key: value.split([t.num_response_tokens for t in played])[:count]
        for key, value in targets.items()
    }
    return kept, pieces


CASES = {  # trajectories, settings
    "one micro-batch each": (16, {}),
    "accumulation": (16, dict(micro_batch_tokens=640)),
    "unequal data": (7, dict(micro_batch_tokens=1280)),
    "one rank without work": (1, {}),
    "no critic": (9, dict(estimator="grpo", micro_batch_tokens=1280)),
    "a reference": (9, dict(kl_coef=0.1)),
    "clipping": (9, dict(grad_clip=1e-3)),
    "LoRA": (9, dict(lora_rank=3, micro_batch_tokens=1280)),  # 3 rows of A on 2 ranks
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process(trained_folder, case):
    count, changes = CASES[case]
    learner = make_learner(trained_folder, bias=True, learning_rate=1e-5, critic_lr=1e-4, **changes)
    kept, pieces = played_and_pieces(learner, count)
    single = plain(learner, trained_folder)
    modules = [m for m in (single.policy, single.critic) if m]
    rates = [learner.config.learning_rate, learner.config.critic_lr]
    shared = dict(betas=(learner.config.adam_beta1, learner.config.adam_beta2), weight_decay=0.01)
    optimizers = [
        torch.optim.AdamW(m.parameters(), lr, **shared)
        for m, lr in zip(modules, rates, strict=False)
    ]
    for _ in range(3):
        expected, norms = one_process(single, kept, pieces, optimizers)
        metrics = train.backward(learner, kept, pieces)
        found = train.optimizer_step(learner, metrics)
        num_tokens = sum(t.num_response_tokens for t in kept)
        for key in expected.keys() - {"logprob_diff_max", "clipfrac", "vf_clipfrac"}:
            mean = metrics[key].item() / num_tokens
            assert mean == pytest.approx(expected[key] / num_tokens, abs=1e-6, rel=1e-6), key
        assert list(found.values()) == pytest.approx(norms, rel=1e-5)
        assert norms[0] > 1e-3


def test_the_work_is_shared_out_once_and_equally_often(trained_folder):
    learner = make_learner(trained_folder)
    played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    for count, tokens in ((16, 4096), (16, 700), (7, 700), (1, 700)):
        work = gather(parallel.local_micro_batches(played[:count], tokens))
        assert len(work) == world_size() == 2
        assert len({len(part) for part in work}) == 1  # every micro-batch is a collective
        counted = sorted(i for part in work for indices, weight in part if weight for i in indices)
        assert counted == list(range(count))
        assert all(weight in (0.0, 1.0) for part in work for _, weight in part)
        if count == 16:  # balanced: no rank has more than the other by more than one trajectory
            costs = [
                sum(len(played[i].ids) for indices, weight in part if weight for i in indices)
                for part in work
            ]
            assert abs(costs[0] - costs[1]) <= max(len(t.ids) for t in played)


def test_a_forward_after_a_step_uses_the_new_weights(trained_folder):
    """Without resharding the root after a forward, embedding, norm and head would be those before the step."""
    learner = make_learner(trained_folder)
    played = train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer))
    for factor in (1.1, 1.2):
        before, _ = parallel.score_tokens(learner.policy, played, learner.config, 1.0)
        with torch.no_grad():
            for p in learner.policy.parameters():
                p.to_local().mul_(factor)
        after, _ = parallel.score_tokens(learner.policy, played, learner.config, 1.0)
        assert (after - before).abs().max() > 0.1
        single = model.load_model(str(trained_folder))[0]
        with torch.no_grad():
            for p in single.parameters():
                p.mul_(factor if factor == 1.1 else 1.1 * 1.2)
            expected = torch.cat([model.Policy(single)(pack([t]), 1.0)[0] for t in played])
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)


def test_sharding_keeps_what_is_no_parameter(trained_folder):
    """The frequencies of the rotary embedding are not in a state dict; building on "meta" would lose them."""
    learner, single = make_learner(trained_folder), model.load_model(str(trained_folder))[0]
    found = learner.policy.model.model.rotary_emb.inv_freq
    assert torch.equal(found, single.model.rotary_emb.inv_freq) and len(found) == 16


def test_streamed_weights_are_whole_and_name_the_tied_head(trained_folder):
    learner, single = make_learner(trained_folder), model.load_model(str(trained_folder))[0]
    before = list(
        parallel.score_tokens(
            learner.policy,
            train.collect_rollouts(learner, learner.engine, Chat(learner.tokenizer)),
            learner.config,
            1.0,
        )
    )
    assert before  # a forward came before
    for dtype in (torch.float32, torch.bfloat16):
        streamed = list(parallel.stream_weights(learner.policy, dtype))
        expected = single.state_dict()
        assert (
            sorted(name for name, _ in streamed) == sorted(expected)
            and "lm_head.weight" in expected
        )
        for name, weight in streamed:
            assert weight.dtype == dtype and torch.equal(weight, expected[name].to(dtype)), name
    local = sum(p.to_local().numel() for p in learner.policy.parameters())
    assert local < 0.6 * sum(p.numel() for p in single.parameters())  # sharded indeed


def test_lora_is_merged_from_shards(trained_folder):
    learner, single = (
        make_learner(trained_folder, lora_rank=3),
        model.load_model(str(trained_folder))[0],
    )
    expected, noise = single.state_dict(), torch.Generator().manual_seed(rank())
    own = dict(learner.policy.model.named_parameters())
    with torch.no_grad():
        for name in own:
            if "lora_B" in name:
                own[name].to_local().normal_(generator=noise)
                b, a = (
                    parallel.full_tensor(own[name.replace("lora_B", x)])
                    for x in ("lora_B", "lora_A")
                )
                expected[name.replace("lora_B.default.", "")] += b @ a
    for name, weight in parallel.stream_weights(learner.policy):
        torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-5)


def test_groups_are_dealt_out_and_gathered_in_order(trained_folder):
    learner = make_learner(trained_folder)
    config, chat = learner.config, Chat(learner.tokenizer)
    starts = [((9, group), member) for group in range(3) for member in range(4)]
    options = dict(split="train", temperature=1.0, noise_seed=(5,))
    parallel.sync_weights(learner.engine, learner.policy)
    asked = []
    add = learner.engine.add
    learner.engine.add = lambda key, *args, **kwargs: (asked.append(key), add(key, *args, **kwargs))
    played = parallel.collect_all(
        learner.engine, learner.policy, chat, config, starts, group_size=4, **options
    )
    learner.engine.add = add
    assert len(set(asked)) == (8 if rank() == 0 else 4)  # groups 0 and 2, group 1
    alone = collect(learner.engine, chat, config, starts, **options)
    assert [(t.seed, t.member, t.ids, t.score) for t in played] == [
        (t.seed, t.member, t.ids, t.score) for t in alone
    ]


def test_an_engine_with_old_weights_is_refused(trained_folder):
    learner = make_learner(trained_folder)
    chat = Chat(learner.tokenizer)
    starts, options = (
        [((0,), 0)],
        dict(group_size=1, split="train", temperature=1.0, noise_seed=(0,)),
    )
    with pytest.raises(RuntimeError, match="the engine has weights None, the policy is at"):
        parallel.collect_all(
            learner.engine, learner.policy, chat, learner.config, starts, **options
        )
    parallel.sync_weights(learner.engine, learner.policy)
    assert (
        len(
            parallel.collect_all(
                learner.engine, learner.policy, chat, learner.config, starts, **options
            )
        )
        == 1
    )
    learner.policy.bump_version()
    with pytest.raises(RuntimeError, match="call sync_weights first"):
        parallel.collect_all(
            learner.engine, learner.policy, chat, learner.config, starts, **options
        )


def test_a_number_that_is_not_finite_on_one_rank_stops_both(trained_folder, monkeypatch):
    learner = make_learner(trained_folder, batch_size=8)
    kept, pieces = played_and_pieces(learner, 8)
    before = [p.detach().to_local().clone() for p in learner.policy.parameters()]
    losses = train.losses

    def spoilt(*args):
        for loss, metrics in losses(*args):
            yield (loss * float("nan") if rank() == 1 else loss), metrics

    monkeypatch.setattr(train, "losses", spoilt)
    train.optimizer_step(learner, train.backward(learner, kept, pieces))
    assert learner.bad_steps == 1
    assert all(
        torch.equal(a, p.to_local())
        for a, p in zip(before, learner.policy.parameters(), strict=True)
    )


@pytest.mark.parametrize("lora_rank", [0, 3])
def test_a_checkpoint_of_two_ranks(trained_folder, tmp_path, lora_rank):
    folder = gather([tmp_path])[0][0]  # the same for both
    learner = make_learner(trained_folder, bias=True, learning_rate=1e-3, lora_rank=lora_rank)
    kept, pieces = played_and_pieces(learner, 8)
    train.optimizer_step(learner, train.backward(learner, kept, pieces))
    learner.step = 3
    with checkpoint.Saver(folder, 2) as saver:
        learner.save(saver)
    assert sorted(p.name for p in folder.iterdir()) == ["checkpoint-000003"]
    dist.barrier()  # until both have looked
    checkpoint.export(folder / "policy", learner.policy, learner.tokenizer)
    other = make_learner(trained_folder, lora_rank=lora_rank)
    other.load(folder / "checkpoint-000003")
    exported = model.load_model(str(folder / "policy"))[0].state_dict()
    saved, loaded = (dict(parallel.stream_weights(each.policy)) for each in (learner, other))
    for name, weight in saved.items():
        assert torch.equal(weight, loaded[name]) and torch.equal(weight, exported[name]), name
    for each in (learner, other):
        train.optimizer_step(each, train.backward(each, kept, pieces))
    for a, b in zip(learner.critic.parameters(), other.critic.parameters(), strict=True):
        assert torch.equal(a.to_local(), b.to_local())


def test_the_engine_plays_the_same_on_every_rank(trained_folder):
    """One rank playing alone does not wait for the other."""
    learner = make_learner(trained_folder)
    parallel.sync_weights(learner.engine, learner.policy)
    options = dict(split="train", temperature=1.0, noise_seed=(5,))
    starts = [((9,), member) for member in range(4 + 4 * rank())]
    played = rollout.collect(
        learner.engine, Chat(learner.tokenizer), learner.config, starts, **options
    )
    both = gather([t.ids for t in played])
    assert both[0] == both[1][:4] and len(both[1]) == 8
