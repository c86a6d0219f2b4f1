"""Tests of studies/reproduce.py and the modules that it uses."""

from configurator import Config, UserError

import json
import re
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import support.run
import train
from envs import make_env
from studies import plots, reproduce, runs, tables
from studies.experiments import Curve, Experiment, curve, settings_of, sft_command, train_command
from support.run_folder import save_config
from support.seed_groups import without_seed
from support.statistics import difference_interval, rate_interval, wilson_interval
from tools import sft

ROOT = Path(reproduce.__file__).resolve().parent.parent
# Wins (1) and losses (0) of the reference players, and of the policy before and after RL, in four
# games.
SUCCESSES = {
    "random, closed loop": [1, 1, 0, 0],
    "greedy, closed loop": [1, 1, 0, 0],
    "optimal, closed loop": [1, 1, 0, 0],
    "optimal, 1 a turn": [1, 1, 0, 1],
    "start": [1, 0, 0, 0],
    "after RL": [1, 1, 1, 0],
}
COSTS = {"demonstrations": 0, "rollouts": 256}
FLAT = [0.5, None]  # values of a metric in two iterations; None: not measured


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Make a folder with config/ and studies/, and go there. In studies/, each of three studies has
    an empty folder rows/. Returns: the path of studies/."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").symlink_to(ROOT / "config")
    for study in ("papers", "credit", "collapse"):
        (tmp_path / "studies" / study / "rows").mkdir(parents=True)
    return tmp_path / "studies"


def curve_of(name, label):
    return reproduce.EXPERIMENTS[name].curves[label]


def write_row(results, name, trained, seed=0, successes=SUCCESSES, **changes):
    settings = asdict(train_command(trained, "tiny", seed).config())
    row = {
        "command": "python train.py config/models/tiny.py",
        "git_commit": "0123456789",
        "machine": "here",
        "iterations": 2,
        "cpu_s_per_iteration": 1.5,
        "curve": {"2": 0.75},
        "settings": settings,
        "base": runs.base_of(["config/models/tiny.py"]),
        "series": dict.fromkeys(runs.SERIES, FLAT),
        "first_warning": None,
        "costs": COSTS,
        "successes": {settings["env"]: successes},
    }
    path = results / "papers/rows" / f"{name}_s{seed}.json"
    path.write_text(json.dumps(row | changes))


def launch_with(monkeypatch, run):
    monkeypatch.setattr(runs, "subprocess", SimpleNamespace(run=run))


def refuse_to_launch(monkeypatch):
    launch_with(monkeypatch, lambda *_, **__: pytest.fail("was run"))


def record_launches(monkeypatch, exit_code=0):
    """Make each launch add its command to a list, but run nothing. Returns: the list."""
    launched = []

    def record(words, **_):
        launched.append(words[1:])
        return SimpleNamespace(returncode=exit_code)

    launch_with(monkeypatch, record)
    return launched


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


# ---------- the experiments


def experiments_at(scale):
    found = []
    for name in reproduce.EXPERIMENTS:
        with suppress(UserError):
            reproduce.choose_scale([name], scale)
            found.append(name)
    return found


@pytest.mark.parametrize("scale", reproduce.SCALES)
def test_every_experiment_is_a_valid_run(scale):
    folders = {}
    for name in experiments_at(scale):
        for label in reproduce.EXPERIMENTS[name].curves:
            trained = curve_of(name, label)
            config = settings_of(trained, scale, 1)
            check_start(config, sft_command(trained, scale, 1), scale)
            for stage in re.split(r" \+ | @\d+ > ", config.env):
                make_env(stage)
            for env in re.split(r" \+ ", config.eval_env or "bandit"):
                make_env(env)
            assert label.startswith(Path(config.env.split(":")[0]).stem)
            out_dir = train_command(trained, scale, 1).out_dir
            folders.setdefault(config, set()).add(str(out_dir))
    names = [name for found in folders.values() for name in found]
    assert all(len(f"--out_dir={name}") < 200 for name in names)
    # equal settings have one folder, and different settings have different folders
    assert len(names) == len(folders)
    assert len(set(names)) == len(folders)


