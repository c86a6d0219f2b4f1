"""Print two tables: what the tiny base model can do (also in README.md), and how it learned.

    python -m studies.base_model.card studies/base_model/base_curve.jsonl

The argument is a curve file that pretrain.py wrote. The file has a row for each step at which the
model was probed.
"""

from configurator import UserError

from collections.abc import Sequence
from pathlib import Path

from support.terminal import run_main
from tools.plotting.tables import markdown
from utils.files import read_rows

WORLDS = {  # maps an environment to its name in the tables
    "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8": "FrozenLake, slippery",
    "frozenlake:size=4,frozen_prob=0.9,success_rate=1.0": "FrozenLake, no slip",
    "sokoban:size=6,boxes=1,search_depth=300": "Sokoban 6x6",
    "sokoban:size=8,boxes=2,search_depth=10": "Sokoban 8x8",
    "bandit:pair=phoenix": "Bandit",
}
GAMES = {  # maps a metric of games to its column heading
    "success_T0.5": "success T=0.5",
    "success_T1": "success T=1",
    "valid_frac_T1": "valid T=1",
    "thought_true_frac_T1": "thoughts true",
    "entropy_T1": "entropy T=1",
}
READING = {  # maps a thing that questions ask about to its column heading
    "player": "player",
    "goal": "goal",
    "holes": "holes",
    "boxes": "boxes",
    "targets": "targets",
    "wall": "walls",
    "cell": "cells",
    "next_board": "next board",
}
LEARNED = ("success_T0.5", "thought_true_frac_T1", *READING)  # metrics that learning_table shows


def main(argv: list[str]) -> None:
    if len(argv) != 1 or not Path(argv[0]).is_file():
        given = " ".join(argv) or "nothing"
        raise UserError(f"give the curve.jsonl of a pretraining, got {given}")
    rows = read_rows(Path(argv[0]))
    print("\n".join([*final_table(rows[-1]), "", *learning_table(rows)]))


def final_table(row: dict) -> list[str]:
    lines = []
    for world, name in WORLDS.items():
        for mode in ("grid", "coord", "relations"):
            values = row.get(f"{world} {mode}")
            if values:
                lines.append([f"{name}, {mode}", *cells_of(values, [*GAMES, *READING])])
    return markdown(["environment, mode", *GAMES.values(), *READING.values()], lines)


def learning_table(rows: Sequence[dict]) -> list[str]:
    lines = []
    for world, name in WORLDS.items():
        for row in rows:
            values = row.get(f"{world} grid", {})
            # This table leaves the bandit out. A bandit has no board, so its values lack "player".
            if "player" in values:
                millions = f"{row['tokens'] / 1e6:.1f}"
                cells = [name, f"{row['step']:,}", millions, *cells_of(values, LEARNED)]
                lines.append(cells)
    headings = {**GAMES, **READING}
    names = [headings[key] for key in LEARNED]
    return markdown(["environment", "step", "million tokens", *names], lines)


def cells_of(values: dict[str, float], keys: Sequence[str]) -> list[str]:
    return [f"{values[key]:.2f}" if key in values else "-" for key in keys]


if __name__ == "__main__":
    run_main(main, kind=None)
