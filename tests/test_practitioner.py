"""
Defects of the code behind arXiv 2510.01132 (meow-tea-taro, a9c248c), each with the tests that would catch it here.

    what was wrong there                              what fails here if it were so
    ------------------------------------------------  ----------------------------------------
    log-probs recomputed with all but the last        model: test_a_token_sees_the_past_and_not_the_future
    batch_size prompt tokens masked                   rollout: test_engine_logprobs_equal_a_plain_forward
                                                      train: test_recomputed_log_probs_are_the_trainers
                                                      practitioner: test_a_response_depends_on_all_of_its_prompt
    trained on text encoded again, without the line   rollout: test_trained_ids_are_the_sampled_ids
    break after a reply                               rollout: test_prompts_by_hand
    a game that is over counts as won                 turns: test_hole_ends_in_failure
                                                      practitioner: test_a_lost_game_is_worth_less_than_a_won_one
                                                      textworld: test_a_lost_game_is_no_success
    late with 9 of 10 milestones pays 9, a win 1      dialogue: test_every_win_pays_one_and_every_loss_less
                                                      worlds: test_a_win_is_worth_more_than_any_loss
                                                      practitioner: test_a_lost_game_is_worth_less_than_a_won_one
    GRPO and RLOO with groups of one                  practitioner: test_every_recipe_of_groups_has_groups
                                                      starpo: test_equal_rewards_and_groups_of_one_teach_nothing
    the export of demonstrations fails, and would     practitioner: test_a_demonstration_holds_every_turn
    hold the first turn alone                         worlds: test_players_and_demonstrations
    a reply's header is trained, messages are         rollout: test_prompts_equal_the_chat_template
    templated one by one                              rollout: test_trained_ids_are_the_sampled_ids
    an episode cut off has no place for a reward      practitioner: test_every_episode_has_a_place_for_its_reward
                                                      rollout: test_context_limit_ends_a_trajectory
    the planner as expert is silently another         alfworld: test_the_expert_wins_alfworld
    training and evaluation share seeds               worlds: test_splits_are_disjoint
    harmless patches earn the tests that pass anyway  repair: test_repair_leaves_out_what_the_unpatched_code_passes
                                                      sandbox: test_the_ratio_leaves_out_what_the_unpatched_code_passes
    stale bytecode: the tests see the code of before  sandbox: test_the_ratio_leaves_out_what_the_unpatched_code_passes

    python -m pytest -q tests/test_practitioner.py
"""

from configurator import Config, load_config

import ast
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import small_config

import packing
import rollout
from dialogue import Episode, parse_response, shape_rewards
from engine import make_engine
from envs import Env, make_env
from model import Policy
from tools.demonstrations import demonstration
from train import compute_targets

ROOT = Path(__file__).resolve().parent.parent
ROWS = re.findall(r"(\w+): (test_\w+)", __doc__)


def test_the_tests_of_the_table_are_there():
    for file in {file for file, _ in ROWS}:
        tree = ast.parse((ROOT / "tests" / f"test_{file}.py").read_text(encoding="utf-8"))
        there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {name for own, name in ROWS if own == file} <= there


def test_a_response_depends_on_all_of_its_prompt(random_model, chat):
    """Each of the first 40 tokens of the prompt, changed alone, changes the log-probs of the response."""
    config = small_config()
    starts = [((4, 0), 0)]
    (t,) = rollout.collect(
        make_engine(config, random_model, chat),
        chat,
        config,
        starts,
        split="train",
        temperature=1.0,
        noise_seed=(7,),
    )
    t = replace(t, turns=t.turns[:1])

    def logprobs(prompt_ids):
        changed = replace(t, turns=[replace(t.turns[0], prompt_ids=prompt_ids)])
        with torch.no_grad():
            return Policy(random_model)(packing.pack([changed]), 1.0)[0]

    prompt = t.turns[0].prompt_ids
    assert len(prompt) > 40
    for i in range(40):
        other = [*prompt[:i], (prompt[i] + 1) % 700, *prompt[i + 1 :]]
        assert not torch.equal(logprobs(other), logprobs(prompt)), i


