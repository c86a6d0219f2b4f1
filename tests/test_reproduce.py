"""Tests of reproduce.py: every experiment is a valid run, matched but for what it names; tables, points and pictures by
hand; finished, shared and failed runs; one short real run for every figure."""

from configurator import Config, load_config

import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import train
from envs import make_env
from eval import paired_bootstrap
from support import echo_trap
from support.run_folder import save_config
from tools import reproduce, sft

ROOT = Path(reproduce.__file__).parent
PLAYERS = ("random", "greedy", "optimal")
# four instances: the start solves the first, RL all but the last, the greedy player the first two
SUCCESSES = {f"{player}, closed loop": [1, 1, 0, 0] for player in PLAYERS} | {
    "optimal, 1 a turn": [1, 1, 0, 1]
}
SUCCESSES |= {"start": [1, 0, 0, 0], "after RL": [1, 1, 1, 0]}
COSTS = {"demonstrations": 0, "rollouts": 256}
FLAT = [0.5, None]  # a metric of two iterations, the second one skipped
EVERY = [(name, label) for name, (_, _, curves) in reproduce.FIGURES.items() for label in curves]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty docs/results, with the configs beside it; bootstrap intervals from few draws."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").symlink_to(ROOT / "config")
    monkeypatch.setattr(reproduce, "paired_bootstrap", partial(paired_bootstrap, draws=20))
    (tmp_path / "docs/results/runs").mkdir(parents=True)
    return tmp_path / "docs/results"


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_what_is_shown_is_made_from_the_rows(tmp_path, monkeypatch, capsys):
    """Table, points and README of this repository, from the rows in docs/results alone."""
    (tmp_path / "config").symlink_to(ROOT / "config")
    shutil.copytree(
        ROOT / "docs/results",
        tmp_path / "docs/results",
        ignore=shutil.ignore_patterns("*.md", "*.csv"),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "launch", None)  # nothing is run
    reproduce.main(["learning", "--draw=True"])
    for name in ("learning.md", "learning.csv"):
        assert (tmp_path / "docs/results" / name).read_bytes() == (
            ROOT / "docs/results" / name
        ).read_bytes()
    lines = (ROOT / "README.md").read_text().splitlines()
    assert all(
        line in lines for line in capsys.readouterr().out.splitlines() if line.startswith("| ")
    )


def test_environments_that_are_scored_stand_apart():
    one = {"random, closed loop": [0, 0], "start": [1, 0], "after RL": [1, 1]}
    rows = [{"successes": {"bandit": one, "bandit:pair=jobs": dict.fromkeys(one, [0, 0])}}]
    found = {
        env: {name: wins.tolist() for name, wins in inside.items()}
        for env, inside in reproduce.scored(rows)
    }
    assert found == {
        "bandit": {k: [v] for k, v in one.items()},
        "bandit:pair=jobs": {k: [[0, 0]] for k in one},
    }
    assert reproduce.series(rows[0] | {"curve": {"2": 0.75}, "series": {}})["eval_success"] == {
        0: 0.5,
        2: 0.75,
    }


def words_of(name, label):
    return reproduce.FIGURES[name][2][label]


def write_row(results, words, seed=0, successes=SUCCESSES, **changes):
    """A row as `run` writes it, of two iterations."""
    settings = asdict(load_config(reproduce.command(words, "tiny", seed)[1:])[0])
    row = {
        "command": "python train.py config/tiny.py",
        "git_commit": "0123456789",
        "machine": "here",
        "iterations": 2,
        "cpu_s_per_iteration": 1.5,
        "curve": {"2": 0.75},
        "settings": settings,
        "base": reproduce.base_of(["config/tiny.py"]),
        "series": dict.fromkeys(reproduce.SERIES, FLAT),
        "first_warning": None,
        "costs": COSTS,
        "successes": {settings["env"]: successes},
    }
    name = "-".join(words).replace("--", "")
    (results / "runs" / f"{name}_s{seed}.json").write_text(json.dumps(row | changes))


def launch_with(monkeypatch, run):
    monkeypatch.setattr(reproduce, "subprocess", SimpleNamespace(run=run))


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


# ---------- the experiments


