"""Measure speed and compare it with that of vLLM, Hugging Face and TRL. README.md has results.

    python -m studies.speed.bench rollout  # 128 trajectories: torch engine, vLLM, Hugging Face
    python -m studies.speed.bench update      # the packed update, a padded one, TRL's GRPO loss
    python -m studies.speed.bench iteration   # one GRPO iteration of train.py and of TRL
    python -m studies.speed.bench head        # log-probs in chunks or with full logits: peak memory
    python -m studies.speed.bench precision   # log-probs of engine and trainer, in three dtypes
    python -m studies.speed.bench scale       # cost by number of trajectories, turns and ranks

The benchmarks `head` and `scale` have fixed settings: only --repeats and --json have an effect.
`rollout`, `update` and `precision` start from config/frozenlake_grpo.py, config/models/tiny.py and
the options in LAKE (in bench.py). `iteration` starts from config/bandit_grpo.py,
config/models/tiny.py and the options in BANDIT (in bench.py). Config files and --key=value on the
command line override these settings. An example, to run after `make smollm2`:

    python -m studies.speed.bench update config/models/smollm2.py --num_groups=1

By default, `rollout` and `update` use an untrained model of 4 layers. --repeats=N sets the number
of measurements (default 5), except for `precision`, which makes one. --json=PATH writes the
measurements to a file. Compare CPU times, because wall time says little on a shared machine.
`rollout`, `update` and `iteration` check that all variants that they compare do the same work. vLLM
and TRL (pip install trl) are measured if they are installed. `python -m studies.speed.gpu_report`
measures on a GPU.
"""

from configurator import Config, UserError, load_config

import importlib
import json
from dataclasses import replace

from mixtures import mixture_at
from studies.speed.bench_measure import RANDOM_MODEL
from support.arguments import check_envs
from support.terminal import run_main
from utils.files import check_writable, write_atomically
from utils.model_folder import find_model

BENCHMARKS = {  # maps a benchmark to its module, which has a function of the same name
    "rollout": "studies.speed.bench_rollout",
    "update": "studies.speed.bench_update",
    "iteration": "studies.speed.bench_iteration",
    "head": "studies.speed.bench_head",
    "precision": "studies.speed.bench_precision",
    "scale": "studies.speed.bench_iteration",
}
LAKE = (
    "config/frozenlake_grpo.py",
    "config/models/tiny.py",
    "--max_response_tokens=100",
    "--max_context_tokens=1600",
)
BANDIT = (
    "config/bandit_grpo.py",
    "config/models/tiny.py",
    "--batch_size=128",
    "--filter_keep=1.0",
)
UNTRAINED = ("rollout", "update")  # benchmarks that replace the tiny model by an untrained one
OPTIONS = {
    "repeats": 5,
    "json": "",  # file for the measurements
}


def main(argv: list[str]) -> None:
    name, config, options = read_arguments(argv)
    # These imports take seconds, so mistakes in argv are reported before them.
    import torch

    import parallel
    from studies.base_model.tiny_model import build_tiny

    parallel.init_distributed(config)
    if config.model == RANDOM_MODEL:
        random_model, tokenizer = build_tiny(config.seed, "4x96")
        random_model.save_pretrained(RANDOM_MODEL)
        tokenizer.save_pretrained(RANDOM_MODEL)
    benchmark = getattr(importlib.import_module(BENCHMARKS[name]), name)
    rows = benchmark(config, options["repeats"])
    if options["json"]:
        record = {"command": argv, "torch": torch.__version__, "rows": rows}
        write_atomically(options["json"], json.dumps(record) + "\n")


def read_arguments(argv: list[str]) -> tuple[str, Config, dict]:
    if not argv or argv[0] not in BENCHMARKS:
        given = argv[0] if argv else "nothing"
        raise UserError(f"give one of {', '.join(BENCHMARKS)}; got {given}")
    name, *settings = argv
    files = BANDIT if name == "iteration" else LAKE
    config, options, _ = load_config([*files, *settings], extra=OPTIONS)
    check_envs(config, mixture_at(config.env, 0))
    is_default = config.model == "tiny"
    config = replace(config, model=find_model(config.model))
    if name in UNTRAINED and is_default:
        config = replace(config, model=RANDOM_MODEL)
    if options["repeats"] < 1:
        raise UserError(f"repeats must be 1 or more, got {options['repeats']}")
    if options["json"]:
        check_writable(options["json"])
    return name, config, options


if __name__ == "__main__":
    run_main(main)
