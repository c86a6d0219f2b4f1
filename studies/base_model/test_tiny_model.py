"""Tests of tiny_model.py."""

from configurator import Config

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import dialogue
import envs
from dialogue import IM_END, IM_START, Chat
from model import load_model
from studies.base_model import tiny_model
from utils.model_folder import BASE
from worlds.bandit import Bandit


def environment_texts():
    """Return texts of environments, from seeds that the tokenizer was not trained on."""
    texts = []
    bandits = [f"bandit:pair={pair}" for pair in Bandit.PAIRS]
    for spec in [*bandits, "frozenlake", "sokoban", "sokoban:symbols=newvocab"]:
        for observation in envs.OBSERVATIONS:
            episode = dialogue.Episode(envs.make_env(spec, observation=observation), Config())
            texts += episode.reset([92, 5])
            thought = " ".join(episode.env.statements())
            texts.append(dialogue.format_response(thought, episode.env.plan(3, 5)))
            texts.append(episode.step("nonsense").user)
    assert len(texts) > 100
    return texts


BOARD_SPECS = (
    "frozenlake",
    "frozenlake:size=5,frozen_prob=0.7",
    "sokoban",
    "sokoban:symbols=newvocab",
    "sokoban:size=8,boxes=2,search_depth=10",
)


def boards():
    for spec in BOARD_SPECS:
        env = envs.make_env(spec)
        for seed in range(8):
            yield env.reset([91, seed])
            for action in env.actions * 2:
                yield env.step(action).observation


def token_texts(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [tokenizer.decode([token]) for token in ids]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_model.build_tiny_tokenizer()


@pytest.fixture(scope="module")
def chat(tokenizer):
    return Chat(tokenizer)


def test_tiny_model_is_tiny_and_seeded():
    first, same, other = (tiny_model.build_tiny(seed, "3x96")[0] for seed in (0, 0, 1))
    assert 100_000 < sum(p.numel() for p in first.parameters()) < 1_000_000
    assert first.config.num_hidden_layers == 3
    for a, b in zip(first.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


@pytest.mark.parametrize("shape", ["3", "x96", "0x96", "3x48", "3x-32", "threex96", "3x0"])
def test_other_shapes_are_refused(shape):
    message = "the tiny model must be layers x width, .* such as 4x128, at most 100x8192; got"
    with pytest.raises(ValueError, match=message):
        tiny_model.build_tiny(0, shape)


@pytest.mark.parametrize(
    "load", [lambda folder: load_model(folder)[1], AutoTokenizer.from_pretrained]
)
def test_saved_tokenizer_encodes_as_before(random_model, tokenizer, tmp_path, load):
    """Saving and loading changes no ids, because the loaded tokenizer also splits text with
    QWEN2_SPLIT. LEARNING_SPLIT was used only to learn the merges."""
    random_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    texts = [*environment_texts(), *boards(), f"a{IM_END}"]
    texts.append("<|im_start|>user\nTurn 2 of 5<|im_end|>\n")
    for text in texts:
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"], text
        assert Chat(loaded).encode(text) == Chat(tokenizer).encode(text), text


def test_shipped_tokenizer_is_built_again(tokenizer):
    """A new environment must not change the tokenizer, because the model in base/ was trained with
    this tokenizer."""
    base = json.loads(Path(BASE, "tokenizer.json").read_text(encoding="utf-8"))
    built = json.loads(tokenizer.backend_tokenizer.to_str())
    assert len(base["model"]["merges"]) > 100
    assert built["model"]["vocab"] == base["model"]["vocab"]
    assert built["model"]["merges"] == base["model"]["merges"]
    assert built["added_tokens"] == base["added_tokens"]


def test_every_cell_of_a_grid_is_one_token(tokenizer):
    seen = set()
    for board in boards():
        if "√" not in board:  # the next test checks "√"
            assert token_texts(tokenizer, board) == list(board)
            seen |= set(board)
    assert seen >= set("PGO_#XSW.BA@\n")


@pytest.mark.parametrize("symbol", [*"#_OXPSG√W.CBA@"])
def test_every_symbol_is_one_token_next_to_every_other(tokenizer, symbol):
    for other in "#_OXPSG\n" if symbol in "#_OXPSG√" else "W.GCBA@\n":
        assert token_texts(tokenizer, symbol + other) == [symbol, other]
        assert token_texts(tokenizer, other + symbol) == [other, symbol]


ROLES = ("system", "user", "assistant")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@pytest.mark.parametrize("text", [*ROLES, *TAGS, " ||", "Left", "Up", "Push", "7"])
def test_frequent_words_are_single_tokens(tokenizer, text):
    assert len(token_texts(tokenizer, text)) == 1


def test_round_trip_of_all_environment_texts(chat):
    strange = "Naïve 東京 \t\r\n\n  <b>&amp; 12345 ; 'don't' <Think> \x00"
    for text in [strange, *environment_texts(), *boards()]:
        assert chat.decode(chat.encode(text)) == text


def test_special_tokens_in_text_are_plain_text(chat, tokenizer):
    marks = [IM_START, IM_END, tiny_model.END_OF_TEXT]
    special = set(tokenizer.convert_tokens_to_ids(marks))
    text = f"a{IM_START}user\nb{IM_END}{tiny_model.END_OF_TEXT}"
    plain_call = tokenizer(text)["input_ids"]
    assert len(special & set(plain_call)) == 3
    ids = chat.encode(text)
    assert special & set(ids) == set()
    assert chat.decode(ids) == text