@pytest.mark.parametrize("scale", reproduce.SCALES)
def test_every_experiment_is_a_valid_run(scale):
    names = {}
    for name, label in EVERY:
        config = reproduce.settings_of(words_of(name, label), scale, 1)
        first = reproduce.sft_command(words_of(name, label), scale, 1)
        start = (
            f"{reproduce.out_dir_of(first)}/model"
            if first
            else "base"
            if scale == "tiny"
            else Config.model
        )
        assert config.model == start and config.seed == 1
        assert (
            not first
            or config.sft_steps > 0
            and asdict(load_config(first[1:])[0])["sft_steps"] == config.sft_steps
        )
        for stage in re.split(r" \+ | @\d+ > ", f"{config.env} + {config.eval_env or config.env}"):
            make_env(stage)
        assert label.startswith(config.env.split(":")[0])
        names.setdefault(config, set()).add(reproduce.command(words_of(name, label), scale, 1)[-1])
    assert all(len(folder) < 200 for folders in names.values() for folder in folders)
    assert all(
        len(folders) == 1 for folders in names.values()
    )  # one run has one name in all figures
    assert len({folder for folders in names.values() for folder in folders}) == len(
        names
    )  # and a name one run


def differences(a, b, scale="tiny"):
    a, b = (asdict(reproduce.settings_of(words_of(*x), scale, 0)) for x in (a, b))
    return {key for key in a if a[key] != b[key]}


@pytest.mark.parametrize("scale", reproduce.SCALES)
@pytest.mark.parametrize("env", reproduce.ENVS)
def test_starpo_and_starpo_s_differ_in_three_settings(env, scale):
    for kind in ("PPO", "GRPO"):
        pair = [("fig9", f"{env} {kind} {name}") for name in ("StarPO", "StarPO-S")]
        assert differences(*pair, scale) == {"filter_keep", "clip_high", "kl_coef"}
        assert differences(("fig5", f"{env} {kind} StarPO"), pair[0], scale) == set()
    for name in ("StarPO", "StarPO-S"):
        assert differences(
            ("fig9", f"{env} PPO {name}"), ("fig9", f"{env} GRPO {name}"), scale
        ) == {"estimator"}


@pytest.mark.parametrize(
    "name, a, b, fields",
    [
        ("fig7", "keep 25%", "keep 100%", {"filter_keep"}),
        ("fig8", "StarPO-S", "with KL", {"kl_coef"}),
        ("fig8", "StarPO-S", "symmetric clip", {"clip_high"}),
        ("fig8", "StarPO-S", "no filter", {"filter_keep"}),
        ("fig10", "online-1", "online-5", {"num_epochs", "num_iterations", "eval_every"}),
        ("fig11", "StarPO-S", "StarPO-S + think_reward", {"think_reward"}),
        ("trap", "StarPO", "StarPO on all text", {"mask_observations"}),
        ("table2", "N=16", "N=2", {"num_groups", "group_size"}),
        ("table2", "N=16", "N=1", {"num_groups", "group_size", "filter_keep", "batch_size"}),
        ("table3", "k=2", "k=7", {"actions_per_turn", "actions_per_traj"}),
        ("table4", "think", "no-think", {"think"}),
        ("quest", "w2-o3-q4", "w4-o6-q8", {"env"}),
        ("turns", "6 turns", "16 turns", {"max_turns", "actions_per_traj"}),
        ("density", "sparse", "dense", {"reward_density"}),
        ("split", "80% SFT", "100% SFT", {"sft_demos", "num_iterations", "model"}),
    ],
)
def test_curves_differ_in_what_they_name(name, a, b, fields):
    start = "quest PPO" if name in ("quest", "turns", "density", "split") else "sokoban PPO"
    assert differences((name, f"{start} {a}"), (name, f"{start} {b}")) == fields


def test_estimators_and_rewards_differ_in_what_they_name():
    density, by_turn = ("density", "quest GRPO sparse"), ("density", "quest GRPO by turn sparse")
    assert differences(("density", "quest PPO sparse"), density) == {"estimator"}
    assert differences(density, by_turn) == {"turn_level"}
    assert differences(("density", "quest RLOO by turn sparse"), by_turn) == {"estimator"}
    assert differences(("ratio", "repair GRPO binary"), ("ratio", "repair GRPO ratio")) == {"env"}
    # the longest reply of a demonstration has 36 tokens of the tiny tokenizer, and Qwen thinks as well
    words = reproduce.FIGURES["ratio"][2]["repair GRPO ratio"]
    assert [reproduce.settings_of(words, s, 0).max_response_tokens for s in ("tiny", "full")] == [
        400,
        400,
    ]


