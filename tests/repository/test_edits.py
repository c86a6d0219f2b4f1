"""Check in a copy of the code that the edits shown in README, docs and examples/ work."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from runs import RUN, assert_same_checkpoint, newest_checkpoint, rows_of, untimed

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = (".git", ".venv", "out", "wandb", "__pycache__", ".*_cache", ".hypothesis")
TESTS = (
    "repository/test_style.py",
    "core/test_estimators.py",
    "core/test_starpo.py",
    "core/test_methods.py",
)


def replace_in(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path} must hold once: {old}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def code_in(page, start):
    text = (ROOT / page).read_text(encoding="utf-8")
    (code,) = re.findall(rf"^ *```\n( *{re.escape(start)}.*?)^ *```$", text, re.M | re.S)
    return code


def add_estimator_with_state(tree):
    patch = ROOT / "examples/running_mean.patch"
    subprocess.run(["git", "apply", str(patch)], cwd=tree, check=True)


def add_estimator(tree):
    branch = code_in("docs/methods.md", 'elif estimator == "maxrl":')
    last = '    else:\n        raise ValueError(f"no group baseline'
    replace_in(tree / "starpo.py", last, branch + last)
    names = 'GROUP_BASELINE_ESTIMATORS = ("grpo", '
    replace_in(tree / "configurator.py", names, f'{names}"maxrl", ')
    replace_in(
        tree / "tests/core/test_starpo.py",
        '        ("dr_grpo", [-2, 0, 2, -1, -1, 2]),\n',
        '        ("dr_grpo", [-2, 0, 2, -1, -1, 2]),\n'
        '        ("maxrl", [-1, 0, 1, -1, -1, 2]),  # means 2 and -1\n',
    )


def add_environment(tree):
    shutil.copy(tree / "examples/my_env.py", tree / "examples/gates.py")
    replace_in(tree / "examples/gates.py", "class Doors(Env)", "class Gates(Env)")


def add_overlay(tree):
    path = tree / "config/methods/my_rloo.py"
    shutil.copy(tree / "config/methods/rloo.py", path)
    replace_in(path, "config/methods/rloo.py", "config/methods/my_rloo.py")
    path.write_text(path.read_text() + "clip_high = 0.3\n")


def add_experiment(tree):
    code = code_in("studies/README.md", '"""Two learning rates')
    folder = tree / "studies/rates"
    folder.mkdir()
    (folder / "experiments.py").write_text(textwrap.dedent(code))
    importing, entry = code_in("studies/README.md", "from studies.rates").splitlines()
    following = "from studies.real_model.experiments import"
    replace_in(tree / "studies/reproduce.py", following, f"{importing.strip()}\n{following}")
    start = "STUDIES = {  # maps a folder in studies/ to its experiments\n"
    replace_in(tree / "studies/reproduce.py", start, f"{start}    {entry.strip()}\n")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edits") / "tree"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
    add_estimator_with_state(folder)
    add_estimator(folder)
    add_environment(folder)
    add_overlay(folder)
    add_experiment(folder)
    return folder


def in_tree(tree, *command):
    changes = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "PYTHONPATH": ""}
    done = subprocess.run(
        command,
        cwd=tree,
        env=os.environ | changes,
        text=True,
        timeout=600,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def test_the_edits_are_known_to_the_commands(tree):
    code = (
        "from configurator import load_config\n"
        "for name in ('maxrl', 'running_mean'):\n"
        "    files = ['config/frozenlake_grpo.py', 'config/methods/my_rloo.py']\n"
        "    config = load_config([*files, f'--estimator={name}'])[0]\n"
        "    print(config.estimator, config.clip_high)\n"
        "from envs import make_env\n"
        "print(make_env('examples/gates.py:Gates').reset(0))\n"
        "from studies.reproduce import EXPERIMENTS, STUDY_OF\n"
        "print(STUDY_OF['rates'], len(EXPERIMENTS['rates'].curves))\n"
    )
    lines = in_tree(tree, sys.executable, "-c", code).splitlines()
    assert lines == [
        "maxrl 0.3",
        "running_mean 0.3",
        "The prize is behind one of door 1 to 8.",
        "rates 2",
    ]


@pytest.mark.slow
def test_the_edits_pass_the_tests(tree):
    paths = [f"tests/{name}" for name in TESTS]
    options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not real_model")
    in_tree(tree, sys.executable, "-m", "pytest", *options, *paths)
    in_tree(tree, sys.executable, "-m", "pytest", "-q", "--doctest-modules", "train.py")
    if importlib.util.find_spec("ruff"):
        in_tree(tree, sys.executable, "-m", "ruff", "check", ".")
        in_tree(tree, sys.executable, "-m", "ruff", "format", "--check", ".")


@pytest.mark.slow
def test_the_state_of_an_estimator_survives_a_restart(tree, trained_folder, tmp_path):
    config = tmp_path / "config.py"
    changes = dict(
        model=str(trained_folder),
        estimator="running_mean",
        filter_keep=1.0,
        save_every=1,
        eval_every=0,
    )
    lines = [f"{key} = {value!r}\n" for key, value in (RUN | changes).items()]
    config.write_text("".join(lines))

    runs = []
    for name, num_iterations in (("whole", 3), ("parts", 2), ("parts", 3)):
        flags = (f"--out_dir={tmp_path / name}", f"--num_iterations={num_iterations}")
        runs.append((2, [str(config), *flags]))
    in_tree(tree, sys.executable, "tests/helpers/forks.py", json.dumps(runs))
    whole, parts = rows_of(tmp_path / "whole"), rows_of(tmp_path / "parts")
    assert len(whole) == 3 and untimed(whole)[-1] == untimed(parts)[-1]
    assert_same_checkpoint(tmp_path / "whole", tmp_path / "parts")
    # The baseline of the estimator running_mean is a running mean of scores. The filter keeps all
    # groups, so each iteration updates the baseline with the mean score of all trajectories. The
    # metric `in_group_reward_mean` is this mean score.
    baseline = whole[0]["in_group_reward_mean"]
    for row in whole:
        assert row["kept_trajectories"] == 16
        baseline = 0.9 * baseline + 0.1 * row["in_group_reward_mean"]
    state = json.loads((newest_checkpoint(tmp_path / "whole") / "state.json").read_text())
    assert state["estimator_state"] == {"baseline": pytest.approx(baseline, rel=1e-6)}