@pytest.mark.parametrize("name", reproduce.EXPERIMENTS)
def test_curves_of_an_experiment_are_different_runs(name):
    """`curve` drops overrides that equal a default. So two curves that differ only in such an
    override would be the same run. No experiment may have two such curves."""
    curves = reproduce.EXPERIMENTS[name].curves
    scale = reproduce.choose_scale([name], "")
    assert len({settings_of(trained, scale, 0) for trained in curves.values()}) == len(curves)


def check_start(config, sft_stage, scale):
    assert config.seed == 1
    if sft_stage:
        assert config.model == f"{sft_stage.out_dir}/model"
        assert sft_stage.config().sft_steps > 0
    else:
        assert config.model == ("tiny" if scale == "tiny" else Config.model)


def test_an_sft_stage_is_shared_and_has_a_folder_of_its_own():
    sparse = curve_of("density", "quest PPO sparse")
    dense = curve_of("density", "quest PPO dense")
    stage = sft_command(sparse, "tiny", 3)
    assert stage == sft_command(dense, "tiny", 3)
    assert stage != sft_command(dense, "tiny", 4)
    assert stage.script == ("-m", "tools.sft")
    assert str(stage).startswith("python -m tools.sft config/quest_ppo.py ")
    assert not any("density" in word for word in stage.arguments)
    commands = (train_command(sparse, "tiny", 3), train_command(dense, "tiny", 3), stage)
    assert len({command.out_dir for command in commands}) == 3


def test_the_last_override_wins_and_defaults_are_left_out():
    stage = curve("quest_ppo", sft_steps=5, seed=0, max_turns=3)
    assert stage.overrides == {"sft_steps": 5, "max_turns": 3}
    assert curve("bandit_ppo", sft=stage, max_turns=4).combined() == Curve(
        ("quest_ppo", "bandit_ppo"), {"sft_steps": 5, "max_turns": 4}
    )


# ---------- tables and points


def test_environments_that_are_scored_stand_apart():
    one = {"random, closed loop": [0, 0], "start": [1, 0], "after RL": [1, 1]}
    other = dict.fromkeys(one, [0, 0])
    rows = [{"successes": {"bandit": one, "bandit:pair=jobs": other}}]
    found = tables.wins_by_env(rows)
    assert list(found) == ["bandit", "bandit:pair=jobs"]
    for env, expected in rows[0]["successes"].items():
        assert {name: wins.tolist() for name, wins in found[env].items()} == {
            name: [wins] for name, wins in expected.items()
        }
    assert tables.wins_of_run(rows)["start"].tolist() == [[1, 0]]
    points = tables.series(rows[0] | {"curve": {"2": 0.75}, "series": {}})
    assert points == {"eval_success": {0: 0.5, 2: 0.75}}
    assert list(tables.names_of_envs("jobs", rows)) == ["jobs", "jobs on bandit:pair=jobs"]


def test_tables_replace_what_is_between_their_marks():
    page = "a\n<!-- table: one -->\nold\n<!-- end of table -->\nb\n"
    with pytest.raises(UserError, match="must hold <!-- table: two -->"):
        tables.fill(page, {"two": "new"})
    page += "<!-- table: two --><!-- end of table -->\nc\n"
    filled = tables.fill(page, {"one": "new", "two": "| x |"})
    assert filled == (
        "a\n<!-- table: one -->\nnew\n<!-- end of table -->\nb\n"
        "<!-- table: two -->\n| x |\n<!-- end of table -->\nc\n"
    )
    assert tables.fill(filled, {"one": "new", "two": "| x |"}) == filled