@pytest.mark.parametrize("label", reproduce.FIGURES["split"][2])
def test_every_split_costs_the_budget(label):
    words = words_of("split", label)
    c = reproduce.settings_of(words, "tiny", 0)
    demonstrations = c.sft_demos if ">" in words else 0
    rollouts = c.num_iterations * c.num_groups * c.group_size
    assert c.num_groups * c.group_size == 64
    assert 10 * demonstrations + rollouts == pytest.approx(reproduce.BUDGET, rel=0.02)
    share = 10 * demonstrations / reproduce.BUDGET
    assert share == pytest.approx(float(label.split()[2].rstrip("%")) / 100, abs=0.02)


def test_an_sft_stage_is_shared_and_has_a_folder_of_its_own():
    sparse, dense = (words_of("density", f"quest PPO {density}") for density in ("sparse", "dense"))
    first = reproduce.sft_command(sparse, "tiny", 3)
    assert (
        first == reproduce.sft_command(dense, "tiny", 3) != reproduce.sft_command(dense, "tiny", 4)
    )
    assert first[0] == "sft.py" and not any("density" in word for word in first)
    folders = {reproduce.command(words, "tiny", 3)[-1] for words in (sparse, dense)} | {first[-1]}
    assert len(folders) == 3


def test_batches_of_table_2_are_constant_and_budgets_of_fig10_equal():
    for label, words in reproduce.FIGURES["table2"][2].items():
        c = reproduce.settings_of(words, "tiny", 0)
        kept = int(c.filter_keep * c.num_groups) * c.group_size
        assert c.num_groups * c.group_size == 128 and kept == c.batch_size, (
            label
        )  # one optimizer step an iteration
    for words in reproduce.FIGURES["fig10"][2].values():
        c = reproduce.settings_of(words, "tiny", 0)
        assert c.num_iterations * c.num_epochs == 200 and c.eval_every >= 1


# ---------- tables, points, pictures


def test_table_by_hand(results):
    words = words_of("learning", "frozenlake_ppo")
    write_row(results, words, 0)
    second = SUCCESSES | {"after RL": [1] * 4}
    write_row(
        results,
        words,
        2,
        git_commit=None,
        successes=second,
        cpu_s_per_iteration=2.5,
        first_warning=[2, "low"],
    )
    head, _, first, *rest = reproduce.show("learning", "tiny", [0, 1, 2]).splitlines()[2:]
    row = dict(zip(cells(head), cells(first), strict=True))
    assert row["curve"] == "frozenlake_ppo" and row["seeds"] == "0, 2" and row["n"] == "8"
    # of 8: RL solves 3 + 4; the start, one and the same for both seeds, 1 of 4; Wilson by eval.py's own test
    assert row["start"] == reproduce.percent(0.25, *reproduce.wilson_interval(1, 4))
    assert row["after RL"] == "87.5 [39.6, 98.7]"  # Wilson's formula with n = 4
    a, b = (np.array([SUCCESSES[key], second[key]]) for key in ("after RL", "start"))
    assert row["RL - start"] == reproduce.percent(*paired_bootstrap(a, b, draws=20))
    assert row["RL - start"].startswith("62.5 [")
    assert row["RL - greedy"].startswith("37.5 [") and row["RL - optimal, 1 a turn"].startswith(
        "12.5 ["
    )
    assert (row["first warning"], row["CPU-s/iteration"], row["commit"]) == (
        "-, 2",
        "2.00",
        "0123456, None",
    )
    assert any(
        line.startswith("- frozenlake_ppo: random, closed loop 50.0 [15.0, 85.0]; greedy")
        for line in rest
    )
    assert any(line.startswith("Not run yet: frozenlake_grpo, ") for line in rest)


def test_every_scored_environment_has_a_row():
    found = list(reproduce.scored([{"successes": {"lake": SUCCESSES, "room": SUCCESSES}}]))
    assert [env for env, _ in found] == ["lake", "room"]
    assert all({key: list(w[0]) for key, w in scores.items()} == SUCCESSES for _, scores in found)


