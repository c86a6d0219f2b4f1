"""Helpers for tests that run train.py with small settings."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from shared_fixtures import SMALL_RUN

import train
from utils.checksums import find_corruption

# SMALL_RUN has filter_keep=0.5, group_size=4 and batch_size=4. So in RUN the filter keeps 2 of 4
# groups, and an iteration has two optimizer steps of 4 trajectories each.
RUN = SMALL_RUN | dict(num_groups=4)


def run(out_dir, start, **changes):
    """Run train.main from the model in folder `start`, and return the rows of metrics.jsonl."""
    settings = RUN | dict(model=str(start)) | changes
    file = Path(f"{out_dir}.py")
    file.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    train.main([str(file), f"--out_dir={out_dir}"])
    return rows_of(out_dir)


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def rows_of(out_dir):
    return read_lines(Path(out_dir) / "metrics.jsonl")


def untimed(rows):
    """Return the rows without times and memory, which differ between runs."""
    kept = []
    for row in rows:
        kept.append({key: row[key] for key in row if not key.endswith(("_s", "_gib"))})
    return kept


def newest_checkpoint(out_dir):
    return sorted(Path(out_dir).glob("checkpoint-*"))[-1]


def assert_same_checkpoint(first, second):
    one, other = newest_checkpoint(first), newest_checkpoint(second)
    assert one.name == other.name
    assert not find_corruption(one) and not find_corruption(other)
    assert (one / "state.json").read_text() == (other / "state.json").read_text()
    own = [*sorted((one / "state").iterdir()), Path(first, "policy/model.safetensors")]
    others = [*sorted((other / "state").iterdir()), Path(second, "policy/model.safetensors")]
    for path, other_path in zip(own, others, strict=True):
        tensors, expected = load_file(path), load_file(other_path)
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[key], expected[key]) for key in tensors)


def rows_in(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return {line.split("|")[1].strip(): line for line in lines}
