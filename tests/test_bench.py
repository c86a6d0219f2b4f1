"""
Tests of bench.py: the peers do the same work, and the table says what was measured.

    python -m pytest -q tests/test_bench.py
"""

import pytest
import torch
from conftest import small_config
from transformers import AutoModelForCausalLM

from engine import make_engine
from model import load_model
from packing import PackedBatch
from rollout import Chat, collect
from support.run_folder import read_rows
from tools import bench

STARTS = [((4, group), member) for group in range(3) for member in range(3)]


@pytest.mark.parametrize("keep", [True, False])
def test_hugging_face_samples_the_same_tokens(trained_folder, keep):
    """In turns that end at different lengths, while trajectories leave the batch."""
    model, tokenizer = load_model(str(trained_folder))
    theirs = AutoModelForCausalLM.from_pretrained(trained_folder, attn_implementation="sdpa")
    config, chat = small_config(max_response_tokens=40), Chat(tokenizer)
    played = []
    for engine in (
        make_engine(config, model, chat),
        bench.HuggingFace(theirs, chat.end, keep=keep),
    ):
        options = dict(split="train", temperature=0.0, noise_seed=(7,))
        played.append(collect(bench.DrawnLengths(engine), chat, config, STARTS, **options))
    assert [t.ids for t in played[0]] == [t.ids for t in played[1]]
    assert len({len(t.turns) for t in played[0]}) > 1  # some are over before others
    assert len({len(turn.response_ids) for t in played[0] for turn in t.turns}) > 1


def test_a_barrier_changes_no_token_and_needs_more_steps(trained_folder):
    model, tokenizer = load_model(str(trained_folder))
    config, chat = small_config(max_response_tokens=100, max_context_tokens=900), Chat(tokenizer)
    options = dict(split="train", temperature=2.0, noise_seed=(8,))
    free, held = (make_engine(config, model, chat) for _ in range(2))
    one = collect(bench.DrawnLengths(free), chat, config, STARTS, **options)
    two = collect(bench.DrawnLengths(bench.Barrier(held)), chat, config, STARTS, **options)
    assert [t.ids for t in one] == [t.ids for t in two]
    assert free.num_steps < held.num_steps


def test_packed_and_padded_updates_agree_and_are_reported(trained_folder, monkeypatch, capsys):
    monkeypatch.setattr(bench, "FOLDER", str(trained_folder))
    monkeypatch.setattr(bench, "installed", lambda name: False)
    rows = bench.update(small_config(max_context_tokens=900), 1)  # refuses to time what differs
    assert list(rows) == ["packed", "padded"]
    assert rows["packed"]["loss"][0] == pytest.approx(rows["padded"]["loss"][0], abs=1e-5)
    assert capsys.readouterr().out.count("| CPU time ") == 2


def test_the_table_has_medians_and_extremes(capsys):
    values = iter([9, 1, 7, 4])  # the first is to warm up
    rows = bench.compare({"a": lambda: {"steps": next(values)}}, 3)
    assert rows["a"]["steps"] == [4.0, 1.0, 7.0]
    assert "steps 4 [1, 7]" in capsys.readouterr().out
    with pytest.raises(ValueError, match="repeats must be 1 or more, got 0"):
        bench.main(["head", "--repeats=0"])


def test_iteration_and_scale_read_what_train_logs(monkeypatch, capsys):
    calls = []

    def trained(*arguments, ranks=1, iterations=4):
        calls.append(arguments)
        sizes = {
            key: int(value)
            for key, value in (a[2:].split("=") for a in arguments if a.count("=") == 1)
        }
        groups, turns = sizes.get("num_groups", 8), sizes.get("max_turns", 5)
        row = dict(num_turns=turns / 2, wall_s=3.0, response_length=20.0)
        return row | {"cpu_s": groups * turns**1.5}

    monkeypatch.setattr(bench, "trained", trained)
    monkeypatch.setattr(bench, "installed", lambda name: False)
    rows = bench.iteration(small_config(), 2)
    assert (
        rows["ours"]["sampled tokens"] == [2560.0] * 3 and rows["ours"]["cpu_s"] == [8 * 5**1.5] * 3
    )
    rows = bench.scale(small_config(), 1)
    assert rows["exponent of trajectories"] == pytest.approx(1.0)
    assert rows["exponent of turns"] == pytest.approx(1.5)  # against the turns that were played
    assert rows["exponent of ranks"] == pytest.approx(0.0)  # 3 seconds on one and on two
    assert "time grows like turns^1.50" in capsys.readouterr().out


def test_what_is_read_of_a_run_is_what_it_logged():
    small = (
        "config/bandit_grpo.py",
        "config/tiny.py",
        "--num_groups=2",
        "--group_size=2",
        "--batch_size=2",
    )
    row = bench.trained(*small, iterations=3)
    logged = read_rows(bench.Path("out/bench_run/metrics.jsonl"), 3)
    assert [row["step"] for row in logged] == [1, 2, 3]
    assert row["num_turns"] == 1 and row["cpu_s"] == (logged[1]["cpu_s"] + logged[2]["cpu_s"]) / 2
    assert row["wall_s"] == pytest.approx(
        sum(r[key] for r in logged[1:] for key in ("rollout_s", "update_s")) / 2
    )


def test_flop_by_hand():
    shape = dict(vocab_size=10, hidden_size=4, num_hidden_layers=2)
    zeros = torch.zeros(5, dtype=torch.long)
    # pieces of 2 and 3 tokens, the second after the first: 2 * 1 + 3 * 3.5 keys; one sampled token
    batch = PackedBatch(zeros, zeros, [2, 3], [(), (0,)], zeros[:1])
    assert bench.flop_of(batch, shape, 100, 0) == 6 * 100 * 5 + 12 * 2 * 4 * 12.5
    assert bench.flop_of(batch, shape, 100, 40) == 6 * (100 * 5 + 40) + 12 * 2 * 4 * 12.5


def test_the_gpu_bench_runs_on_a_cpu_where_it_is_allowed_to(monkeypatch):
    shape = dict(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    cases = [("W2", 150_000, "SDPA", False, what) for what in ("policy", "critic")]
    monkeypatch.setattr(bench, "product", lambda *_: cases)
    monkeypatch.setattr(
        bench.packing, "has_varlen_kernel", bench.packing.has_varlen_kernel
    )  # put back afterwards
    workload = bench.workload
    monkeypatch.setattr(bench, "workload", lambda *arguments: workload(*arguments)[:32])
    bench.parallel.init_distributed(small_config())
    rows = bench.gpu(small_config(), 1, shape=shape)
    assert list(rows) == ["W2 policy, 150000 tokens, SDPA", "W2 critic, 150000 tokens, SDPA"]
    # 2 groups of 16: 400 tokens of a first prompt but its last shared, then 1 + 4 * 80 + 5 * 150 tokens a member
    tokens = 2 * (399 + 16 * 1071)
    row = rows["W2 policy, 150000 tokens, SDPA"]
    assert row["tokens/s"] * row["wall_s"][0] == pytest.approx(tokens)
