"""The example of docs/environments.md: gymnasium's checker takes the game, the page's command trains on its wrapper.

Run with:  python -m pytest -q tests/test_examples.py
"""

import json
import subprocess
import sys
from pathlib import Path

from gymnasium.utils.env_checker import check_env

from envs import make_env

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


def test_gymnasium_takes_the_game(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import guess

    check_env(guess.Number(50), skip_render_check=True)


def test_bisection_finds_every_number():
    env = make_env(f"{ROOT}/examples/guess.py:Guess,largest=50")
    for secret in range(1, 51):
        env.start(("guess", secret), [0])
        while not env.terminated:
            step = env.step(env.plan(1, 1)[0])
        assert step.info["success"] and step.reward == 1 and env.num_actions <= 6  # 2^6 > 50
    env.start(("guess", 7), [0])
    assert not env.step("seven").info["valid"] and env.num_actions == 0
    assert env.step("9").observation == "Your last guess: lower." and env.statements() == ["Between 1 and 8."]


def test_the_command_of_the_page_trains(tmp_path):
    line = next(line for line in PAGE.splitlines() if line.startswith("python train.py") and "out/guess" in line)
    words = [word for word in line.split()[1:] if not word.startswith("--out_dir")]
    words += ["--num_iterations=1", "--num_groups=2", "--group_size=2", "--batch_size=2", "--filter_keep=1.0"]
    done = subprocess.run([sys.executable, *words, "--eval_size=2", f"--out_dir={tmp_path}/out"], cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = map(json.loads, (tmp_path / "out/metrics.jsonl").read_text().splitlines())
    assert row["num_turns"] >= 1 and row["kept_trajectories"] == 4
