"""Compare RL with imitation and with scripted players, on the same games.

    python -m studies.imitation.comparison frozenlake  # all missing rows of this environment
    python -m studies.imitation.comparison frozenlake --only=PPO --seeds=0
    python -m studies.imitation.comparison frozenlake sokoban --draw=True  # no runs, only the page
    python -m studies.imitation.comparison frozenlake --show=True  # print the recorded rows

Every model and scripted player plays 16 games on each of 256 fixed prompts. A *row* is a JSON file
in studies/imitation/rows/. It holds the commit and the number of games won on each prompt. The row
of a training run also holds settings and costs. The script writes studies/imitation/table.md from
the rows. The script ignores a row if the weights in base/ have changed since the row was made. An
interrupted run continues when the command starts again.
"""

from configurator import UserError, load_config

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rollout import make_episode
from studies.experiments import (
    Command,
    Curve,
    config_path,
    curve,
    files_at,
    read_names,
    sft_command,
    train_command,
)
from studies.papers.experiments import QUEST_SFT, quest_sft
from studies.runs import base_of, describe_machine, launch
from support.statistics import difference_text, rate_text
from support.terminal import run_main
from tools.crowd import SHARES, play_crowd
from tools.plotting.tables import markdown
from utils.code_version import git_commit
from utils.files import read_json, read_rows, write_atomically
from worlds.grids import Grid

SAMPLES = 16  # games on each prompt
OPTIONS = {"seeds": "0,1,2", "only": "", "draw": False, "show": False}
FOLDER = Path("studies/imitation")
ROWS = FOLDER / "rows"
BASE = "base, before RL"
BEST = ("tiny_best",)  # config/recipes/tiny_best.py

PLAYERS = {  # maps the name of a player in eval.py to its name in table.md
    "random, closed loop": "random, ten turns of one action",
    "greedy, closed loop": "greedy, ten turns of one action",
    "optimal, 1 a turn": "optimal, five turns of one action",
    "optimal, 5 a turn": "optimal under the limits of the policy",
}
OTHER_PLAYERS = {  # the same for environments that are not a `Grid`
    "random, closed loop": "random",
    "optimal, closed loop": "reference player",
}


class Method(NamedTuple):
    """How a model is trained: by SFT if `curve.sft` is given, then by RL if `has_rl`."""

    curve: Curve
    has_rl: bool = True


class World(NamedTuple):
    """An environment, and the methods that train models for it."""

    title: str
    files: tuple[str, ...]  # names of the files in config/ that set the environment
    methods: dict[str, Method]  # maps the name of a row in table.md to its method
    headline: str  # a method; table.md subtracts each row's success from the success of this method
    overlays: tuple[str, ...] = ()  # names of config files that are read after models/tiny.py


