"""Look at what an agent did: a page of trajectories, an animation of one, plots of runs.

    python -m tools.view out/frozenlake_ppo                      # the page: view.html
    python -m tools.view out/frozenlake_ppo --gif=12             # trajectory 12 of it, as a GIF
    python -m tools.view out/frozenlake_ppo out/frozenlake_grpo  # learning curves of two runs
    python -m tools.view out/frozenlake_ppo --panel              # metrics that warn of a collapse

The file is written into the folder of the first run. The page is one HTML file that a browser
opens from disk; it loads nothing from the network.
"""

from configurator import UserError, run_main

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from dialogue import parse_response
from support.records import TRAJECTORY, why_ended
from support.run_folder import load_saved, read_rows, write_atomically
from tools.pictures import COLORS, LAYERS, cells_of, split_message
from tools.view_curves import draw_curves, draw_warning_panel
from tools.view_gif import draw_gif

TEMPLATE = Path(__file__).with_name("view.html")
PLACEHOLDER = "{{data}}"  # in the template
STAGES = {  # file of a run -> what its trajectories are; None: training, an iteration per row
    "eval_start.jsonl": "before RL",
    "trajectories.jsonl": None,
    "eval_final.jsonl": "after RL",
}


@dataclass(frozen=True)
class Command:
    """A parsed command line."""

    runs: list[Path]
    gif: int | None = None  # number of the trajectory to animate
    panel: bool = False


def main(argv: list[str]) -> None:
    command = parse_command(argv)
    run = command.runs[0]
    if command.gif is not None:
        path = run / f"trajectory_{command.gif}.gif"
        draw_gif(load_run(run), command.gif, path)
    elif command.panel:
        path = run / "panel.png"
        draw_warning_panel(command.runs, path)
    elif len(command.runs) > 1:
        path = run / "curves.png"
        draw_curves(command.runs, path)
    else:
        path = run / "view.html"
        write_atomically(path, fill_template(load_run(run)))
    print(f"wrote {path}; open {path.resolve().as_uri()}")


def parse_command(argv: list[str]) -> Command:
    """Read the command line. Raises: UserError unless it has a form that --help shows."""
    runs = [Path(argument) for argument in argv if not argument.startswith("--")]
    options = [argument for argument in argv if argument.startswith("--")]
    for run in runs:
        if not run.exists():
            raise UserError(f"{run} does not exist; expected the folder of a run")
        if not run.is_dir():
            raise UserError(f"{run} is not a folder; expected the folder of a run")
    if runs and not options:
        return Command(runs)
    if runs and options == ["--panel"]:
        return Command(runs, panel=True)
    if len(runs) == 1 and len(options) == 1:
        name, _, value = options[0].partition("=")
        if name == "--gif" and value.isdecimal():
            return Command(runs, gif=int(value))
    raise UserError(
        "expected run folders and at most one option (--panel, or --gif=NUMBER for a single run), "
        f"got {' '.join(argv)!r}"
    )


def load_run(run: Path) -> dict:
    """Collect what the page shows of a run, as data for JSON.

    Args:
        run: folder of a run, as train.py writes it.

    Returns:
        trajectories: list of dicts from `describe_trajectory`, in the order of training.
        texts: list of strings. Trajectories refer to tokens and system messages by their index in
            this list, so that a frequent text is stored once.
        cells, layers, colors: how to draw boards; see tools/pictures.py.

    Raises:
        UserError: the folder has no trajectories, or a line is not one.
    """
    think = load_saved(run).think
    text_ids: dict[str, int] = {}
    trajectories = []
    for file, stage in STAGES.items():
        shape = TRAJECTORY if stage else {"step": int, "group": int, **TRAJECTORY}
        for record in read_rows(run / file, shape=shape):
            if not record["turns"]:
                raise UserError(f"{run / file} holds a trajectory without turns")
            trajectories.append(describe_trajectory(record, stage, think, text_ids))
    if not trajectories:
        raise UserError(
            f"{run} holds no trajectories; expected a folder with one of {', '.join(STAGES)}"
        )
    envs = {trajectory["env"] for trajectory in trajectories}
    layers = {}
    for name, shapes in LAYERS.items():
        layers[name] = [asdict(shape) for shape in shapes]
    return {
        "name": run.name,
        "texts": list(text_ids),
        "cells": {env: cells_of(env) for env in envs},
        "layers": layers,
        "colors": {name: color._asdict() for name, color in COLORS.items()},
        "trajectories": trajectories,
    }


def describe_trajectory(
    record: dict, stage: str | None, think: bool, text_ids: dict[str, int]
) -> dict:
    """Select and label what the page shows of a trajectory.

    Args:
        record: row of one of the files in STAGES.
        stage: the value of that file in STAGES.
        think: whether responses have a thought, as in the setting `think`.
        text_ids: text -> number; gets the new texts of this trajectory.

    Returns:
        The fields below. Trajectories that start from the same state have the same "group".
    """
    if stage is None:
        when = f"iteration {record['step']}"
        group = f"{when}, group {record['group']}"
        member = f"member {record['member']}"
    else:
        when = stage
        group = f"prompt {', '.join(map(str, record['seed']))}"
        member = stage
    turns = [describe_turn(turn, record["env"], think, text_ids) for turn in record["turns"]]
    return {
        "env": record["env"],
        "status": record["status"],
        "reason": why_ended(record["status"], record["turns"][-1].get("error")),
        "success": record["success"],
        "score": record["score"],
        "when": when,
        "group": group,
        "member": member,
        "system": number_text(record["system"], text_ids),
        "turns": turns,
    }


def describe_turn(turn: dict, env: str, think: bool, text_ids: dict[str, int]) -> dict:
    """Select what the page shows of a turn; arguments as for `describe_trajectory`."""
    cells = cells_of(env)
    message = split_message(turn["observation"], cells)
    last_message = split_message(turn.get("closing") or "", cells)
    # A reference player samples no tokens: the page shows its response as one token.
    tokens = turn["tokens"] or [turn["response"]]
    return {
        **message._asdict(),  # report, budget, board and text
        "final_board": last_message.board,  # after the last action of the trajectory
        "thought": parse_response(turn["response"], think=think).thought,
        "actions": turn["actions"],
        "reward": turn["reward"],
        "well_formed": turn["format_ok"],
        "tokens": [number_text(token, text_ids) for token in tokens],
        "surprise": [round(100 * nats) for nats in turn["surprise"]],  # in 1/100 nat
    }


def number_text(text: str, text_ids: dict[str, int]) -> int:
    """Return the number of a text; a new text gets the next number."""
    return text_ids.setdefault(text, len(text_ids))


def fill_template(data: dict) -> str:
    """Return the HTML page with `data` in it.

    Models and environments write the texts in `data`. JSON in ASCII without "<" cannot end the
    script element that holds it, so the browser never interprets these texts as HTML.
    """
    encoded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace(PLACEHOLDER, encoded, 1)


if __name__ == "__main__":
    run_main(main)
