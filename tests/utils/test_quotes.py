"""Tests that quoted paths may hold characters that separate environments, options or models."""

from configurator import UserError

import doctest
import json

import pytest
from shared_fixtures import small_config

import mixtures
from envs import make_env, split_options
from mixtures import env_specs, mixture_at, specs_that_run_programs
from rollout import Reply, Rollout, make_episode, play
from support.arguments import split_models
from utils import quotes

OWN = """
from envs import Env

class Doors(Env):
    actions = ("left", "right")
    repeats = True

    def __init__(self, *, count: int = 2, **common):
        super().__init__(**common)
        self.count = count

    def draw(self, rng):
        return ("doors", int(rng.integers(2)))

    def _start(self, instance):
        self.open = instance[1]

    def _move(self, index):
        return float(index == self.open), True, index == self.open, True

    def observe(self):
        return f"{self.count} doors."

    def rules(self):
        return "Choose a door."
"""
FOLDERS = ["my envs", "c++", "user@host", "2*2", "a > b", "o'neil", "a+b c@d,e"]


@pytest.mark.parametrize("module", [quotes, mixtures])
def test_doctests(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.fixture(params=FOLDERS)
def own(request, tmp_path):
    folder = tmp_path / request.param
    folder.mkdir()
    (folder / "my_env.py").write_text(OWN)
    return folder / "my_env.py"


def test_a_quoted_environment_is_played(own):
    mark = '"' if "'" in str(own) else "'"
    spec = f"{mark}{own}:Doors,count=5{mark}"
    assert make_env(spec).count == 5
    assert make_env(f"{mark}{own}{mark}:Doors,count=6").count == 6
    assert mixture_at(f"bandit + 3*{spec}") == {"bandit": 0.25, spec: 0.75}
    assert mixture_at(f"bandit @5 > {spec}", 5) == {spec: 1.0}
    assert specs_that_run_programs(f"bandit + {spec} @7 > bandit") == [spec]
    config = small_config(env=spec)
    rollout = Rollout(make_episode(config), (0,))
    rollout.reset("eval")
    trajectory = play(rollout, lambda _: Reply("<answer>left</answer>"))
    assert trajectory.turns[0].observation.endswith("5 doors.")
    assert trajectory.env == spec
    assert env_specs(trajectory.env) == (spec,)


def test_without_quotes_the_sign_is_named(own):
    text = f"{own}:Doors"
    signs = [sign for sign in " +*@>" if sign in text]
    if not signs:
        assert mixture_at(text) == {text: 1.0}
        return
    with pytest.raises(UserError) as error:
        mixture_at(text)
    assert f" has {signs[0]!r} in the path of a file, where it would separate" in str(error.value)
    assert str(error.value).endswith(f"put the environment in quotes, as in --env=\"'{text}'\"")


def test_an_option_may_hold_a_comma(tmp_path):
    path = tmp_path / "a, b.jsonl"
    rows = [{"name": f"mug {number}", "price": number} for number in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = make_env(f"own_data:file='{path}',task=fetch")
    assert len(env.index.documents) == 5
    assert mixture_at(f"bandit + own_data:file='{path}',task=fetch")
    with pytest.raises(UserError, match="unknown option ' b.jsonl' .*put a value with a comma in"):
        make_env(f"own_data:file={path},task=fetch")


@pytest.mark.parametrize(
    "text, options",
    [
        ("", {}),
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("a='x,y',b=\"'\"", {"a": "x,y", "b": "'"}),
        ("a=it's,b=it's", {"a": "it's", "b": "it's"}),
        ("settings=x=['a'];y=2,tries=3", {"settings": "x=['a'];y=2", "tries": "3"}),
        ("settings=\"x=['a','b'];y=2\"", {"settings": "x=['a','b'];y=2"}),
        ("a='", {"a": "'"}),
        ("a=''", {"a": ""}),
    ],
)
def test_options_by_hand(text, options):
    assert split_options(text) == options


def test_a_model_may_hold_a_comma(tmp_path):
    folder = tmp_path / "a,b"
    folder.mkdir()
    assert split_models(f"'{folder}',base") == [str(folder), "base"]
    assert split_models("base,HuggingFaceTB/SmolLM2-135M-Instruct") == [
        "base",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    ]
    with pytest.raises(UserError, match="has a comma, which separates models; put it in quotes"):
        split_models(str(folder))
