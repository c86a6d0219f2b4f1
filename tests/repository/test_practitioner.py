"""Defects of the code behind arXiv 2510.01132, and the tests of nanoRAGEN that would catch them.

The code is meow-tea-taro at commit a9c248c. Below each defect are its tests. The word before a test
names the file of the test: `model` stands for tests/core/test_model.py.

    the recomputation of log-probs masks all prompt tokens except the last `batch_size` of them
        model: test_a_token_sees_the_past_and_not_the_future
        rollout: test_engine_logprobs_equal_a_plain_forward
        update: test_recomputed_log_probs_are_the_trainers
        practitioner: test_a_response_depends_on_all_of_its_prompt
    training on text that was encoded again, without the line break after a reply
        rollout: test_trained_ids_are_the_sampled_ids
        rollout: test_prompts_by_hand
    a game that is over counts as won
        turns: test_hole_ends_in_failure
        practitioner: test_a_lost_game_is_worth_less_than_a_won_one
        textworld: test_a_lost_game_is_no_success
    a game that runs out of turns with 9 of 10 milestones pays 9, and a game that is won pays 1
        methods: test_every_win_pays_one_and_every_loss_less
        worlds: test_a_win_is_worth_more_than_any_loss
        practitioner: test_a_lost_game_is_worth_less_than_a_won_one
    GRPO and RLOO with groups of one trajectory
        practitioner: test_every_recipe_of_groups_has_groups
        starpo: test_equal_rewards_and_groups_of_one_teach_nothing
    the export of demonstrations fails; without the failure, it would write only the first turn
        practitioner: test_a_demonstration_holds_every_turn
        worlds: test_players_and_demonstrations
    the loss includes the header of a reply, and the chat template is applied to single messages
        rollout: test_prompts_equal_the_chat_template
        rollout: test_trained_ids_are_the_sampled_ids
    an episode that is cut off has no token for its reward
        practitioner: test_every_episode_has_a_place_for_its_reward
        rollout: test_context_limit_ends_a_trajectory
    a user who asks for the expert "planner" silently gets the handcoded expert
        alfworld: test_the_expert_wins_alfworld
    training and evaluation share seeds
        worlds: test_splits_are_disjoint
    a patch without effect is rewarded for the tests that the unpatched code passes
        repair: test_repair_leaves_out_what_the_unpatched_code_passes
        sandbox: test_the_ratio_leaves_out_what_the_unpatched_code_passes
    because of stale bytecode, the tests run the code from before the patch
        sandbox: test_the_ratio_leaves_out_what_the_unpatched_code_passes
"""

from configurator import Config, load_config

import ast
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from shared_fixtures import config_file, small_config

import packing
import rollout
from dialogue import Episode, parse_response
from engine import make_engine
from envs import Env, make_env
from methods import shape_rewards
from model import Policy
from tools.demonstrations import demonstration
from tools.sft_config import SftConfig
from train import build_experience

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(r"(\w+): (test_\w+)", __doc__)
OPTIONS = dict(split="train", temperature=1.0, noise_seed=(7,))


def test_the_tests_of_the_table_are_there():
    for file in {file for file, _ in ROWS}:
        (path,) = ROOT.glob(f"tests/*/test_{file}.py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {name for own, name in ROWS if own == file} <= defined


def test_a_response_depends_on_all_of_its_prompt(random_model, chat):
    config = small_config()
    engine = make_engine(config, random_model, chat)
    (trajectory,) = rollout.collect(engine, chat, config, [((4, 0), 0)], **OPTIONS)
    first = trajectory.turns[0]

    def logprobs(prompt_ids):
        changed = replace(trajectory, turns=[replace(first, prompt_ids=prompt_ids)])
        with torch.no_grad():
            return Policy(random_model)(packing.pack([changed]), 1.0)[0]

    prompt = first.prompt_ids
    assert len(prompt) > 40
    expected = logprobs(prompt)
    for i in range(40):
        other = [*prompt[:i], (prompt[i] + 1) % 700, *prompt[i + 1 :]]
        assert not torch.equal(logprobs(other), expected), i


class Dinner(Env):
    """Each `cook` reaches one of ten milestones. The action `eat` ends the game as a loss."""

    actions = ("cook", "wait", "eat")
    max_reward = 10.0

    def _start(self, instance):
        self.done = 0

    def _move(self, index):
        cooks = index == 0
        eats = index == 2
        self.done += cooks
        return float(cooks), eats or self.done == 10, self.done == 10, True

    def observe(self):
        return f"Steps {self.done}"

    def rules(self):
        return "Cook."

    def statements(self):
        return []


@pytest.mark.parametrize("density", ["sparse", "dense", "balanced"])
def test_a_lost_game_is_worth_less_than_a_won_one(density):
    """Here a win pays 1, and a loss after nine of ten milestones pays at most 0.9. In meow-tea-taro
    a win pays 1 and such a loss pays 9."""
    totals = {}
    for end in ("cook", "eat", "wait"):
        env = Dinner(max_actions=10)
        env.start(("dinner",), [0])
        episode = Episode(env, Config(think=False, max_turns=10, actions_per_turn=1))
        episode.open(env.observe())
        outcomes = [episode.step(f"<answer>{name}</answer>") for name in ["cook"] * 9 + [end]]
        assert outcomes[-1].status == ("success" if end == "cook" else "failure")
        rewards = [outcome.record.env_reward for outcome in outcomes]
        shaped = shape_rewards(rewards, end == "cook", density, max_reward=env.max_reward)
        totals[end] = sum(shaped)
    assert totals["cook"] == pytest.approx(1)
    assert totals["eat"] == totals["wait"] == pytest.approx(0.0 if density == "sparse" else 0.9)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "config").glob("**/*.py")), ids=lambda path: path.stem
)
def test_every_recipe_of_groups_has_groups(path):
    config = load_config([str(path)])[0]
    assert config.group_size >= 2 or not re.search("grpo|rloo|baseline", config.estimator)


@pytest.mark.parametrize("name", ["quest_ppo", "household_ppo"])
def test_a_demonstration_holds_every_turn(name, chat):
    config = load_config([config_file(name)], kind=SftConfig)[0]
    config = replace(config, max_context_tokens=16384, sft_actions=1)
    limits = dict(observation=config.observation, max_actions=config.actions_per_traj)
    for index in range(3):
        demo = demonstration(config, chat, index)
        env = make_env(config.env, **limits)
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
    rloo = dict(estimator="rloo", format_penalty=-0.25, batch_size=8, filter_keep=1)
    config = small_config(max_context_tokens=limit, **rloo)
    starts = [((4, group), member) for group in range(2) for member in range(4)]
    engine = make_engine(config, trained_model, chat)
    played = rollout.collect(engine, chat, config, starts, **OPTIONS)
    assert ("out_of_tokens" in {trajectory.status for trajectory in played}) == (limit == 300)
    learner = SimpleNamespace(config=config, device=torch.device("cpu"), ref=None, critic=None)
    lengths = [trajectory.num_response_tokens for trajectory in played]
    advantages = build_experience(learner, played).advantages.split(lengths)
    for i, (trajectory, found) in enumerate(zip(played, advantages, strict=True)):
        group = played[i // 4 * 4 : i // 4 * 4 + 4]
        others = [member.score for member in group if member is not trajectory]
        expected = trajectory.score - sum(others) / 3
        assert len(found) >= 1
        assert found.tolist() == pytest.approx([expected] * len(found))