def test_points_and_picture_of_two_seeds(results):
    words = words_of("fig6", "bandit GRPO StarPO")
    write_row(results, words, 0)
    write_row(
        results, words, 1, curve={"2": 1.0}, series={"reward": [1.0, 2.0]}, first_warning=[2, "low"]
    )
    reproduce.show("fig6", "tiny", [0, 1])
    lines = (results / "fig6.csv").read_text().splitlines()
    assert lines[0] == "curve,seed,iteration,metric,value"
    # seed 0: start, one evaluation, and the first of two iterations of each metric; seed 1: reward twice
    assert len(lines) == 1 + (2 + len(reproduce.SERIES)) + (2 + 2)
    assert {
        "bandit GRPO StarPO,0,0,eval_success,0.25",
        "bandit GRPO StarPO,1,2,eval_success,1.0",
        "bandit GRPO StarPO,0,1,entropy,0.5",
        "bandit GRPO StarPO,1,2,reward,2.0",
    } <= set(lines)
    assert (results / "fig6.png").read_bytes().startswith(b"\x89PNG")


class Canvas:
    """What `draw` asks of matplotlib's axes, written down."""

    def __init__(self):
        self.lines, self.bands = [], []

    def plot(self, x, y, *_, **__):
        self.lines.append((list(x), list(y)))
        return [SimpleNamespace(get_color=lambda: "red")]

    def fill_between(self, x, low, high, **_):
        self.bands.append((list(low), list(high)))


def test_a_curve_is_the_mean_of_its_seeds():
    rows = [
        {
            "settings": {"num_epochs": 5},
            "successes": {"lake": SUCCESSES},
            "curve": {"2": rate},
            "series": {"reward": reward},
            "first_warning": warning,
        }
        for rate, reward, warning in ((0.5, [1.0, None], [1, "low"]), (1.0, [3.0, 4.0], None))
    ]
    canvas = Canvas()
    reproduce.draw(canvas, "reward", "", rows)
    assert canvas.lines == [
        ([5, 10], [2.0, 4.0]),
        ([5], [2.0]),
    ]  # five epochs an iteration; the mark lies on the mean
    assert canvas.bands == [([1.0, 4.0], [3.0, 4.0])]  # smallest and largest seed
    canvas = Canvas()
    reproduce.draw(canvas, "eval_success", "", rows)
    assert canvas.lines[0] == ([0, 10], [0.25, 0.75])
    low, high = reproduce.wilson_interval(3, 4)  # of four prompts that both seeds play
    assert canvas.bands[0][0][1] == low and canvas.bands[0][1][1] == high


def test_the_first_warning_is_that_of_the_shortest_history(monkeypatch):
    def new_warnings(steps):
        fell = min(step["reward"] for step in steps) < 0
        return [f"reward fell {len(steps)}"] if fell else []

    monkeypatch.setattr(echo_trap, "new_warnings", new_warnings)
    steps = [{"step": 7 + i, "reward": reward} for i, reward in enumerate((1.0, 0.5, -1.0, 2.0))]
    assert reproduce.first_warning(steps) == [9, "reward fell 3"]
    assert reproduce.first_warning(steps[:2]) is None


# ---------- what is run


def test_rows_of_this_repository_are_found():
    """Rows from before a setting existed count as having its default."""
    rows = reproduce.finished_rows()
    for label in ("frozenlake_ppo", "frozenlake_grpo", "frozenlake_det_ppo", "bandit_ppo"):
        assert reproduce.settings_of(words_of("learning", label), "tiny", 0) in rows
    assert (
        reproduce.settings_of(words_of("fig9", "bandit PPO StarPO-S"), "tiny", 0) in rows
    )  # under another name
    assert reproduce.settings_of(words_of("fig5", "bandit PPO StarPO"), "tiny", 99) not in rows


def test_a_finished_row_is_not_run_again(results, monkeypatch, capsys):
    launch_with(monkeypatch, lambda *_, **__: pytest.fail("was run"))
    words = words_of("learning", "bandit_ppo")
    old = asdict(replace(reproduce.settings_of(words, "tiny", 0), out_dir="out/learning/bandit"))
    old = {
        key: value for key, value in old.items() if key not in ("think_reward", "mask_observations")
    }
    write_row(results, words, 0, settings=old)
    write_row(results, words, 1)
    reproduce.main(["learning", "--only=bandit", "--seeds=0,1"])
    assert "2 runs, 2 of them finished" in capsys.readouterr().out
    assert "| bandit_ppo | 0, 1 | 8 |" in (results / "learning.md").read_text()