def test_table_by_hand(results):
    trained = curve("frozenlake_ppo")
    second = SUCCESSES | {"after RL": [1] * 4}
    write_row(results, "lake", trained, 0)
    write_row(
        results,
        "lake",
        trained,
        2,
        git_commit=None,
        successes=second,
        cpu_s_per_iteration=2.5,
        first_warning=[2, "low"],
    )
    curves = {"frozenlake_ppo": trained, "frozenlake_grpo": curve("frozenlake_grpo")}
    found = runs.rows_of(curves, "tiny")
    head, _, first, *rest = tables.table(found, "About the picture.").splitlines()
    row = dict(zip(cells(head), cells(first), strict=True))
    assert row["curve"] == "frozenlake_ppo" and row["seeds"] == "0, 2" and row["n"] == "8"
    # After RL, seed 0 wins 3 of 4 games, and seed 2 wins all 4. Before RL, both seeds have the same
    # model, which wins 1 of 4 games.
    low, high = wilson_interval(1, 4)
    assert row["start"] == f"25.0 [{100 * low:.1f}, {100 * high:.1f}]"
    ends = np.array([SUCCESSES["after RL"], second["after RL"]])
    starts = np.array([SUCCESSES["start"], second["start"]])
    low, high = rate_interval(ends)
    seeds = "(75.0, 100.0)"
    assert row["after RL"] == f"87.5 [{100 * low:.1f}, {100 * high:.1f}] {seeds}"
    low, high = difference_interval(ends, starts)
    seeds = "(50.0, 75.0)"
    assert row["RL - start"] == f"62.5 [{100 * low:.1f}, {100 * high:.1f}] {seeds}"
    assert row["RL - greedy"].startswith("37.5 [")
    assert row["RL - optimal, 1 a turn"].startswith("12.5 [")
    assert row["first warning"] == "-, 2"
    assert row["CPU-s/iteration"] == "2.00"
    assert row["commit"] == "0123456, None"
    headings = "| curve | random, closed loop | greedy, closed loop | optimal, closed loop |"
    assert f"{headings} optimal, 1 a turn |" in rest
    assert any(line.startswith("| frozenlake_ppo | 50.0 [15.0, 85.0] |") for line in rest)
    assert any(line == "Not run yet: frozenlake_grpo." for line in rest)
    assert "About the picture." in rest


def test_costs_are_shown_where_there_are_demonstrations():
    paid = {"costs": {"demonstrations": 128, "rollouts": 5120}}
    again = {"costs": {"demonstrations": 128, "rollouts": 5121}}
    free = {"costs": {"demonstrations": 0, "rollouts": 6400}}
    assert tables.cost_lines({"0 % SFT": [free]}) == []
    assert tables.cost_lines({"0 % SFT": [free], "20 % SFT": [paid, again]}) == [
        "",
        "| mean costs of | demonstrations | rollouts |",
        "|---|---|---|",
        "| 0 % SFT | 0 | 6,400 |",
        "| 20 % SFT | 128 | 5,120 |",  # 5,120.5 rounded to even
    ]


def test_points_of_two_seeds(results, monkeypatch):
    trained = curve_of("fig6", "bandit GRPO StarPO")
    changes = {"curve": {"2": 1.0}, "series": {"reward": [1.0, 2.0]}, "first_warning": [2, "low"]}
    write_row(results, "bandit", trained, 0)
    write_row(results, "bandit", trained, 1, **changes)
    drawn = []
    monkeypatch.setattr(plots, "plot", lambda path, *_: drawn.append(path.name))
    reproduce.show("fig6", "tiny")
    lines = (results / "papers/fig6.csv").read_text().splitlines()
    assert lines[0] == "curve,seed,iteration,metric,value"
    # After the heading, seed 0 has two lines for evaluations, and one line for each metric in
    # SERIES. Seed 1 has two lines for evaluations, and two lines for the reward.
    assert len(lines) == 1 + (2 + len(runs.SERIES)) + (2 + 2)
    assert {
        "bandit GRPO StarPO,0,0,eval_success,0.25",
        "bandit GRPO StarPO,1,2,eval_success,1.0",
        "bandit GRPO StarPO,0,1,entropy,0.5",
        "bandit GRPO StarPO,1,2,reward,2.0",
    } <= set(lines)
    assert drawn == ["fig6.png"]


# ---------- runs


def test_the_first_warning_is_that_of_the_shortest_history(monkeypatch):
    def new_warnings(steps):
        fell = min(step["reward"] for step in steps) < 0
        return [f"reward fell {len(steps)}"] if fell else []

    monkeypatch.setattr(runs, "new_warnings", new_warnings)
    steps = [{"step": 7 + i, "reward": reward} for i, reward in enumerate((1.0, 0.5, -1.0, 2.0))]
    assert runs.first_warning(steps) == [9, "reward fell 3"]
    assert runs.first_warning(steps[:2]) is None


