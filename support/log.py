"""Writes one row per iteration to the log of a run: metrics.jsonl, TensorBoard, and W&B if wanted.

    tensorboard --logdir out

TensorBoard's tab HPARAMS compares the settings of runs.
"""

from configurator import Config

import json
import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

from tqdm import tqdm

from parallel import rank
from rollout import Trajectory
from support.metrics import metric_groups
from support.records import transcript
from utils.files import append_to, write_rows

SHOWN_SAMPLES = 4  # number of trajectories per iteration in TensorBoard


def progress_bar(**options) -> tqdm:
    """A progress bar on the terminal of rank 0."""
    disable = True if rank() else None  # with None, tqdm shows the bar only on a terminal
    return tqdm(mininterval=1, disable=disable, **options)


class Log:
    """Writes metrics.jsonl and TensorBoard files in `out_dir`; logs to W&B if config.wandb is set.

    Args: history: rows of the iterations so far. If the run continues from a checkpoint,
        metrics.jsonl can hold rows of iterations after the checkpoint. So `history` replaces the
        content of metrics.jsonl.
    """

    def __init__(self, out_dir: Path, history: Sequence[dict], config: Config):
        # Imported here, so that scripts which only import train.py do not need TensorBoard.
        from support.tensorboard_log import Board

        self.path = out_dir / "metrics.jsonl"
        self.groups = metric_groups(config)
        write_rows(self.path, history)
        self.board = Board(out_dir / "tensorboard", len(history) + 1, config)
        self.wandb = None
        if config.wandb:
            from support.wandb_log import WandbLog  # needs the optional package wandb

            self.wandb = WandbLog(out_dir, len(history) + 1, config)

    def write(self, row: dict[str, float | str | None], samples: Sequence[Trajectory] = ()) -> None:
        """Write the metrics of an iteration to all logs, and some trajectories to TensorBoard and
        W&B.

        Raises: ValueError if the row lacks a metric or has an unknown metric.
        """
        wrong = sorted(row.keys() ^ self.groups.keys())
        if wrong:
            raise ValueError(f"a row must have the metrics of support/metrics.py; check {wrong}")
        with append_to(self.path) as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())  # so after a crash the file has the row of each checkpoint
        self._show(row, samples)

    def close(self, exit_code: int = 0) -> None:
        """End the W&B run."""
        if self.wandb:
            self.wandb.close(exit_code)

    def _show(self, row: dict, samples: Sequence[Trajectory]) -> None:
        scalars = {}
        texts = {}
        for name, value in row.items():
            if name == "step" or value is None:
                continue
            tag = tag_of(name, self.groups[name])
            if isinstance(value, str):
                texts[tag] = value
            else:
                scalars[tag] = value
        step = int(row["step"])
        if self.wandb:
            self.wandb.write(step, scalars, texts, samples)
        for i, trajectory in enumerate(samples[:SHOWN_SAMPLES]):
            texts[f"trajectories/{i}"] = preformatted(transcript(trajectory))
        self.board.write(step, scalars, texts)


def tag_of(name: str, group: str) -> str:
    """The name of a metric in TensorBoard and W&B.

    >>> tag_of("reward", "rollout"), tag_of("eval_success", "eval")
    ('rollout/reward', 'eval/success')
    """
    return f"{group}/{name.removeprefix(f'{group}_')}"


def preformatted(text: str) -> str:
    """Preformatted Markdown, so that TensorBoard does not interpret the text."""
    # UTF-8 cannot encode a lone surrogate, so TensorBoard's writer would raise an error. Here a
    # lone surrogate becomes a Python escape.
    encodable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return indent(encodable, "    ", lambda _: True)