def test_rows_of_other_settings_or_weights_do_not_count(results):
    write_row(results, ("bandit_ppo",), settings={"seed": 0, "chess": 1, "env": "bandit"})
    write_row(results, ("sokoban_ppo",), base="0" * 12)
    assert reproduce.finished_rows() == {}
    write_row(results, ("sokoban_ppo",))
    assert len(reproduce.finished_rows()) == 1


def test_a_folder_of_another_base_or_other_settings_makes_no_row(results, monkeypatch):
    words, launched = words_of("learning", "bandit_ppo"), []
    launch_with(
        monkeypatch,
        lambda arguments, **_: launched.append(arguments) or SimpleNamespace(returncode=0),
    )
    arguments = reproduce.command(words, "tiny", 0)
    config, out_dir = load_config(arguments[1:])[0], reproduce.out_dir_of(arguments)
    assert reproduce.launch(arguments) == ""
    save_config(replace(config, num_iterations=199), {}, out_dir)
    there, line = reproduce.run(words, "tiny", 0)  # finished with another number than asked for now
    assert not there and line == f"{out_dir} holds a run of other settings; remove it"
    monkeypatch.setattr(reproduce, "base_of", lambda _: "another")
    assert reproduce.run(words, "tiny", 0) == (
        False,
        f"{out_dir} is not known to have begun with the weights in base/; remove it",
    )
    assert len(launched) == 2 and not list((results / "runs").iterdir())


def test_no_run_starts_from_a_refused_sft_stage(results, monkeypatch):
    words, launched = words_of("split", "quest PPO 40% SFT"), []
    launch_with(
        monkeypatch,
        lambda arguments, **_: launched.append(arguments) or SimpleNamespace(returncode=0),
    )
    monkeypatch.setattr(reproduce, "show", lambda name, *_: name)
    folder = reproduce.out_dir_of(reproduce.sft_command(words, "tiny", 0))
    folder.mkdir(parents=True)
    Path(f"{folder}.base").write_text("another")
    with pytest.raises(
        ValueError, match="is not known to have begun with the weights in base/; remove it"
    ):
        reproduce.main(["split", "--only=40% SFT", "--seeds=0"])
    assert not launched


def test_what_figures_share_is_run_once(results, monkeypatch):
    commands = []

    def fail(arguments, **_):
        commands.append(arguments[1:])
        return SimpleNamespace(returncode=2)

    launch_with(monkeypatch, fail)
    monkeypatch.setattr(reproduce, "show", lambda name, *_: name)
    write_row(results, words_of("fig9", "sokoban PPO StarPO-S"))
    with pytest.raises(
        ValueError,
        match="sokoban_ppo-starpo_vanilla-tiny_s0: failed with exit code 2, see out/runs/s",
    ):
        reproduce.main(["fig5", "fig6", "fig9", "--only=sokoban PPO", "--seeds=0", "--jobs=1"])
    assert commands == [reproduce.command(("sokoban_ppo", "starpo_vanilla"), "tiny", 0)]
    assert not list((results / "runs").glob("*vanilla*"))  # a failed run leaves no row


