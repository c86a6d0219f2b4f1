"""Pretrain a tiny model from random weights on the corpus that corpus.py generates.

    torchrun --nproc_per_node=2 -m studies.base_model.pretrain \\
        studies/base_model/config/pretraining.py

The command writes out/pretraining/model, which equals the model in base/ up to rounding. The loop,
the optimizers and the checkpoints are those of tools/sft.py. The documents do not depend on the
number of processes. Every --eval_every steps, the model is probed on held-out boards
(board_probes.py) and saved.
"""

from configurator import UserError, load_config

from support.terminal import run_main
from tools.sft_config import SftConfig


def read_pretraining(argv: list[str]) -> tuple[SftConfig, dict[str, str]]:
    config, _, sources = load_config(argv, kind=SftConfig)
    if not config.sft_steps:
        raise UserError(
            "nothing to do: sft_steps is 0; give studies/base_model/config/pretraining.py"
        )
    return config, sources


if __name__ == "__main__":
    run_main(read_pretraining, kind=SftConfig)  # reports wrong arguments before the slow imports

from functools import partial
from pathlib import Path

import torch

import parallel
from dialogue import Chat
from model import Policy
from rollout import Trajectory
from studies.base_model import corpus
from studies.base_model.board_probes import base_report
from studies.base_model.tiny_model import build_tiny
from support.checkpoint import Saver, export
from support.no_effect import print_unread
from support.run_folder import check_out_dir, save_config
from tools.sft import SUPERVISED, check_imitation, imitate, open_run, write_row

SETTINGS_READ = f"""{SUPERVISED} {corpus.SETTINGS_READ}
    sft_steps sft_batch_size sft_lr sft_muon_lr"""


def main(argv: list[str]) -> None:
    config, sources = read_pretraining(argv)
    check_imitation(config)
    check_out_dir(config)
    device = parallel.init_distributed(config)
    print_unread("studies.base_model.pretrain", SETTINGS_READ, sources)
    with open_run(config) as saver:
        train(config, sources, device, saver)


def train(config: SftConfig, sources: dict[str, str], device: torch.device, saver: Saver) -> None:
    out_dir = Path(config.out_dir)
    model, tokenizer = build_tiny(config.seed, config.model)
    policy = Policy(model.to(device))
    chat = Chat(tokenizer)
    if parallel.rank() == 0:
        save_config(config, sources, out_dir)

    def report(step: int, totals: dict) -> None:
        write_row(config, step, totals, base_report(model, chat))
        saver.wait()  # a checkpoint still being written uses the temporary folder of `export`
        export(out_dir / f"model-{step}", policy, tokenizer)

    imitate(policy, partial(packs_of, config, chat), config, saver=saver, report=report)
    export(out_dir / "model", policy, tokenizer)
    print(f"wrote {out_dir}/: curve.jsonl, and model in Hugging Face format")


def packs_of(config: SftConfig, chat: Chat, step: int) -> list[list[Trajectory]]:
    """Return the packs that this rank trains on in a step. A pack holds the documents of one
    forward and backward pass."""
    progress = step / config.sft_steps
    packs = []
    for index in range(parallel.rank(), config.sft_batch_size, parallel.world_size()):
        pack = corpus.documents(config, chat, step, index, progress)
        packs.append([document.trajectory for document in pack])
    return packs


if __name__ == "__main__":
    run_main(main)