@pytest.mark.parametrize("study", dict(reproduce.STUDIES))
def test_every_row_belongs_to_an_experiment_of_its_study(study, results):
    wanted = set()
    for name, experiment in reproduce.EXPERIMENTS.items():
        if reproduce.STUDY_OF[name] == study:
            scale = reproduce.choose_scale([name], "")
            for trained in experiment.curves.values():
                wanted.add(without_seed(settings_of(trained, scale, 0)))
    folder = ROOT / "studies" / study / "rows"
    (results / "other").mkdir()
    (results / "other/rows").symlink_to(folder)
    rows = runs.finished_rows()
    strangers = [
        row["command"] for config, row in rows.items() if without_seed(config) not in wanted
    ]
    assert strangers == []
    assert len(rows) == len(list(folder.glob("*.json")))


def test_rows_of_imitation_are_not_read(results):
    folder = results / "imitation/rows"
    folder.mkdir(parents=True)
    (folder / "frozenlake-PPO_s0.json").write_text('{"wins": [1, 0]}')
    assert runs.finished_rows() == {}


def test_a_finished_row_is_not_run_again(results, monkeypatch, capsys):
    refuse_to_launch(monkeypatch)
    trained = curve("bandit_ppo")
    old = asdict(replace(settings_of(trained, "tiny", 0), out_dir="out/elsewhere/bandit"))
    del old["think_reward"], old["mask_observations"]
    write_row(results, "bandit", trained, 0, settings=old)
    write_row(results, "bandit", trained, 1)
    monkeypatch.setattr(plots, "plot", lambda *_: None)
    reproduce.main(["fig9", "--only=bandit PPO StarPO-S", "--seeds=0,1"])
    assert "2 runs, 2 of them finished" in capsys.readouterr().out
    assert "| bandit PPO StarPO-S | 0, 1 | 8 |" in (results / "papers/fig9.md").read_text()


def test_a_finished_row_is_run_again_on_demand(results, monkeypatch):
    write_row(results, "bandit", curve("bandit_ppo"), 0)
    launched = []
    monkeypatch.setattr(reproduce, "run_all", lambda jobs, workers: launched.extend(jobs) or [])
    monkeypatch.setattr(plots, "plot", lambda *_: None)
    words = ["fig9", "--only=bandit PPO StarPO-S", "--seeds=0"]
    reproduce.main(words)
    assert launched == []
    reproduce.main([*words, "--again=True"])
    assert [job.seed for job in launched] == [0]


def test_rows_of_other_settings_or_weights_do_not_count(results):
    bandit, sokoban = curve("bandit_ppo"), curve("sokoban_ppo")
    write_row(results, "bandit", bandit, settings={"seed": 0, "chess": 1, "env": "bandit"})
    write_row(results, "sokoban", sokoban, base="0" * 12)
    assert runs.finished_rows() == {}
    write_row(results, "sokoban", sokoban)
    assert len(runs.finished_rows()) == 1


def test_a_folder_of_another_base_or_other_settings_makes_no_row(results, monkeypatch):
    launched = record_launches(monkeypatch)
    trained = curve("bandit_ppo")
    command = train_command(trained, "tiny", 0)
    out_dir = command.out_dir
    assert runs.launch(command) == ""
    save_config(replace(command.config(), num_iterations=199), {}, out_dir)
    expected = f"{out_dir} holds a run with other settings; remove it"
    assert runs.run(trained, "tiny", 0, "papers") == expected
    monkeypatch.setattr(runs, "base_of", lambda _: "another")
    expected = f"{out_dir} may have started from other weights than those in base/; remove it"
    assert runs.run(trained, "tiny", 0, "papers") == expected
    assert len(launched) == 2 and not list(results.glob("*/rows/*"))


def test_no_run_starts_from_a_refused_sft_stage(results, monkeypatch):
    launched = record_launches(monkeypatch)
    monkeypatch.setattr(reproduce, "show", lambda name, *_: name)
    folder = sft_command(curve_of("split", "quest PPO 40% SFT"), "tiny", 0).out_dir
    folder.mkdir(parents=True)
    Path(f"{folder}.base").write_text("another")
    message = "may have started from other weights than those in base/; remove it"
    with pytest.raises(ValueError, match=message):
        reproduce.main(["split", "--only=40% SFT", "--seeds=0"])
    assert not launched


