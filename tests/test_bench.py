"""
Tests of bench.py: the peers do the same work, and the table says what was measured.

    python -m pytest -q tests/test_bench.py
"""

import pytest
from conftest import small_config

import bench
from engine import make_engine
from model import load_model
from rollout import Chat, collect

STARTS = [((4, group), member) for group in range(3) for member in range(3)]


@pytest.mark.parametrize("keep", [True, False])
def test_hugging_face_samples_the_same_tokens(trained_folder, monkeypatch, keep):
    """In turns that end at different lengths, while trajectories leave the batch."""
    monkeypatch.setattr(bench, "FOLDER", str(trained_folder))
    model, tokenizer = load_model(str(trained_folder))
    config, chat = small_config(max_response_tokens=40), Chat(tokenizer)
    played = []
    for engine in (make_engine(config, model, chat), bench.HuggingFace(chat.end, keep=keep)):
        options = dict(split="train", temperature=0.0, noise_seed=(7,))
        played.append(collect(bench.DrawnLengths(engine), chat, config, STARTS, **options))
    assert [t.ids for t in played[0]] == [t.ids for t in played[1]]
    assert len({len(t.turns) for t in played[0]}) > 1  # some are over before others
    assert len({len(turn.response_ids) for t in played[0] for turn in t.turns}) > 1


def test_a_barrier_changes_no_token_and_needs_more_steps(trained_folder):
    model, tokenizer = load_model(str(trained_folder))
    config, chat = small_config(max_response_tokens=100, max_context_tokens=900), Chat(tokenizer)
    options = dict(split="train", temperature=2.0, noise_seed=(7,))
    free, held = (make_engine(config, model, chat) for _ in range(2))
    one = collect(free, chat, config, STARTS, **options)
    two = collect(bench.Barrier(held), chat, config, STARTS, **options)
    assert [t.ids for t in one] == [t.ids for t in two]
    assert free.num_steps < held.num_steps


def test_packed_and_padded_updates_agree_and_are_reported(trained_folder, monkeypatch, capsys):
    monkeypatch.setattr(bench, "FOLDER", str(trained_folder))
    rows = bench.update(small_config(max_context_tokens=900), 1)  # refuses to time what differs
    assert list(rows) == ["packed", "padded"]
    assert rows["packed"]["loss"][0] == pytest.approx(rows["padded"]["loss"][0], abs=1e-5)
    assert capsys.readouterr().out.count("| CPU time ") == 2


def test_the_table_has_medians_and_extremes(capsys):
    values = iter([9, 1, 7, 4])  # the first is to warm up
    rows = bench.compare({"a": lambda: {"steps": next(values)}}, 3)
    assert rows["a"]["steps"] == [4.0, 1.0, 7.0]
    assert "steps 4 [1, 7]" in capsys.readouterr().out