class Dinner(Env):
    """Ten milestones; the food may be eaten at any time, which ends the game."""

    actions, max_reward = ("cook", "wait", "eat"), 10.0

    def _start(self, instance):
        self.done = 0

    def _move(self, index):
        self.done += index == 0
        return float(index == 0), index == 2 or self.done == 10, self.done == 10, True

    def observe(self):
        return f"Steps {self.done}"

    def rules(self):
        return "Cook."

    def statements(self):
        return []


@pytest.mark.parametrize("density", ["sparse", "dense", "balanced"])
def test_a_lost_game_is_worth_less_than_a_won_one(density):
    """A win pays 1; 9 of 10 milestones and then eaten, or then too late, no more than 0.9 (upstream: 1 and 9)."""
    totals = {}
    for end in ("cook", "eat", "wait"):
        env = Dinner(max_actions=10)
        env.start(("dinner",), [0])
        episode = Episode(env, Config(think=False, max_turns=10, actions_per_turn=1))
        episode.open(env.observe())
        outcomes = [episode.step(f"<answer>{name}</answer>") for name in ["cook"] * 9 + [end]]
        assert outcomes[-1].status == ("success" if end == "cook" else "failure")
        rewards, won = [outcome.record.env_reward for outcome in outcomes], end == "cook"
        totals[end] = sum(shape_rewards(rewards, won, density, max_reward=env.max_reward))
    assert totals["cook"] == pytest.approx(1)
    assert totals["eat"] == totals["wait"] == pytest.approx(0.0 if density == "sparse" else 0.9)


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.py")), ids=lambda path: path.stem)
def test_every_recipe_of_groups_has_groups(path):
    config = load_config([str(path)])[0]
    assert config.group_size >= 2 or not re.search("grpo|rloo|baseline", config.estimator)


@pytest.mark.parametrize("name", ["quest_ppo", "household_ppo"])
def test_a_demonstration_holds_every_turn(name, chat):
    """Its replies, read back from the tokens that are trained, do the task from the same start; each turn is there."""
    config = replace(
        load_config([str(ROOT / "config" / f"{name}.py")])[0],
        max_context_tokens=16384,
        sft_actions=1,
    )
    for index in range(3):
        demo = demonstration(config, chat, index)
        env = make_env(
            config.env, observation=config.observation, max_actions=config.actions_per_traj
        )
        env.reset(demo.seed)
        assert len(demo.turns) == env.optimal_length() >= 2
        for turn in demo.turns:
            assert turn.response_ids[-1] == chat.end and env.observe() in turn.observation
            parsed = parse_response(chat.decode(turn.response_ids), think=config.think)
            assert parsed.well_formed and len(parsed.actions) == 1
            step = env.step(parsed.actions[0])
        assert step.success
        assert sum(demo.response_mask) == sum(len(turn.response_ids) for turn in demo.turns)


@pytest.mark.parametrize("limit", [300, 640])
def test_every_episode_has_a_place_for_its_reward(limit, trained_model, chat):
    """Wherever the context ends an episode: each of its tokens has the score less the mean of the others' (RLOO)."""
    config = small_config(
        max_context_tokens=limit,
        estimator="rloo",
        format_penalty=-0.25,
        batch_size=8,
        filter_keep=1,
    )
    starts = [((4, group), member) for group in range(2) for member in range(4)]
    played = rollout.collect(
        make_engine(config, trained_model, chat),
        chat,
        config,
        starts,
        split="train",
        temperature=1.0,
        noise_seed=(7,),
    )
    learner = SimpleNamespace(config=config, device=torch.device("cpu"), ref=None, critic=None)
    advantages = compute_targets(learner, played).advantages.split(
        [t.num_response_tokens for t in played]
    )
    assert ("out_of_tokens" in {t.status for t in played}) == (limit == 300)
    for i, (t, found) in enumerate(zip(played, advantages, strict=True)):
        others = [other.score for other in played[i // 4 * 4 : i // 4 * 4 + 4] if other is not t]
        assert len(found) >= 1 and found.tolist() == pytest.approx(
            [t.score - sum(others) / 3] * len(found)
        )