def test_what_experiments_share_is_run_once(results, monkeypatch):
    launched = record_launches(monkeypatch, exit_code=2)
    monkeypatch.setattr(reproduce, "show", lambda name, *_: name)
    write_row(results, "sokoban", curve_of("fig9", "sokoban PPO StarPO-S"))
    message = "sokoban_ppo-starpo_vanilla-tiny_s0: failed with exit code 2, see out/runs/s"
    with pytest.raises(ValueError, match=message):
        reproduce.main(["fig5", "fig6", "fig9", "--only=sokoban PPO", "--seeds=0", "--jobs=1"])
    expected = train_command(curve("sokoban_ppo", "starpo_vanilla"), "tiny", 0)
    assert launched == [[*expected.script, *expected.arguments]]
    assert not list(results.glob("*/rows/*vanilla*"))  # a failed run leaves no row


# ---------- commands and estimates


def test_dry_run(results, capsys, monkeypatch):
    refuse_to_launch(monkeypatch)
    starpo = curve_of("fig5", "frozenlake PPO StarPO")
    write_row(results, "starpo", starpo, 1, cpu_s_per_iteration=36.0)
    reproduce.main(["fig5", "fig6", "--only=PPO StarPO", "--seeds=0,1", "--dry_run=True"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "6 runs, 1 of them finished" and len(lines) == 5 + 1
    bandit, lake = lines[:2]
    # 200 iterations, each with a rollout of 0.4 s and four optimizer steps of 0.3 s each
    configs = "config/bandit_ppo.py config/methods/starpo_vanilla.py config/models/tiny.py"
    assert bandit.startswith(f"python train.py {configs}") and bandit.endswith("# 0.09 h")
    # 200 iterations of 36 s, the time in the row of seed 1
    out_dir = "out/runs/frozenlake_ppo-starpo_vanilla-tiny_s0"
    assert lake.endswith(f"--seed=0 --out_dir={out_dir}  # 2.00 h")
    assert lines[2].count("config/sokoban_ppo.py") and lines[2].count("--seed=0")
    assert lines[-1].startswith("about ") and "evaluations and SFT come on top" in lines[-1]


def test_dry_run_at_full_scale(results, capsys, monkeypatch):
    refuse_to_launch(monkeypatch)
    only = "--only=sokoban PPO keep"
    reproduce.main(["fig7", only, "--seeds=0", "--dry_run=True", "--scale=full"])
    quarter, *_, every, total = capsys.readouterr().out.splitlines()[1:]
    assert "tiny" not in quarter and quarter.endswith("# 1.33 h")  # 200 times the paper's 24 s
    assert every.endswith("# 3.78 h") and "on one GPU" in total  # 200 * 68 s


def test_hours_of_a_run_after_sft_are_those_of_its_other_seeds(results, capsys):
    """Seed 0 has no row, so its hours are estimated from the row of seed 1. The run of each seed
    starts from the SFT model of the same seed. So the two runs differ in the setting `model`, a
    path that names the seed. The estimate must ignore this difference."""
    write_row(
        results, "split", curve_of("split", "quest PPO 40% SFT"), 1, cpu_s_per_iteration=120.0
    )
    reproduce.main(["split", "--only=40%", "--seeds=0", "--dry_run=True"])
    _, stage, rest, total = capsys.readouterr().out.splitlines()
    assert stage.startswith("python -m tools.sft config/quest_ppo.py ")
    assert stage.endswith("# SFT stage of runs below")
    assert "and SFT come on top" in total
    assert rest.endswith("# 2.00 h")  # 60 iterations of 120 s


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "give names among fig5, .*; got nothing"),
        (["fig5", "chess"], "give names among fig5, .*; got fig5 chess"),
        (["fig9", "--only=chess"], "--only=chess matches none of bandit PPO StarPO,"),
        (
            ["fig9", "--seed=3"],
            "the settings of the runs are fixed here; the options are --scale, --seeds",
        ),
        (
            ["fig5", "--scale=huge"],
            "scale must be one of tiny, smollm2, smollm2_gpu, full, got 'huge'",
        ),
        (
            ["fig5", "credit", "--scale=full"],
            "credit runs at scale tiny, got scale full",
        ),
        (["credit", "echo_trap"], "echo_trap runs at scale smollm2 or smollm2_gpu, got scale tiny"),
        (["fig5", "--scale=smollm2"], "fig5 runs at scale tiny or full, got scale smollm2"),
        (
            ["fig5", "--seeds=0,x"],
            "seeds must be different integers of 0 or more, such as 0,1,2, got '0,x'",
        ),
        (["fig5", "--seeds=1,1"], "seeds must be different integers"),
    ],
)
def test_messages(argv, message, results):
    with pytest.raises(ValueError, match=message):
        reproduce.main(argv)


