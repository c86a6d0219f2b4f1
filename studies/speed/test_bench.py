"""Tests of bench.py and its benchmarks."""

from types import SimpleNamespace

import pytest
import torch
from shared_fixtures import small_config
from transformers import AutoModelForCausalLM

import parallel
from dialogue import Chat
from engine import make_engine
from model import load_model
from rollout import collect
from studies.speed import (
    bench,
    bench_head,
    bench_iteration,
    bench_measure,
    bench_precision,
    bench_update,
)
from studies.speed.bench_rollout import Barrier, DrawnLengths, HuggingFace
from utils.files import read_rows

STARTS = [((4, group), member) for group in range(3) for member in range(3)]


def play(engine, config, chat, temperature, seed):
    return collect(
        DrawnLengths(engine),
        chat,
        config,
        STARTS,
        split="train",
        temperature=temperature,
        noise_seed=(seed,),
    )


# ---------- rollouts


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False])
def test_hugging_face_samples_the_same_tokens(trained_folder, keep):
    model, tokenizer = load_model(str(trained_folder))
    hf_model = AutoModelForCausalLM.from_pretrained(trained_folder, attn_implementation="sdpa")
    config = small_config(max_response_tokens=40)
    chat = Chat(tokenizer)
    ours = play(make_engine(config, model, chat), config, chat, 0.0, 7)
    theirs = play(HuggingFace(hf_model, chat.end, keep=keep), config, chat, 0.0, 7)
    assert [trajectory.ids for trajectory in ours] == [trajectory.ids for trajectory in theirs]
    turns = [turn for trajectory in ours for turn in trajectory.turns]
    assert len({len(trajectory.turns) for trajectory in ours}) > 1
    assert len({len(turn.response_ids) for turn in turns}) > 1


@pytest.mark.slow
def test_a_barrier_changes_no_token_and_needs_more_steps(trained_folder):
    model, tokenizer = load_model(str(trained_folder))
    config = small_config(max_response_tokens=100, max_context_tokens=900)
    chat = Chat(tokenizer)
    free = make_engine(config, model, chat)
    held = make_engine(config, model, chat)
    without = play(free, config, chat, 2.0, 8)
    with_barrier = play(Barrier(held), config, chat, 2.0, 8)
    assert [trajectory.ids for trajectory in without] == [
        trajectory.ids for trajectory in with_barrier
    ]
    assert free.num_steps < held.num_steps


# ---------- update and head


@pytest.mark.slow
def test_packed_and_padded_updates_agree_and_are_reported(trained_folder, monkeypatch, capsys):
    monkeypatch.setattr(bench_update, "is_installed", lambda package: False)
    rows = bench_update.update(
        small_config(max_context_tokens=900, model=str(trained_folder), num_groups=4), 1
    )
    assert list(rows) == ["packed", "padded"]
    assert rows["packed"]["loss"][0] == pytest.approx(rows["padded"]["loss"][0], abs=1e-5)
    assert capsys.readouterr().out.count("| CPU time ") == 2


@pytest.mark.slow
def test_the_update_of_the_untrained_model(monkeypatch, capsys):
    monkeypatch.setattr(bench_update, "is_installed", lambda package: False)
    bench.main(["update", "--repeats=1", "--num_groups=1", "--group_size=8", "--batch_size=2"])
    printed = capsys.readouterr().out
    assert printed.count("| CPU time ") == 2
    assert "of the peak of" in printed


def test_operations_of_an_update():
    """All 7 tokens use the 2 x 3 weights of the body. The 4 sampled tokens also use the 5 x 2
    weights of the head."""
    model = torch.nn.Module()
    model.embed = torch.nn.Embedding(5, 2)
    model.up = torch.nn.Linear(2, 3, bias=False)
    model.get_input_embeddings = lambda: model.embed
    model.get_output_embeddings = lambda: model.embed
    packed = SimpleNamespace(ids=torch.zeros(7), response_index=torch.zeros(4))
    assert bench_update.num_operations(model, packed) == 6 * (6 * 7 + 10 * 4)


