"""Writes the event files of a run for TensorBoard."""

from configurator import Config

import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import hparams, scalar, text

from utils.text import printable

LONGEST_VALUE = 1000  # characters of a setting's value in the tab TEXT


class Board:
    """An event file of TensorBoard.

    torch's SummaryWriter writes in a thread of its own, so the error of a full disk occurs in that
    thread. A Board starts no thread, so it can catch the error. After an error, the run goes on
    without TensorBoard.

    Args:
        first_step: the first iteration of this file. In older files, TensorBoard ignores the
            iterations from `first_step` on.
        config: the settings for the tabs HPARAMS and TEXT."""

    def __init__(self, folder: Path, first_step: int, config: Config):
        name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        self.file = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.file = (folder / name).open("xb")
        except OSError as error:
            self._end(error)
        events = [
            Event(step=first_step, file_version="brain.Event:2"),
            Event(step=first_step, session_log=SessionLog(status=SessionLog.START)),
        ]
        for summary in hparams(asdict(config), {"eval/success": 0.0}):
            events.append(Event(summary=summary))
        settings = text("settings", settings_table(config))
        events.append(Event(step=first_step, summary=settings))
        self._write_events(events)

    def write(self, step: int, scalars: dict[str, float], texts: dict[str, str]) -> None:
        """Write the numbers and texts of an iteration. The keys of both dicts are tags."""
        summaries = [scalar(tag, value) for tag, value in scalars.items()]
        summaries += [text(tag, value) for tag, value in texts.items()]
        self._write_events(Event(step=step, summary=summary) for summary in summaries)

    def _write_events(self, events: Iterable[Event]) -> None:
        if not self.file:
            return
        try:
            for event in events:
                event.wall_time = time.time()
                RecordWriter(self.file).write(event.SerializeToString())
            self.file.flush()
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        print(f"TensorBoard gets no more data ({error}); metrics.jsonl has all metrics", flush=True)
        self.file = None


def settings_table(config: Config) -> str:
    """All settings as a Markdown table.

    The values are in backticks, so that TensorBoard interprets no Markdown in them."""
    lines = ["| setting | value |", "|---|---|"]
    for name, value in asdict(config).items():
        shown = printable(str(value), limit=LONGEST_VALUE).replace("`", "'").replace("|", "/")
        lines.append(f"| {name} | `{shown}` |")
    return "\n".join(lines)
