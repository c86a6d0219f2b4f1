"""Starts or continues a run in its folder, records its iterations, and ends it."""

from configurator import Config, UserError

import errno
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

import parallel
from learner import Learner
from parallel import rank
from rollout import Trajectory
from support import checkpoint, report, settings_history
from support.budget_warnings import (
    BUDGET_METRICS,
    budget_summary,
    budget_warning,
    idle_summary,
    idle_warning,
)
from support.checkpoint import Saver
from support.collapse_signs import classify_regime, early_stop_reason, new_warnings
from support.log import Log, progress_bar
from support.no_effect import warn_inert
from support.records import write_jsonl, write_samples
from support.run_folder import DISK_ADVICE, save_config
from support.run_lock import EXIT_INTERRUPTED, Interruption, lock_folder
from support.scores import Scores
from utils.checksums import changed_logs, find_damage
from utils.files import read_json, read_rows, remove_partial_files, write_rows

# If `_sampling_due` returns True, the iteration writes this many trajectories to
# trajectories.jsonl. The number is rounded up to a multiple of group_size.
SAMPLE_SIZE = 32
MAX_SAMPLE_BYTES = 64_000_000  # limit of trajectories.jsonl
NUMBER = (float, None)
# `read_history` checks these metrics. Maps each metric to its shape (utils/json_shapes.py).
HISTORY_ROW = {
    "step": int,
    "success": NUMBER,
    "valid_frac": NUMBER,
    "eval_success": NUMBER,
    "in_group_reward_std": NUMBER,
    "entropy": NUMBER,
    "grad_norm": NUMBER,
    "kept_groups": NUMBER,
    "mi_bound_first": NUMBER,
    "mi_seq_first": NUMBER,
    "conditional_entropy_first": NUMBER,
    **dict.fromkeys(BUDGET_METRICS, (NUMBER, ...)),  # optional: older code did not write them
}


@contextmanager
def open_run(config: Config, sources: dict[str, str]) -> Iterator["Run"]:
    """Open the run in config.out_dir, and lock this folder until the `with` block ends.

    After an interruption, the process exits with EXIT_INTERRUPTED.
    Raises: UserError if the folder is in use."""
    out_dir = Path(config.out_dir)
    with (
        lock_folder(out_dir),
        Saver(out_dir, config.keep_checkpoints) as saver,
        Interruption(config.grace_s) as interruption,
        explain_full_disk(out_dir),
    ):
        run = Run(config, sources, saver, interruption)
        yield run
        if run.was_interrupted:
            sys.exit(EXIT_INTERRUPTED)