def test_dry_run(results, capsys, monkeypatch):
    launch_with(monkeypatch, lambda *_, **__: pytest.fail("was run"))
    write_row(results, words_of("fig5", "frozenlake PPO StarPO"), 1, cpu_s_per_iteration=36.0)
    reproduce.main(["fig5", "fig6", "--only=PPO StarPO", "--seeds=0,1", "--dry_run=True"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "6 runs, 1 of them finished" and len(lines) == 5 + 1
    # 200 iterations: of 36 s in the other seed; of 0.4 + 4 * 0.3 s, as four optimizer steps follow a rollout
    assert lines[1].endswith(
        "--seed=0 --out_dir=out/runs/frozenlake_ppo-starpo_vanilla-tiny_s0  # 2.00 h"
    )
    assert lines[0].startswith(
        "python train.py config/bandit_ppo.py config/starpo_vanilla.py config/tiny.py"
    )
    assert lines[0].endswith("# 0.09 h")
    assert lines[-1].startswith("about ") and "evaluations and SFT come on top" in lines[-1]
    reproduce.main(
        ["fig7", "--only=sokoban PPO keep", "--seeds=0", "--dry_run=True", "--scale=full"]
    )
    quarter, *_, every, total = capsys.readouterr().out.splitlines()[1:]
    assert "tiny" not in quarter and quarter.endswith("# 1.33 h")  # 24 s, as the paper
    assert every.endswith("# 3.78 h") and "on one GPU" in total  # 68 s


def test_hours_of_a_run_after_sft_are_those_of_its_other_seeds(results, capsys):
    """Its model lies in a folder with the seed in the name."""
    words = words_of("split", "quest PPO 40% SFT")
    write_row(results, words, 1, cpu_s_per_iteration=120.0)
    reproduce.main(["split", "--only=40%", "--seeds=0", "--dry_run=True"])
    _, first, rest, total = capsys.readouterr().out.splitlines()
    assert first.endswith("# before those that start from it") and "and SFT come on top" in total
    assert rest.endswith("# 2.00 h")  # 60 iterations of 120 s


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "give names among learning, fig5, .*; got nothing"),
        (["fig5", "chess"], "give names among learning, .*; got fig5 chess"),
        (["learning", "--only=chess"], "--only=chess matches none of frozenlake_ppo"),
        (
            ["learning", "--seed=3"],
            "the settings of the runs are fixed here; the options are --scale, --seeds",
        ),
        (["fig5", "--scale=huge"], "scale must be one of tiny, full, got 'huge'"),
        (["fig5", "--seeds=0,x"], "seeds must be different integers, such as 0,1,2, got '0,x'"),
        (["fig5", "--seeds=1,1"], "seeds must be different integers"),
    ],
)
def test_messages(argv, message, results):
    with pytest.raises(ValueError, match=message):
        reproduce.main(argv)


# ---------- real runs

SMALL = reproduce.knobs(
    env="bandit",
    num_groups=4,
    group_size=2,
    batch_size=2,
    eval_size=2,
    max_response_tokens=8,
)


def test_two_iterations_of_one_entry_per_figure(results, monkeypatch):
    """The last curve of every figure through sft.py and train.py, in this process and on the bandit."""

    def train_here(arguments, **_):
        {"sft.py": sft, "train.py": train}[arguments[1]].main(arguments[2:])
        return SimpleNamespace(returncode=0)

    nobody = nullcontext(SimpleNamespace(requested=lambda: False))  # signals are for a main thread
    monkeypatch.setattr(train, "Interruption", lambda _: nobody)
    # names stay short
    short, large = (
        {},
        ("--env=", "--max_turns=", "--actions_per_traj=", "--max_context_tokens=", "--sft_clean="),
    )
    for name, (what, metrics, curves) in reproduce.FIGURES.items():
        label, words = list(curves.items())[-1]
        rest = [
            word.replace("128", "4") for word in words[1:] if not word.endswith("_transfer")
        ]  # N=1: four prompts
        rest = [
            re.sub(r"sft_steps=\d+", "sft_steps=1", word)
            for word in rest
            if not word.startswith(large)
        ]
        short[name] = what, metrics, {label: (words[0], *SMALL, *rest, "--num_iterations=2")}
    monkeypatch.setattr(reproduce, "FIGURES", short)
    launch_with(monkeypatch, train_here)
    monkeypatch.setattr(reproduce, "plot", lambda *_: None)
    reproduce.main([*short, "--seeds=0", "--jobs=1"])
    rows = reproduce.finished_rows()
    assert len(rows) == len(list((results / "runs").iterdir()))
    for config, row in rows.items():
        assert row["iterations"] == 2 and "2" in row["curve"], config
        assert all(len(row["series"][key]) == 2 for key in reproduce.SERIES)
        demonstrations, played = (
            8 * ("/sft-" in config.model),
            2 * config.num_groups * config.group_size,
        )
        assert (row["costs"]["demonstrations"], row["costs"]["rollouts"]) == (
            demonstrations,
            played,
        )
    for name, (_, _, curves) in short.items():
        assert all(f"| {label} " in (results / f"{name}.md").read_text() for label in curves)
        assert f"{next(iter(curves))},0,1,reward," in (results / f"{name}.csv").read_text()
