"""What a run leaves to look at, from one dict an iteration: metrics.jsonl, and the same numbers in TensorBoard.

    tensorboard --logdir out

Scalars stand in groups under the names of README's glossary, as they are and, in rollout_ema/ and so on, as exponential
moving averages. HPARAMS has the settings, TEXT the sampled trajectories, IMAGES their boards.
"""

from configurator import Config

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import indent

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from rollout import Trajectory
from support.collapse import KEYS
from tools.pictures import strip
from support.run_folder import sync, write_whole

METRICS_OF_UPDATE = """pg_loss clipfrac approx_kl entropy kl_ref vf_loss vf_clipfrac grad_norm grad_norm_critic
    explained_variance logprob_diff_mean logprob_diff_max"""  # None without an update, or where they do not apply
DECAY = 0.9  # of the moving averages


def group_of(key: str) -> str:
    """The group of a metric: eval, collapse, update, cost or rollout."""
    if key.startswith("eval_"):
        return "eval"
    if key in (*KEYS, "regime"):
        return "collapse"
    if key in (*METRICS_OF_UPDATE.split(), "bad_steps", "kept_groups", "kept_trajectories"):
        return "update"
    return "cost" if key.endswith("_s") or key == "memory_gib" else "rollout"


class Log:
    """metrics.jsonl and TensorBoard; a row with other keys than the first is an error. `history`: rows before it."""

    def __init__(self, out_dir: Path, history: Sequence[dict], config: Config):
        self.path, self.keys, self.averages = out_dir / "metrics.jsonl", None, {}
        write_rows(self.path, history)
        for row in history:
            self._average(row)
        self.board = SummaryWriter(out_dir / "tensorboard", purge_step=len(history) + 1)
        for summary in hparams(asdict(config), {"eval/eval_success": 0.0}):
            self.board.file_writer.add_summary(summary)

    def _average(self, row: dict) -> None:
        for key, value in row.items():
            if isinstance(value, (int, float)):
                self.averages[key] = DECAY * self.averages.get(key, value) + (1 - DECAY) * value

    def write(self, row: dict[str, float | str | None], samples: Sequence[Trajectory] = ()) -> None:
        """Append an iteration, and some of its trajectories as text and pictures."""
        self.keys, step = self.keys or row.keys(), int(row["step"])
        if row.keys() != self.keys:
            raise ValueError(
                f"metric keys changed during the run: {sorted(row.keys() ^ self.keys)}"
            )
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        sync(self.path)  # a checkpoint must not outlive its row
        self._average(row)
        for key, value in row.items():
            if isinstance(value, str):
                self.board.add_text(f"{group_of(key)}/{key}", value, step)
            elif value is not None and key != "step":
                self.board.add_scalar(f"{group_of(key)}/{key}", value, step)
                self.board.add_scalar(f"{group_of(key)}_ema/{key}", self.averages[key], step)
        for i, trajectory in enumerate(samples):
            self.board.add_text(f"trajectories/{i}", transcript(trajectory), step)
            shown = [
                (t.observation, f"{' || '.join(t.info['actions'])}: {t.reward:g}")
                for t in trajectory.turns
            ]
            shown += (
                [(end, trajectory.status)]
                if (end := trajectory.turns[-1].info.get("closing"))
                else []
            )
            if figure := strip(trajectory.env, *zip(*shown, strict=True)):
                self.board.add_figure(f"trajectories/{i}", figure, step)
        self.board.flush()


def transcript(t: Trajectory) -> str:
    """A dialogue as preformatted Markdown: what was said is shown and never interpreted."""
    said = [f"{turn.observation}\n\n{turn.text}\n\nreward {turn.reward:g}" for turn in t.turns]
    return indent(
        "\n\n".join([t.env, *said, f"{t.status}, score {t.score:g}"]), "    ", lambda _: True
    )


def write_rows(path: Path, rows: Sequence[dict]) -> None:
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))