class Run:
    """Starts, records and ends a run. Every rank has a Run, but only rank 0 writes log files."""

    def __init__(
        self,
        config: Config,
        sources: dict[str, str],
        saver: Saver,
        interruption: Interruption,
    ):
        self.config = config
        self.sources = sources
        self.saver = saver
        self.interruption = interruption
        self.out_dir = saver.out_dir
        self.samples_path = self.out_dir / "trajectories.jsonl"
        self.was_interrupted = False
        self.saved = checkpoint.newest(self.out_dir)
        if not self.saved:
            check_lost_checkpoints(self.out_dir)
        print(describe(config, sources), flush=True)
        warning = warn_inert(config, sources)
        if warning:
            print(warning, flush=True)
        last_step = step_of(self.saved) if self.saved else 0
        self.history = read_history(self.out_dir / "metrics.jsonl", last_step)
        self.damage: list[str] = []
        if self.saved:
            self._note_damage(check_logs(self.out_dir, self.saved))
        self.earlier = settings_history.earlier_when_continued(self.out_dir, config, last_step)
        # Evaluations up to this iteration may have used other prompts or rules than `config` sets.
        self.last_old_evaluation = settings_history.evaluations_changed_at(self.earlier, config)

    def report_if_finished(self) -> bool:
        """If the run is finished, print its report. Returns: whether the run is finished."""
        if not self.saved:
            return False
        reason = self._early_stop_reason(self.history)
        is_finished = report.show_if_finished(self.config, len(self.history), reason)
        if is_finished:
            self._print_advice()
        return is_finished

    def start(self, learner: Learner, start_scores: dict[str, Scores]) -> None:
        """Load the newest checkpoint, if any, into the learner, and open the files of the run.

        Args: start_scores: maps each environment to scores of the model before training."""
        self.learner = learner
        self.start_scores = start_scores
        report.print_start(self.config, start_scores)
        if self.saved:
            checkpoint.load_learner(learner, self.saved)
        for sentence in settings_history.describe_earlier(self.earlier, self.config):
            print(sentence, flush=True)
        self.best_success = self._find_best_success()
        self.stop_requested = self.interruption.requested()
        self.first_step = learner.step
        self.start_time = time.perf_counter()
        self.bar = progress_bar(
            total=self.config.num_iterations, initial=learner.step, desc="starpo", unit="it"
        )
        if rank() == 0:
            # The files below are written only now, after the model was evaluated and the
            # checkpoint, if any, was loaded. So a start that fails earlier writes none of them.
            remove_partial_files(self.out_dir)
            save_config(self.config, self.sources, self.out_dir, self.earlier)
            report.remove_final_outputs(self.out_dir)
            write_jsonl(self.out_dir / "eval_start.jsonl", start_scores, learner.tokenizer)
            self.log = Log(self.out_dir, self.history, self.config)
            write_rows(self.samples_path, read_rows(self.samples_path, learner.step))

    def _note_damage(self, sentence: str) -> None:
        if sentence:
            self.damage.append(sentence)
            print(sentence, flush=True)

    def _find_best_success(self) -> float:
        """The success of the policy in best/, the same on every rank. All ranks must call this."""
        found = None
        if rank() == 0:
            found = find_best(self.out_dir, self._comparable(self.history))
        best, damage = parallel.all_gather_lists([found])[0][0]
        self._note_damage(damage)
        return best

    def _comparable(self, history: list[dict]) -> list[dict]:
        return settings_history.without_old_evaluations(history, self.last_old_evaluation)

    # ---------- the loop

    def should_continue(self) -> bool:
        """False if the run is complete or was interrupted, else True."""
        return not self.stop_requested and not self._is_over(self.history)

    def evaluation_due(self, row: dict) -> bool:
        """Whether to evaluate the iteration of `row`; the last iteration is always evaluated."""
        is_last = self._is_over([*self.history, row])
        return is_last or is_due(self.config.eval_every, self.learner.step)

    def add(
        self, row: dict, trajectories: list[Trajectory], scores: dict[str, Scores] | None
    ) -> None:
        """Write the metrics of an iteration, and print its warnings.

        If the evaluation has the highest success so far, the policy is saved in best/. If a sample
        of trajectories or a checkpoint is due, it is saved, too.

        Args: scores: maps each environment to scores; None if the iteration was not evaluated."""
        config = self.config
        learner = self.learner
        row = nan_to_none({**row, **report.eval_metrics(config, scores)})
        row["regime"] = classify_regime(row, self.history)
        improved = scores and row["eval_success"] > self.best_success
        self.history.append(row)
        for sentence in new_warnings(self.history):
            tqdm.write(f"iteration {learner.step}: {sentence}")
        for warning in (budget_warning(self.history), idle_warning(self.history)):
            if warning:
                tqdm.write(f"iteration {learner.step}: {warning}")
        if improved:
            self.best_success = row["eval_success"]
            self.saver.wait()
            self._export("best")
        if rank() == 0:
            # Rows are written before the checkpoint, because a run that continues from the
            # checkpoint needs these rows.
            samples = self._samples(trajectories) if self._sampling_due(scores) else []
            self.log.write(row, samples)
            write_samples(
                self.samples_path, learner.step, samples, config.group_size, learner.tokenizer
            )
        self.stop_requested = self.interruption.requested()
        is_last = self._is_over(self.history)
        if is_last or self.stop_requested or is_due(config.save_every, learner.step):
            checkpoint.save_learner(learner, self.saver)
        self._print_line(row)

    def _export(self, name: str) -> None:
        learner = self.learner
        checkpoint.export(self.out_dir / name, learner.policy, learner.tokenizer, learner.step)

    def _sampling_due(self, scores: dict[str, Scores] | None) -> bool:
        """Whether to write trajectories of this iteration.

        The size limit of trajectories.jsonl grows with each iteration, and is MAX_SAMPLE_BYTES in
        the last iteration. With a constant limit, the early iterations of a long run could fill the
        file."""
        config = self.config
        step = self.learner.step
        if not config.sample_every:
            return False
        share = MAX_SAMPLE_BYTES * step / max(step, config.num_iterations)
        has_room = self.samples_path.stat().st_size <= share
        is_wanted = step == 1 or scores or is_due(config.sample_every, step)
        return bool(has_room and is_wanted)

    def _samples(self, trajectories: list[Trajectory]) -> list[Trajectory]:
        size = self.config.group_size
        return trajectories[: math.ceil(SAMPLE_SIZE / size) * size]

    def _print_line(self, row: dict) -> None:
        elapsed_s = time.perf_counter() - self.start_time  # evaluations included
        step_s = elapsed_s / (self.learner.step - self.first_step)
        left_s = step_s * (self.config.num_iterations - self.learner.step)
        tqdm.write(report.describe_step(row, self.config.num_iterations, left_s))
        self.bar.update()

    # ---------- the end

    def is_over(self) -> bool:
        """Whether all iterations are done, or early_stop ends the run."""
        return self._is_over(self.history)

    def finish(
        self,
        scores: dict[str, Scores] | None,
        play_references: Callable[[Config], dict[str, dict[str, Scores]]],
    ) -> None:
        """Write the policy and the report, or say that the run was interrupted.

        Args: scores: maps each environment to scores of the policy; may be None in an interrupted
            run."""
        self.bar.close()
        self.saver.wait()
        step = self.learner.step
        if not self.is_over():
            self.was_interrupted = True
            if rank() == 0:
                self.log.close(EXIT_INTERRUPTED)
            print(f"interrupted at iteration {step}; start again to continue", flush=True)
            return
        reason = self._early_stop_reason(self.history)
        if reason:
            print(f"stopped at iteration {step}: {reason}", flush=True)
        self._export("policy")
        if rank() == 0:
            stages = {"start": self.start_scores, "after RL": scores}
            references = play_references(self.config)
            report.write_report(self.config, stages, references, self.learner.tokenizer)
            self.log.close()
        for sentence in self.damage:
            print(sentence, flush=True)
        self._print_advice()

    def _print_advice(self) -> None:
        summary = idle_summary(self.history) or budget_summary(self.history)
        if summary:
            print(f"\n{summary}", flush=True)

    def _is_over(self, history: list[dict]) -> bool:
        out_of_iterations = self.learner.step >= self.config.num_iterations
        return out_of_iterations or self._early_stop_reason(history) is not None

    def _early_stop_reason(self, history: list[dict]) -> str | None:
        if not self.config.early_stop:
            return None
        return early_stop_reason(self._comparable(history))


