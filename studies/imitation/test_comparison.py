"""Tests of studies/imitation/comparison.py. Most tests use fake training and fake games.

Run with:  python -m pytest -q studies/imitation/test_comparison.py
"""

import json

import pytest

from studies.experiments import Command, Curve
from studies.imitation import comparison

ROOT = comparison.__file__.rsplit("/", 3)[0]
STAGE = Curve(("frozenlake_ppo",), {"sft_steps": 8})
WORLD = comparison.World(
    "a lake",
    ("frozenlake_ppo",),
    {
        "SFT": comparison.imitation_of(STAGE),
        "PPO": comparison.Method(Curve(("frozenlake_ppo",), {})),
        "SFT, then PPO": comparison.Method(Curve((), {"learning_rate": 0.5}, sft=STAGE)),
    },
    headline="PPO",
)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Replace training and games by fakes. Return a list that records the calls of the fakes."""
    calls = []

    def launch(command: Command) -> str:
        calls.append(str(command).split(" --out_dir")[0].removeprefix("python "))
        folder = tmp_path / command.out_dir
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text('{"seed": 7}')
        if "sft" in command.script[-1]:
            (folder / "curve.jsonl").write_text('{"cpu_s": 1}\n{"cpu_s": 30.5}\n')
        else:
            (folder / "policy").mkdir(exist_ok=True)
            rows = '{"cpu_s": 2.0, "response_length": 10.0}\n' * 3
            (folder / "metrics.jsonl").write_text(rows)
        return ""

    def play_prompts(world, what):
        calls.append(what)
        if "player" in what:
            return dict.fromkeys(comparison.PLAYERS, [4, 4, 4, 4])
        return {what.removeprefix("--model="): [8, 8, 8, 8]}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison, "ROWS", tmp_path)
    monkeypatch.setattr(comparison, "WORLDS", {"lake": WORLD})
    monkeypatch.setattr(comparison, "launch", launch)
    monkeypatch.setattr(comparison, "play_prompts", play_prompts)
    monkeypatch.setattr(comparison, "play_crowd", lambda *_: [[0.5, 0.5, 0.5, 0.5]])
    monkeypatch.setattr(comparison, "base_of", lambda _: "abc")
    (tmp_path / "config").symlink_to(f"{ROOT}/config")
    return calls


def test_a_row_is_trained_and_played_once(lab):
    comparison.run_world("lake", [0], "")
    sft = "-m tools.sft config/frozenlake_ppo.py config/models/tiny.py --sft_steps=8 --seed=0"
    trained = [call for call in lab if not call.startswith("--")]
    assert trained[0] == sft
    assert trained[1] == "train.py config/frozenlake_ppo.py config/models/tiny.py --seed=0"
    # The row "SFT, then PPO" begins with the SFT command of the row "SFT". In a real run, tools.sft
    # then finds the last checkpoint of the row "SFT" and trains no further step.
    assert trained[2] == sft
    assert "--learning_rate=0.5" in trained[3] and "--model=out/runs/sft-" in trained[3]
    played = [call for call in lab if call.startswith("--")]
    assert played[:2] == ["--player=random,greedy,optimal", "--model=tiny"]
    assert [call.rsplit("/", 1)[1] for call in played[2:]] == ["model", "policy", "policy"]
    before = len(lab)
    comparison.run_world("lake", [0], "")
    assert len(lab) == before


def test_only_the_chosen_rows_run(lab):
    comparison.run_world("lake", [1], "then PPO")
    assert len(lab) == 3 and "--learning_rate=0.5" in lab[1]


def test_the_name_of_a_row_chooses_this_row_only(lab):
    """PPO runs, but "SFT, then PPO" does not run."""
    comparison.run_world("lake", [1], "PPO")
    assert (
        lab[0] == "train.py config/frozenlake_ppo.py config/models/tiny.py --seed=1"
        and len(lab) == 2
    )


def test_a_name_without_a_row_is_refused(lab):
    with pytest.raises(ValueError, match="--only=DPO matches none of the rows of lake: players; "):
        comparison.run_world("lake", [0], "DPO")
    comparison.run_world("lake", [0], "players")
    assert lab == ["--player=random,greedy,optimal"]


def test_a_new_game_is_imitated_and_then_reinforced(lab, monkeypatch):
    world = comparison.new_game("a word", "tools_fetch_grpo", sft={"sft_steps": 5})
    monkeypatch.setattr(comparison, "WORLDS", {"word": world})
    comparison.run_world("word", [2], "then GRPO")
    files = "config/tools_fetch_grpo.py config/models/tiny.py config/recipes/tiny_new_game.py"
    settings = "--sft_steps=5 --eval_every=5 --seed=2"
    assert lab[0] == f"-m tools.sft {files} {settings}"
    assert lab[1].startswith(f"train.py {files} --eval_every=5 --model=out/runs/sft-")
    assert comparison.game_words(world) == [*files.split(), "--eval_size=256"]


def test_players_of_a_world_without_a_grid(monkeypatch):
    played = {"random, closed loop": [1], "optimal, 1 a turn": [2], "optimal, closed loop": [3]}
    monkeypatch.setattr(comparison, "play_prompts", lambda *_: played)
    world = comparison.WORLDS["tools_fetch"]
    expected = {"random": [1], "reference player": [3]}
    assert comparison.wins_of_players(world) == expected


def test_costs_are_those_of_all_stages(lab):
    """SFT takes 30.5 CPU-s. RL has three iterations. An iteration takes 2 CPU-s and samples 10
    tokens in each of its 8 x 16 games."""
    row = comparison.run_method(WORLD, WORLD.methods["SFT, then PPO"], 0)
    assert row["costs"] == {"CPU-s": 36.5, "sampled tokens": 3 * 128 * 10}
    assert row["wins"] == [8, 8, 8, 8] and row["settings"] == {"seed": 7}


def test_a_failed_run_is_named(lab, monkeypatch):
    monkeypatch.setattr(comparison, "launch", lambda _: "run x: failed with exit code 3")
    with pytest.raises(ValueError, match="run x: failed with exit code 3"):
        comparison.run_world("lake", [0], "PPO")


def write(tmp_path, method, seed, wins, base="abc", **more):
    row = {"wins": wins, "samples": 16, "base": base, **more}
    comparison.row_path("lake", method, seed).write_text(json.dumps(row))


def test_the_page_pairs_rows_by_prompt(lab, tmp_path):
    """PPO wins 48 of 64 games with each seed. SFT wins 32 of 64 with seed 0, and 40 of 64 with
    seed 1."""
    for seed in (0, 1):
        costs = {"CPU-s": 100.0 + seed, "sampled tokens": 2000.0}
        write(tmp_path, "PPO", seed, [16, 8, 16, 8], costs=costs)
        write(tmp_path, "SFT", seed, [8, 0, 16, 8 + 8 * seed], costs={"CPU-s": 50.0, "t": 0.0})
    write(tmp_path, "players", 0, {"random": [4, 4, 4, 4]})
    write(tmp_path, comparison.BASE, 0, [8, 8, 8, 8])
    write(tmp_path, "SFT, then PPO", 0, [16, 16, 16, 16], base="other weights")
    lines = comparison.page(["lake"]).splitlines()
    rows = {line.split(" | ")[0][2:]: line for line in lines if line.startswith("| ")}
    assert set(rows) == {"row", "random", "base, before RL", "SFT", "PPO"}
    assert rows["PPO"].startswith("| PPO | 75.0 [")
    assert rows["PPO"].endswith(" | - | 100 | 2,000 |")
    assert "56.2 [" in rows["SFT"] and "(50.0, 62.5) | 18.8 [" in rows["SFT"]
    assert rows["SFT"].endswith("(25.0, 12.5) | 50 | - |")
    assert "| 25.0 [" in rows["random"] and "| 50.0 [" in rows["random"]
    assert rows["random"].endswith(" | - | - |")


def test_recorded_rows_are_printed_as_such(lab, tmp_path, capsys):
    comparison.main(["lake", "--show=True"])
    assert capsys.readouterr().out == "a lake: no rows are recorded yet\n"
    write(tmp_path, "PPO", 0, [16, 8, 16, 8])
    comparison.main(["lake", "--show=True"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "a lake: recorded earlier, 16 games a prompt (studies/imitation/table.md)"
    assert lines[-1].startswith("| PPO | 75.0 [") and not lab


def test_games_are_counted_by_prompt(monkeypatch, tmp_path):
    def run(words, **_):
        (path,) = [word[7:] for word in words if word.startswith("--json=")]
        successes = [1] * 16 + [0] * 15 + [1] + [0] * 16
        with open(path, "w") as file:
            json.dump({"tiny": {"successes": successes}}, file)

    monkeypatch.setattr(comparison, "ROWS", tmp_path)
    monkeypatch.setattr(comparison.subprocess, "run", run)
    assert comparison.play_prompts(WORLD, "--model=tiny") == {"tiny": [16, 1, 0]}


def test_names_of_worlds_are_checked():
    with pytest.raises(ValueError, match="give names among frozenlake, .*; got nothing"):
        comparison.main([])


def test_the_settings_of_a_comparison_are_fixed():
    message = "the settings of the runs are fixed here; the options are"
    with pytest.raises(ValueError, match=message):
        comparison.main(["frozenlake", "--learning_rate=1.0"])