def methods_of(
    name: str, *overlays: str, crowd_steps: int, planner_steps: int, **overrides: object
) -> dict[str, Method]:
    """Return the methods for one grid world, keyed by the names of their rows in table.md.

    Args:
        name: PPO reads config/NAME_ppo.py, and GRPO reads config/NAME_grpo.py.
        crowd_steps: steps of SFT on games of all scripted players of tools/crowd.py.
        planner_steps: steps of SFT on games of the planner.
        overrides: settings of RL.
    """
    ppo = (f"{name}_ppo", *overlays)
    grpo = (f"{name}_grpo", *overlays)
    crowd = demonstrations(ppo, "crowd", crowd_steps)
    planner = demonstrations(ppo, "planner", planner_steps)
    short = demonstrations(ppo, "planner", planner_steps // 4)
    return {
        "SFT on the players of the corpus": imitation_of(crowd),
        "SFT on the planner": imitation_of(planner),
        "GRPO": Method(Curve(grpo, overrides, overlays=BEST)),
        "PPO": Method(Curve(ppo, overrides, overlays=BEST)),
        "a quarter of SFT on the planner, then PPO": Method(Curve((), overrides, short, BEST)),
    }


def other_rl(name: str, star_po_s: int, later: int, **overrides: object) -> dict[str, Method]:
    """Return the methods StarPO-S, GiGPO and SAMPO, keyed by the names of their rows in table.md.

    We chose the numbers of iterations so that each run takes about as much CPU time as PPO. In
    table.md these runs take 0.9 to 1.4 times the CPU time of PPO.

    Args:
        star_po_s: RL iterations of StarPO-S.
        later: RL iterations of GiGPO, and also of SAMPO.
        overrides: settings of GiGPO and SAMPO.
    """
    ppo = (f"{name}_ppo",)
    grpo = (f"{name}_grpo",)
    settings = {**overrides, "num_iterations": later}
    return {
        "StarPO-S (PPO with its filter)": Method(Curve(ppo, {"num_iterations": star_po_s})),
        "GiGPO": Method(Curve(grpo, settings, overlays=(*BEST, "gigpo"))),
        "SAMPO": Method(Curve(grpo, settings, overlays=(*BEST, "sampo"))),
    }


def demonstrations(files: tuple[str, ...], player: str, steps: int) -> Curve:
    """Return SFT on games of the planner (player="planner") or of all players (player="crowd")."""
    overrides = {"sft_batch_size": 16, "eval_every": steps, "sft_steps": steps}
    return Curve(files, {**overrides, "sft_player": player})


def imitation_of(stage: Curve) -> Method:
    return Method(Curve((), {}, sft=stage), has_rl=False)


def new_game(title: str, name: str, sft: dict, rl: str = "GRPO", **overrides: object) -> World:
    """Return a game with two methods.

    The first method is SFT on games of a reference player. The second method is the same SFT,
    followed by RL.

    Args:
        name: the game and its RL method are set in config/NAME.py.
        sft: settings of SFT. `sft_steps` is small, so that RL has something to improve.
        rl: PPO or GRPO, used only in the name of the row.
        overrides: settings of RL.
    """
    overlays = ("tiny_new_game",)
    stage = Curve((name,), {**sft, "eval_every": sft["sft_steps"]}, overlays=overlays)
    headline = f"SFT on the reference player, then {rl}"
    methods = {
        "SFT on the reference player": imitation_of(stage),
        headline: Method(Curve((), overrides, stage, overlays)),
    }
    return World(title, (name,), methods, headline, overlays)


# Settings of RL in Sokoban, except for StarPO-S. Sokoban's games are longer than FrozenLake's, so
# an iteration has 16 groups instead of 32. The reward for a win is 10 in Sokoban and 1 in
# FrozenLake, so the format penalty is -1.0 instead of -0.1.
SOKOBAN = {"num_groups": 16, "format_penalty": -1.0}

WORLDS = {
    "frozenlake": World(
        "FrozenLake 4x4, slippery",
        ("frozenlake_ppo",),
        methods_of("frozenlake", crowd_steps=2100, planner_steps=1500)
        | other_rl("frozenlake", star_po_s=200, later=150),
        headline="PPO",
    ),
    "frozenlake_det": World(
        "FrozenLake 4x4, not slippery",
        ("frozenlake_ppo", "frozenlake_det"),
        methods_of("frozenlake", "frozenlake_det", crowd_steps=2100, planner_steps=1500),
        headline="PPO",
    ),
    "sokoban": World(
        "Sokoban, 6x6 rooms, one box",
        ("sokoban_ppo",),
        methods_of("sokoban", crowd_steps=2400, planner_steps=1200, **SOKOBAN)
        | other_rl("sokoban", star_po_s=130, later=130, **SOKOBAN),
        headline="PPO",
    ),
    "sokoban_large": World(
        "Sokoban, 8x8 rooms, two boxes",
        ("sokoban_ppo", "sokoban_large"),
        methods_of("sokoban", "sokoban_large", crowd_steps=2400, planner_steps=1200, **SOKOBAN),
        headline="PPO",
    ),
    "quest": World(
        "Quest, two rooms, three objects, four commands",
        ("quest_ppo", "single_turn"),
        {
            "SFT on the planner": imitation_of(quest_sft()),
            "SFT on the planner with errors": imitation_of(QUEST_SFT),
            "SFT on the planner with errors, then PPO": Method(curve(sft=QUEST_SFT)),
        },
        headline="SFT on the planner with errors, then PPO",
    ),
    "spell": new_game(
        "Spell a word of 3 to 5 letters backward (reasoning-gym)",
        "spell_grpo",
        sft={"sft_steps": 500},
    ),
    "guess_number": new_game(
        "Guess a number from 1 to 15 in four turns (GEM)",
        "guess_number_grpo",
        sft={"sft_steps": 25},
        num_iterations=30,
    ),
    "tools_fetch": new_game(
        "Tools: look a town up and answer a question about it",
        "tools_fetch_grpo",
        sft={"sft_steps": 150},
    ),
    "cliff_walking": new_game(
        "CliffWalking (gymnasium)",
        "cliff_walking_grpo",
        sft={"sft_steps": 45, "sft_player": "planner", "sft_actions": 5},
        num_iterations=15,
    ),
    "rubik": new_game(
        "Rubik 2x2, turned one to three times",
        "rubik_ppo",
        sft={"sft_steps": 200},
        rl="PPO",
        num_iterations=20,
    ),
    "sudoku": new_game(
        "Sudoku 4x4, six empty cells",
        "sudoku_ppo",
        sft={"sft_steps": 400},
        rl="PPO",
        num_iterations=40,
    ),
}


def main(argv: list[str]) -> None:
    names, options = read_names(argv, WORLDS, OPTIONS)
    if options["show"]:
        print("\n\n".join(recorded(name) for name in names))
        return
    seeds = [int(seed) for seed in options["seeds"].split(",")]
    for name in names:
        if not options["draw"]:
            run_world(name, seeds, options["only"])
    text = page(list(WORLDS))
    write_atomically(FOLDER / "table.md", text)
    print(text)


# ---------- run


def run_world(name: str, seeds: Sequence[int], only: str) -> None:
    """Make the missing rows (JSON files of results) of a world. For the row of a method, first
    train a model by this method. Then let the model play the fixed prompts.

    If `only` is the name of a row, this row alone is made. Any other text chooses the rows whose
    names contain the text, so "" chooses all rows.

    Raises: UserError if `only` matches no row."""
    world = WORLDS[name]
    known = ("players", BASE, *world.methods)
    chosen = [only] if only in known else [row for row in known if only in row]
    if not chosen:
        raise UserError(f"--only={only} matches none of the rows of {name}: {'; '.join(known)}")
    commit = git_commit()  # read before the runs, because the user may commit during the runs
    if "players" in chosen and not is_finished(name, "players", 0):
        write_row(name, "players", 0, {"wins": wins_of_players(world)}, commit)
    if BASE in chosen and not is_finished(name, BASE, 0):
        write_row(name, BASE, 0, {"wins": wins_of_model(world, Path("tiny"))}, commit)
    for seed in seeds:
        for row in chosen:
            if row in world.methods and not is_finished(name, row, seed):
                write_row(name, row, seed, run_method(world, world.methods[row], seed), commit)


def run_method(world: World, method: Method, seed: int) -> dict:
    """Train a model by a method, and let the model play the fixed prompts.

    Returns: the commands, the settings of the last command, the costs, and the number of games won
        on each prompt.
    Raises: UserError if a training command fails."""
    commands = []
    if method.curve.sft:
        commands.append(sft_command(method.curve, "tiny", seed))
    if method.has_rl:
        commands.append(train_command(method.curve, "tiny", seed))
    costs = {"CPU-s": 0.0, "sampled tokens": 0.0}
    for command in commands:
        failure = launch(command)
        if failure:
            raise UserError(failure)
        add_costs(costs, command)
    folder = commands[-1].out_dir
    return {
        "commands": [str(command) for command in commands],
        "settings": read_json(folder / "config.json", {}),
        "costs": costs,
        "wins": wins_of_model(world, folder / ("policy" if method.has_rl else "model")),
    }


def add_costs(costs: dict[str, float], command: Command) -> None:
    """Add a run's CPU time (without evaluations) and its number of sampled tokens to `costs`."""
    curve_file = command.out_dir / "curve.jsonl"
    if curve_file.exists():
        costs["CPU-s"] += read_rows(curve_file)[-1]["cpu_s"]
        return
    config = command.config()
    for step in read_rows(command.out_dir / "metrics.jsonl"):
        costs["CPU-s"] += step["cpu_s"]
        num_trajectories = config.num_groups * config.group_size
        costs["sampled tokens"] += step["response_length"] * num_trajectories


def wins_of_model(world: World, model: Path) -> list[int]:
    """Return the number of games that a model wins on each prompt."""
    return play_prompts(world, f"--model={model}")[str(model)]


def wins_of_players(world: World) -> dict[str, list[int]]:
    """For each scripted player, return the number of games that it wins on each prompt."""
    played = play_prompts(world, "--player=random,greedy,optimal")
    config, _, _ = load_config(game_words(world))
    if not isinstance(make_episode(config).env, Grid):
        return {name: played[row] for row, name in OTHER_PLAYERS.items() if row in played}
    wins = {PLAYERS[name]: played[name] for name in PLAYERS if name in played}
    for name in (*SHARES, "planner"):
        rates = play_crowd(name, config, SAMPLES)[0]  # (prompts,)
        wins[f"crowd: {name}"] = np.rint(rates * SAMPLES).astype(int).tolist()
    return wins


def play_prompts(world: World, what: str) -> dict[str, list[int]]:
    """Run eval.py. For each model or player, return the number of games won on each prompt.

    Args: what: the argument of eval.py that chooses models or players, such as "--model=tiny"."""
    scores = ROWS / "scores.json"
    scores.parent.mkdir(parents=True, exist_ok=True)
    words = [*game_words(world), what, f"--samples={SAMPLES}", f"--json={scores}"]
    subprocess.run([sys.executable, "eval.py", *words], check=True, stdout=subprocess.DEVNULL)
    rows = json.loads(scores.read_text())
    scores.unlink()
    wins = {}
    for name, row in rows.items():
        wins[name] = np.reshape(row["successes"], (-1, SAMPLES)).sum(1).tolist()
    return wins


def game_words(world: World) -> list[str]:
    """Return the arguments of eval.py and `load_config` that choose a world and 256 prompts."""
    files = files_at(Curve(world.files, {}, overlays=world.overlays), "tiny")
    return [*(config_path(file) for file in files), "--eval_size=256"]


# ---------- the files of rows


def row_path(world: str, method: str, seed: int) -> Path:
    words = method.replace(",", "").replace(" ", "_")
    return ROWS / f"{world}-{words}_s{seed}.json"


def write_row(world: str, method: str, seed: int, row: dict, commit: str | None) -> None:
    described = {
        **row,
        "samples": SAMPLES,
        "base": base_of(["config/models/tiny.py"]),
        "git_commit": commit,
        "machine": describe_machine(),
    }
    write_atomically(row_path(world, method, seed), json.dumps(described) + "\n")


def read_row(world: str, method: str, seed: int) -> dict | None:
    """Read a row from its JSON file. Return None if the file is missing, or if base/ had other
    weights when the row was made."""
    path = row_path(world, method, seed)
    if not path.exists():
        return None
    row = read_json(path, {"base": str, "samples": int})
    return row if row["base"] == base_of(["config/models/tiny.py"]) else None


def is_finished(world: str, method: str, seed: int) -> bool:
    return read_row(world, method, seed) is not None


# ---------- the page


def page(names: Sequence[str]) -> str:
    """Return the text of table.md: an introduction, and a table for each world that has rows."""
    parts = [INTRODUCTION]
    for name in names:
        lines = world_lines(name)
        if lines:
            parts.append("\n".join([f"## {WORLDS[name].title}", "", *lines]))
    return "\n\n".join(parts) + "\n"


def recorded(name: str) -> str:
    title = WORLDS[name].title
    lines = world_lines(name)
    if not lines:
        return f"{title}: no rows are recorded yet"
    head = f"{title}: recorded earlier, {SAMPLES} games a prompt (studies/imitation/table.md)"
    return "\n".join([head, *lines])


def world_lines(name: str) -> list[str]:
    """Return the lines of a Markdown table of a world's recorded rows, or [] if there are none."""
    world = WORLDS[name]
    rates = rates_of(name)
    if not rates:
        return []
    headline = rates.get(world.headline)
    lines = []
    for method, (wins, costs) in rates.items():
        cells = [method, rate_text(wins)]
        if headline is None or method == world.headline:
            cells.append("-")
        else:
            cells.append(difference(headline[0], wins))
        lines.append([*cells, *(f"{cost:,.0f}" if cost else "-" for cost in costs)])
    headings = ["row", "success %", f"{world.headline} - row", "CPU-s", "sampled tokens"]
    return markdown(headings, lines)


def difference(a: np.ndarray, b: np.ndarray) -> str:
    """Format the mean of `a - b` in %, and its interval. `a` and `b` are paired by prompt.

    If `a` and `b` have equally many seeds, they are also paired by seed. Otherwise `b` is first
    averaged over its seeds.

    Args: a, b: shares of games won, of shape (seeds, prompts)."""
    if len(a) != len(b):
        b = b.mean(axis=0, keepdims=True)
    return difference_text(a, b)


def rates_of(name: str) -> dict[str, tuple[np.ndarray, list[float]]]:
    """Return the results in the world `name`, for each row of its table in table.md.

    A row is a scripted player, the base model or a method.

    Returns: a dict that maps the name of a row to a pair. The first item holds the shares of games
        won, of shape (seeds, prompts). The second item is [mean CPU-s, mean sampled tokens]."""
    found = {}
    players = read_row(name, "players", 0)
    if players:
        for player, wins in players["wins"].items():
            found[player] = (np.array([wins]) / players["samples"], [0.0, 0.0])
    for method in (BASE, *WORLDS[name].methods):
        rows = [row for seed in range(10) if (row := read_row(name, method, seed))]
        if rows:
            wins = np.array([row["wins"] for row in rows]) / rows[0]["samples"]
            costs = [list(row["costs"].values()) for row in rows if "costs" in row]
            found[method] = (wins, np.mean(costs, axis=0).tolist() if costs else [0.0, 0.0])
    return found


INTRODUCTION = f"""\
# RL against imitation

Every player and every model plays the same 256 fixed prompts {SAMPLES} times. On slippery
FrozenLake, game k on a prompt draws its slips from the same random numbers in all rows. Success is
in %, with a 95 % interval over prompts and seeds. If the seeds have different results, parentheses
hold the result of each seed. The heading of the third column names a method. The column is the
success of this method minus the success of the row. This difference is paired by prompt. If the
method and the row have different numbers of seeds, the results of the row are first averaged over
its seeds. The interval of the difference then ignores the spread of the row's seeds. Policies
sample at T=0.5. CPU-s is the CPU time of training in seconds, without evaluations.

The limits of the policy are its maximum numbers of turns and of actions a turn. SFT on a player is
SFT on games of this player. A quarter of an SFT has a quarter of its steps. The rows whose names
begin with "crowd" are scripted players. In each turn, these players have a random limit on the
number of their actions. The base model was pretrained on a corpus that also has games of these
players ([base_model](../base_model/README.md)). In some turns of the corpus, random actions replace
the actions of the player."""


if __name__ == "__main__":
    run_main(main, kind=None)