# ---------- real runs

SMALL = {
    "env": "bandit",
    "num_groups": 4,
    "group_size": 2,
    "batch_size": 2,
    "eval_size": 2,
    "max_response_tokens": 8,
}
ENV_SETTINGS = ("env", "max_turns", "actions_per_traj", "max_context_tokens", "sft_clean")


def shortened(trained):
    if trained.sft:
        stage = Curve(trained.sft.files, SMALL | small(trained.sft.overrides))
        return Curve((), small(trained.overrides) | {"num_iterations": 2}, stage)
    files = tuple(name for name in trained.files if not name.endswith("_transfer"))
    return Curve(files, SMALL | small(trained.overrides) | {"num_iterations": 2})


def small(overrides):
    kept = {key: value for key, value in overrides.items() if key not in ENV_SETTINGS}
    for key, value in kept.items():
        if key == "sft_steps":
            kept[key] = 1
        elif value == 128:  # the curve N=1 of table2 has num_groups=128 and batch_size=128
            kept[key] = 4
    return kept


@pytest.mark.slow
def test_two_iterations_of_one_entry_per_experiment(results, monkeypatch):
    def run_here(words, **_):
        if words[1] == "train.py":
            train.main(words[2:])
        else:
            assert words[1:3] == ["-m", "tools.sft"]
            sft.main(words[3:])
        return SimpleNamespace(returncode=0)

    launch_with(monkeypatch, run_here)
    # reproduce.py starts the runs in threads of a pool. `Interruption` sets signal handlers, and
    # Python allows this only in the main thread. So the test replaces `Interruption` with `nobody`,
    # which never requests a stop.
    nobody = nullcontext(SimpleNamespace(requested=lambda: False))
    monkeypatch.setattr(support.run, "Interruption", lambda _: nobody)
    experiments = {}
    for name in experiments_at("tiny"):
        experiment = reproduce.EXPERIMENTS[name]
        label, trained = list(experiment.curves.items())[-1]
        curves = {label: shortened(trained)}
        experiments[name] = Experiment(
            experiment.title, experiment.metrics, curves, files=experiment.files
        )
    monkeypatch.setattr(reproduce, "EXPERIMENTS", experiments)
    monkeypatch.setattr(plots, "plot", lambda *_: None)
    reproduce.main([*experiments, "--seeds=0", "--jobs=1"])
    rows = runs.finished_rows()
    assert len(rows) == len(list(results.glob("*/rows/*")))
    for config, row in rows.items():
        assert row["iterations"] == 2 and "2" in row["curve"], config
        assert all(len(row["series"][key]) == 2 for key in runs.SERIES)
        demonstrations = 8 if "/sft-" in config.model else 0
        assert row["costs"]["demonstrations"] == demonstrations
        assert row["costs"]["rollouts"] == 2 * config.num_groups * config.group_size
    for name, experiment in experiments.items():
        study = reproduce.STUDY_OF[name]
        for label, trained in experiment.curves.items():
            out_dir = train_command(trained, "tiny", 0).out_dir
            assert (results / study / f"rows/{out_dir.name}.json").is_file()
            file = f"{study}/{experiment.files or name}"
            assert f"| {label} " in (results / f"{file}.md").read_text()
            assert f"{label},0,1,reward," in (results / f"{file}.csv").read_text()


def test_what_a_run_writes_does_not_identify_it(results):
    """Rows of old runs can hold the former setting `num_samples`. This setting changed only what
    a run recorded. So `finished_rows` ignores this setting."""
    trained = curve("frozenlake_ppo")
    write_row(results, "lake", trained, 0)
    (path,) = results.glob("*/rows/*")
    row = json.loads(path.read_text())
    row["settings"]["num_samples"] = 3
    path.write_text(json.dumps(row))
    assert settings_of(trained, "tiny", 0) in runs.finished_rows()
    row["settings"]["seed"] = 5
    path.write_text(json.dumps(row))
    assert settings_of(trained, "tiny", 0) not in runs.finished_rows()
