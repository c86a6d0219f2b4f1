"""Weights & Biases: an optional copy of the log of a run.

    pip install -r requirements/wandb.txt
    python train.py config/frozenlake_ppo.py config/models/tiny.py --wandb=PROJECT

W&B gets the settings, the commit, the metrics, the recorded trajectories and the HTML page
of tools.view, but no weights and no code. Log in with `wandb login`. With WANDB_MODE=offline
nothing is sent; `wandb sync` sends the data later.
"""

from configurator import Config, UserError

import atexit
import re
import secrets
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rollout import Trajectory
from support.records import transcript
from utils.code_version import git_commit
from utils.files import read_text, write_atomically
from utils.text import printable

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ["iteration", "env", "seed", "member", "status", "score", "transcript"]
LONGEST_TRANSCRIPT = 20_000  # characters
PAGE_TIMEOUT_S = 600
FINISH_TIMEOUT_S = 300


class WandbLog:
    """Writes the log of a run to Weights & Biases, online or offline.

    If W&B does not start, the training run ends. After a later error of W&B, the training
    run goes on without W&B.

    Args: first_step: the first iteration of this process. If `first_step` is 1, or if there is
        no earlier W&B run, a new W&B run begins; otherwise the earlier W&B run continues.
    Raises: UserError if W&B does not start."""

    def __init__(self, out_dir: Path, first_step: int, config: Config):
        import wandb

        self.wandb = wandb
        self.out_dir = out_dir
        self.errors = (wandb.Error, OSError, RuntimeError)
        settings = wandb.Settings(
            console="off",
            save_code=False,
            disable_git=True,
            finish_timeout=FINISH_TIMEOUT_S,
            finish_timeout_raises=True,
        )
        try:
            self.run = wandb.init(
                project=config.wandb,
                id=run_id(out_dir / "wandb_id", is_new=first_step == 1),
                name=printable(out_dir.resolve().name),
                config={**asdict(config), "git_commit": git_commit()},
                resume="allow",
                allow_val_change=True,  # num_iterations may change when a run continues
                settings=settings,
            )
        except self.errors as error:
            raise UserError(
                f"W&B does not start ({error}); run `wandb login`, set WANDB_MODE=offline, or "
                "leave out --wandb"
            ) from error

    def write(
        self,
        step: int,
        scalars: dict[str, float],
        texts: dict[str, str],
        samples: Sequence[Trajectory],
    ) -> None:
        """Write the metrics of an iteration, and its recorded trajectories as a table.

        W&B ignores an iteration that an earlier process has written already."""
        if not self.run:
            return
        row = {**scalars, **texts}
        try:
            if samples:
                data = [table_row(step, trajectory) for trajectory in samples]
                row["trajectories"] = self.wandb.Table(columns=COLUMNS, data=data)
            self.run.log(row, step=step)
        except self.errors as error:
            self._end(error)

    def close(self, exit_code: int = 0) -> None:
        """End the W&B run.

        If `exit_code` is 0 (a complete run), first send the HTML page that tools.view writes."""
        if not self.run:
            return
        try:
            page = make_page(self.out_dir) if exit_code == 0 else None
            if page:
                artifact = self.wandb.Artifact(f"page-{self.run.id}", type="page")
                artifact.add_file(str(page), name=page.name)
                self.run.log_artifact(artifact)
            self.run.finish(exit_code=exit_code)
        except self.errors as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        reason = printable(" ".join(str(error).split()))
        print(f"W&B gets no more data ({reason}); metrics.jsonl has all metrics", flush=True)
        self.run = None
        # wandb's exit function calls wandb's background process, and prints a traceback if the
        # background process was killed. `_tear_down` makes the same call and hides the error.
        # atexit runs the newest function first, so `_tear_down` runs before wandb's exit function.
        atexit.register(self._tear_down)

    def _tear_down(self) -> None:
        with suppress(*self.errors):
            self.wandb.teardown(exit_code=1)


def run_id(path: Path, is_new: bool) -> str:
    """Return the id of the W&B run: the id in the file if the run continues, else a new id."""
    if not is_new and path.is_file():
        found = read_text(path).strip()
        if not re.fullmatch("[0-9a-f]{8}", found):
            raise UserError(
                f"{path} must hold the id of a W&B run, 8 hexadecimal digits; remove it"
            )
        return found
    new_id = secrets.token_hex(4)
    write_atomically(path, new_id + "\n")
    return new_id


def table_row(step: int, trajectory: Trajectory) -> list:
    """The cells of a trajectory in the W&B table.

    Control characters are escaped, except line ends in the transcript."""
    return [
        step,
        printable(trajectory.env),
        ", ".join(str(number) for number in trajectory.seed),
        trajectory.member,
        trajectory.status,
        trajectory.score,
        printable(transcript(trajectory), limit=LONGEST_TRANSCRIPT, keep="\n"),
    ]


def make_page(out_dir: Path) -> Path | None:
    """Let tools.view write the page of the run.

    Returns: the path of the page, or None if tools.view fails."""
    command = [sys.executable, "-m", "tools.view", str(out_dir.resolve())]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PAGE_TIMEOUT_S
        )
        failure = done.stderr if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        failure = str(error)
    if failure:
        print(f"W&B gets no page of the run: {printable(' '.join(failure.split()))}", flush=True)
        return None
    return out_dir / "view.html"