@contextmanager
def explain_full_disk(out_dir: Path) -> Iterator[None]:
    """Turn the error of a full or read-only disk into a UserError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise UserError(f"{out_dir} could not be written ({error}); {DISK_ADVICE}") from error


def describe(config: Config, sources: dict[str, str]) -> str:
    """A line "key = value (source)" for out_dir and each setting whose source is not "default"."""
    lines = []
    for key, source in sources.items():
        if source != "default" or key == "out_dir":
            lines.append(f"{key} = {getattr(config, key)!r} ({source})")
    return "\n".join(lines)


def check_lost_checkpoints(out_dir: Path) -> None:
    """If the folder holds metrics but no checkpoint, print that the run begins again.

    Raises: UserError if the folder also holds policy/, as after a finished run."""
    metrics = out_dir / "metrics.jsonl"
    if not metrics.is_file() or not metrics.stat().st_size:
        return
    if (out_dir / "policy").is_dir():
        raise UserError(
            f"{out_dir} holds a finished run without checkpoints, and a new start would replace "
            "its metrics and its policy; give another --out_dir, or remove the folder"
        )
    print(f"{out_dir} has metrics, but no checkpoint: the run begins again", flush=True)


def read_history(path: Path, last_step: int) -> list[dict]:
    """The rows of metrics.jsonl up to the iteration of the newest checkpoint.

    Raises: UserError if rows are missing, or have another shape than HISTORY_ROW."""
    rows = read_rows(path, last_step, HISTORY_ROW)
    if [row["step"] for row in rows] != list(range(1, last_step + 1)):
        raise UserError(
            f"{path} must have a row for each iteration up to {last_step}, the iteration of the "
            f"newest checkpoint; got {len(rows)} rows: restore the file, or give another --out_dir"
        )
    return rows


def check_logs(out_dir: Path, saved: Path) -> str:
    """Compare the logs with their checksums in a checkpoint.

    Returns: a sentence if trajectories.jsonl differs, else "".
    Raises: UserError if metrics.jsonl differs."""
    changed = changed_logs(out_dir, saved)
    step = step_of(saved)
    if "metrics.jsonl" in changed:
        raise UserError(
            f"{out_dir}/metrics.jsonl was changed: its rows up to iteration {step} are not those "
            "that the run wrote; restore the file, or give another --out_dir"
        )
    if "trajectories.jsonl" in changed:
        return (
            f"{out_dir}/trajectories.jsonl is not what the run wrote up to iteration {step}: "
            "trajectories are missing or changed"
        )
    return ""


def step_of(folder: Path) -> int:
    """The iteration after which a checkpoint was written."""
    return int(folder.name.removeprefix("checkpoint-"))


def nan_to_none(row: dict) -> dict:
    """A row with None in place of every number that is not finite."""
    clean = {}
    for key, value in row.items():
        is_bad = isinstance(value, float) and not math.isfinite(value)
        clean[key] = None if is_bad else value
    return clean


def is_due(every: int, step: int) -> bool:
    """Whether `step` is a multiple of `every`; False if `every` is 0."""
    return every > 0 and step % every == 0


def find_best(out_dir: Path, history: list[dict]) -> tuple[float, str]:
    """The success of the policy in best/. Only a policy with a higher success replaces this policy.

    Args: history: rows of metrics.jsonl; `eval_success` is None if the iteration was not evaluated,
        or if its evaluation used other prompts or rules than the run has now.
    Returns: (success, message for the user). If `eval_success` is None in every row, the function
        returns (-1, ""). Otherwise, if best/ is missing or damaged, the success is -1 and the
        message says that best/ was lost. In all other cases the message is ""."""
    known = {}
    for row in history:
        if row["eval_success"] is not None:
            known[row["step"]] = row["eval_success"]
    if not known:
        return -1.0, ""
    folder = out_dir / "best"
    problem = find_damage(folder) if folder.is_dir() else "there is no such folder"
    if problem:
        return -1.0, (
            f"{folder} was lost ({problem}): from now on it holds the best policy after iteration "
            f"{history[-1]['step']}"
        )
    path = folder / checkpoint.ITERATION
    step = read_json(path, {"step": int})["step"] if path.is_file() else None
    # The success of best/ is unknown in three cases:
    # - Older code saved best/ without its iteration.
    # - A restart dropped the row of the iteration that saved best/.
    # - The iteration that saved best/ was evaluated with other prompts or rules than now.
    # In these cases the function returns the highest known success.
    return known.get(step, max(known.values())), ""