def test_variants_that_differ_are_not_timed():
    expected = {"loss": 0.25, "gradient norm": 2.0}
    bench_update.check_results({"a": expected, "b": {"loss": 0.250001, "gradient norm": 2.0}})
    for wrong in ({"loss": 0.2501, "gradient norm": 2.0}, {"loss": 0.25, "gradient norm": 2.001}):
        with pytest.raises(ValueError, match="the variants do different work: .*'b'"):
            bench_update.check_results({"a": expected, "b": wrong})


def test_the_head_is_measured_with_and_without_chunks():
    for chunk in (0, 8):
        found = bench_head.measure_head(chunk, rows=4, vocabulary=20)
        assert found.keys() == {"cpu_s", "peak_mib"} and found["peak_mib"] >= 0


@pytest.mark.slow
def test_precision_tells_the_types_apart(capsys):
    parallel.init_distributed(small_config())
    shape = {**bench_precision.SHAPE, "vocab_size": 2000, "hidden_size": 64}
    shape |= dict(intermediate_size=64, num_attention_heads=2, num_key_value_heads=1)
    rows = bench_precision.precision(small_config(), 1, shape=shape)
    means = {name: row["mean"] for name, row in rows.items()}
    rounded = ", logits rounded to 16 bits"
    assert means["float32"] < 1e-4 < means["float16"] < means["bfloat16"] < 0.1
    for name in ("float16", "bfloat16"):
        assert means[name] < means[name + rounded]
    assert capsys.readouterr().out.count("| bfloat16") == 2


# ---------- the table


def test_the_table_has_medians_and_extremes(capsys):
    values = iter([9, 1, 7, 4])  # the warm-up round returns 9
    rows = bench_measure.compare({"a": lambda: {"steps": next(values)}}, 3)
    assert rows["a"]["steps"] == [4.0, 1.0, 7.0]
    assert "steps 4 [1, 7]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["head", "--repeats=0"], "repeats must be 1 or more, got 0"),
        (["chess"], "give one of rollout, update, iteration, head, precision, scale; got chess"),
        ([], "give one of rollout, .*; got nothing"),
    ],
)
def test_messages(argv, message):
    with pytest.raises(ValueError, match=message):
        bench.main(argv)


# ---------- iterations of train.py


def test_iteration_and_scale_read_what_train_logs(monkeypatch, capsys):
    def run_training(*arguments, ranks=1, iterations=4):
        sizes = {"num_groups": 8, "max_turns": 5}
        for argument in arguments:
            key, _, value = argument.removeprefix("--").partition("=")
            if key in sizes:
                sizes[key] = int(value)
        return {
            "num_turns": sizes["max_turns"] / 2,
            "wall_s": 3.0,
            "response_length": 20.0,
            "cpu_s": sizes["num_groups"] * sizes["max_turns"] ** 1.5,
        }

    monkeypatch.setattr(bench_iteration, "run_training", run_training)
    monkeypatch.setattr(bench_iteration, "is_installed", lambda package: False)
    rows = bench_iteration.iteration(small_config(), 2)
    assert rows["ours"]["sampled tokens"] == [2 * 4 * 20.0] * 3
    assert rows["ours"]["cpu_s"] == [2 * 3**1.5] * 3
    rows = bench_iteration.scale(small_config(), 1)
    assert rows["exponent of trajectories"] == pytest.approx(1.0)
    assert rows["exponent of turns"] == pytest.approx(1.5)  # cost ~ turns^1.5
    assert rows["exponent of ranks"] == pytest.approx(0.0)  # wall_s is 3.0 at any number of ranks
    assert "time grows like turns^1.50" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_read_of_a_run_is_what_it_logged():
    sizes = ("--num_groups=2", "--group_size=2", "--batch_size=2")
    row = bench_iteration.run_training(*bench.BANDIT, *sizes, iterations=3)
    logged = read_rows(bench_iteration.Path("out/bench_run/metrics.jsonl"), 3)
    assert [row["step"] for row in logged] == [1, 2, 3]
    _, second, third = logged
    assert row["num_turns"] == 1 and row["cpu_s"] == (second["cpu_s"] + third["cpu_s"]) / 2
    wall_s = [step["rollout_s"] + step["update_s"] for step in (second, third)]
    assert row["wall_s"] == pytest.approx(sum(wall_s) / 2)
