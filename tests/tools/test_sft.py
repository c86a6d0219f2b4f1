"""Tests of tools/sft.py."""

from configurator import UserError, load_config

import json
import math
import re
import shutil
from dataclasses import replace

import pytest
import torch
from runs import read_lines
from safetensors.torch import load_file
from shared_fixtures import config_file, small_model, small_sft_config

import eval as evaluation
import model
from packing import pack
from support.run_folder import save_config
from tools import demonstrations, sft
from tools.sft_config import SftConfig

pytestmark = pytest.mark.slow

FROZENLAKE = config_file("frozenlake_ppo")
TINY_BANDIT = [config_file("bandit_ppo"), config_file("tiny")]


def weights_of(folder):
    return list(model.load_model(str(folder))[0].parameters())


# ---------- imitation and fine-tuning


def loss_of(policy, demos):
    with torch.no_grad():
        return -policy(pack(demos), 1.0)[0].mean().item()


@pytest.mark.parametrize("muon", [0.02, 0.0])
def test_imitation_lowers_the_loss(chat, muon):
    config = small_sft_config(sft_lr=5e-2, sft_muon_lr=muon, sft_batch_size=8, sft_steps=15)
    demos = [demonstrations.demonstration(config, chat, i) for i in range(8)]
    policy = model.Policy(small_model())
    before = loss_of(policy, demos)
    # With random weights, the distribution over the vocabulary is nearly uniform.
    assert before == pytest.approx(math.log(768), abs=0.2)
    sft.imitate(policy, lambda _: [demos], config)
    assert loss_of(policy, demos) < before / 2


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_muon_is_that_of_torch_but_for_its_precision(decay):
    torch.manual_seed(0)
    for shape in ((8, 32), (48, 12), (16, 16)):
        start = torch.full(shape, 0.5)
        ours = torch.nn.Parameter(start.clone())
        theirs = torch.nn.Parameter(start.clone())
        optimizers = {
            ours: sft.Muon([ours], 0.1, decay),
            theirs: torch.optim.Muon([theirs], 0.1, weight_decay=decay),
        }
        for _ in range(3):
            gradient = torch.randn(shape)
            for weight, optimizer in optimizers.items():
                weight.grad = gradient.clone()
                optimizer.step()
        assert (theirs - start).abs().max() > 0.05
        # Torch's Muon computes in bfloat16, with 7 bits of mantissa. sft.Muon computes in float32,
        # so the weights of the two optimizers agree only roughly.
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.01)


def test_every_weight_has_one_optimizer(random_model):
    policy = model.Policy(random_model)
    adam, muon = sft.make_optimizers(policy, small_sft_config(sft_lr=0.1, sft_muon_lr=0.2))
    names = {id(weight): name for name, weight in policy.named_parameters()}
    by_muon = [names.pop(id(p)) for group in muon.param_groups for p in group["params"]]
    by_adam = [names.pop(id(p)) for group in adam.param_groups for p in group["params"]]
    assert names == {}
    assert len(by_muon) == 2 * 7
    assert all(re.search(r"layers\.\d.+_proj\.weight", name) for name in by_muon)
    assert any("embed_tokens" in name for name in by_adam)
    assert any("bias" in name for name in by_adam)
    assert (adam.param_groups[0]["lr"], muon.param_groups[0]["lr"]) == (0.1, 0.2)
    (only,) = sft.make_optimizers(policy, small_sft_config(sft_lr=0.1, sft_muon_lr=0.0))
    assert len(only.param_groups[0]["params"]) == len(list(policy.parameters()))


def test_both_optimizers_decay_weights(random_model):
    """With gradients of 0, a step multiplies a weight by 1 - lr * weight_decay."""
    policy = model.Policy(random_model)
    config = small_sft_config(sft_lr=0.1, sft_muon_lr=0.2, weight_decay=0.5)
    matrix = random_model.model.layers[0].mlp.up_proj.weight
    norm = random_model.model.norm.weight
    before = [weight.detach().clone() for weight in (matrix, norm)]
    for weight in policy.parameters():
        weight.grad = torch.zeros_like(weight)
    for optimizer in sft.make_optimizers(policy, config):
        optimizer.step()
    torch.testing.assert_close(matrix.detach(), 0.9 * before[0])
    torch.testing.assert_close(norm.detach(), 0.95 * before[1])


def test_sft_computes_in_the_type_of_the_settings(random_model, chat, monkeypatch):
    seen = []
    scorer = model.chunked_logprobs

    def note_type(states, *arguments, **options):
        seen.append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))
        return scorer(states, *arguments, **options)

    monkeypatch.setattr(model, "chunked_logprobs", note_type)
    config = small_sft_config(sft_steps=1, sft_lr=1e-3)
    demos = [demonstrations.demonstration(config, chat, 0)]
    for dtype in ("auto", "float32", "bfloat16"):
        policy = model.Policy(random_model)
        sft.imitate(policy, lambda _: [demos], replace(config, dtype=dtype))
        assert {weight.dtype for weight in policy.parameters()} == {torch.float32}
    assert seen == [False, False, torch.bfloat16]


def test_a_log_has_twenty_lines(capsys, monkeypatch):
    seconds = iter(range(0, 6000, 60))
    monkeypatch.setattr(sft.time, "perf_counter", lambda: next(seconds))
    lines = sft.Lines(10, 50)
    for finished in range(11, 51):
        lines.write(finished, 0.5)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 14  # after 12, 15, ..., 48 and 50 steps
    assert shown[0] == "  12/50 loss 0.500 | 19 min left"  # 38 steps are left, at 2 per minute
    assert shown[-1] == "  50/50 loss 0.500"


def test_a_loss_that_is_not_finite_stops_imitation(random_model, chat):
    config = small_sft_config(sft_lr=1e-2, sft_batch_size=2, sft_steps=3)
    demos = [demonstrations.demonstration(config, chat, i) for i in range(2)]
    torch.nn.init.constant_(random_model.model.norm.weight, math.nan)
    with pytest.raises(ValueError, match="the loss is nan at step 0; lower sft_lr or sft_muon_lr"):
        sft.imitate(model.Policy(random_model), lambda _: [demos], config)


def test_fine_tuning(trained_folder, tmp_path, capsys):
    settings = dict(
        sft_steps=3,
        sft_batch_size=4,
        sft_lr=1e-2,
        sft_muon_lr=0.02,
        model=trained_folder,
        num_threads=1,
        device="cpu",
        eval_size=4,
        eval_every=0,
        max_response_tokens=40,
        max_context_tokens=900,
    )
    options = [f"--{key}={value}" for key, value in settings.items()]
    for name in "ab":
        sft.main([FROZENLAKE, *options, f"--out_dir={tmp_path / name}"])
    assert f"wrote {tmp_path / 'b'}/: curve.jsonl, and model" in capsys.readouterr().out
    before = weights_of(trained_folder)
    first, second = weights_of(tmp_path / "a/model"), weights_of(tmp_path / "b/model")
    assert all(not torch.equal(*pair) for pair in zip(before, first, strict=True))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    (row,) = read_lines(tmp_path / "a/curve.jsonl")
    measured = {"success_T0.5", "success_T1", "valid_frac_T1", "thought_true_frac_T1"}
    assert set(row) >= measured | {"entropy_T1", "loss"}
    assert row["step"] == 3 and 0 < row["loss"] < 10
    assert 0 < row["response_tokens"] < row["tokens"] and row["cpu_s"] > 0


def test_fine_tuning_of_lora(trained_folder, tmp_path, capsys):
    settings = dict(
        sft_steps=2,
        sft_batch_size=2,
        sft_lr=1e-2,
        lora_rank=2,
        model=trained_folder,
        num_threads=1,
        device="cpu",
        eval_size=2,
        save_every=1,
        max_response_tokens=40,
        max_context_tokens=900,
        out_dir=tmp_path / "run",
    )
    sft.main([FROZENLAKE, *[f"--{key}={value}" for key, value in settings.items()]])
    # With lora_rank=2, a matrix of shape (out, in) gets the adapters A of shape (2, in) and B of
    # shape (out, 2). Together, A and B have 2 * (out + in) numbers.
    start = model.load_model(str(trained_folder))[0]
    sizes = [sum(p.shape) for n, p in start.named_parameters() if n.endswith("_proj.weight")]
    num_all = sum(p.numel() for p in start.parameters()) + 2 * sum(sizes)
    line = f"policy: {2 * sum(sizes):,} of {num_all:,} parameters are trained"
    out = capsys.readouterr().out
    assert line in out and "   1/2 loss " in out
    trained = dict(model.load_model(str(tmp_path / "run/model"))[0].named_parameters())
    for name, weight in start.named_parameters():
        changed = not torch.equal(weight, trained[name])
        assert changed == name.endswith("_proj.weight"), name
    assert (tmp_path / "run/model/adapter/adapter_model.safetensors").is_file()
    (file,) = (tmp_path / "run/checkpoint-000002/state").glob("*.safetensors")
    saved = [name for name in load_file(file) if name.startswith("weights.")]
    assert len(saved) == 2 * len(sizes) and all(".lora_" in name for name in saved)
    shutil.rmtree(tmp_path / "run/model")
    sft.main([FROZENLAKE, *[f"--{key}={value}" for key, value in settings.items()]])
    again = dict(model.load_model(str(tmp_path / "run/model"))[0].named_parameters())
    assert all(torch.equal(weight, trained[name]) for name, weight in again.items())


def test_demonstrations_of_a_step_are_dealt_out_to_the_ranks(chat, monkeypatch):
    config = small_sft_config(model="some", sft_batch_size=5)
    monkeypatch.setattr(sft.parallel, "world_size", lambda: 2)
    dealt = []
    for rank in (0, 1):
        monkeypatch.setattr(sft.parallel, "rank", lambda rank=rank: rank)
        (part,) = sft.packs_of(config, chat, 3)
        dealt.append(sorted(trajectory.seed[-1] for trajectory in part))
    assert dealt == [[15, 17, 19], [16, 18]]


# ---------- files of demonstrations


def first_two_packs(config, chat):
    found = []
    for step in (0, 1):
        (part,) = sft.packs_of(config, chat, step)
        found += part
    return found


@pytest.mark.parametrize("context_turns", [0, 2])
def test_demonstrations_of_a_file_are_the_same_tokens(
    trained_folder, chat, tmp_path, capsys, context_turns
):
    file = tmp_path / "demos.jsonl"
    words = ["--env=quest:w=2,o=2,q=2", f"--model={trained_folder}", "--device=cpu"]
    words += ["--sft_steps=2", "--sft_batch_size=2", f"--context_turns={context_turns}"]
    sft.main([*words, f"--out_dir={tmp_path / 'run'}", f"--export={file}"])
    assert capsys.readouterr().out.endswith(f"wrote {file}: 4 demonstrations\n")
    assert not (tmp_path / "run").exists()
    config = load_config(words, kind=SftConfig)[0]
    made = first_two_packs(config, chat)
    config = replace(config, sft_file=str(file))
    read = first_two_packs(config, chat)
    for one, other in zip(made, read, strict=True):
        assert one.ids == other.ids
        assert one.response_mask == other.response_mask
        assert (one.seed, one.status, one.system) == (other.seed, other.status, other.system)
    few = replace(config, sft_demos=3, sft_file="")
    shown = [sorted({t.seed[-1] for t in sft.packs_of(few, chat, step)[0]}) for step in (0, 1)]
    assert shown == [[0, 1], [0, 2]]
    # Steps 0 and 1 take the four games of the file, so step 2 takes the games of step 0 again.
    assert sft.packs_of(config, chat, 2)[0][0].ids in [t.ids for t in read[:2]]


LONG_REPLY = '"turns": [{"observation": "", "response": "0123456789abc"}]'


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"seed": [1]}', "bad.jsonl:1 is no demonstration .KeyError: 'status'"),
        ("quest", "bad.jsonl:1 is no demonstration .JSONDecodeError"),
        (
            '{"seed": [1], "status": "", "system": "", "turns": []}',
            "bad.jsonl:1 is no demonstration .LookupError: it has no turns",
        ),
        ("", "bad.jsonl holds no demonstrations; python -m tools.sft --export="),
        (
            '{"seed": [1], "status": "", "system": "", ' + LONG_REPLY + "}",
            r"bad.jsonl:1 is no demonstration .*has a reply of \d+ tokens "
            "and max_response_tokens is 12; raise it",
        ),
    ],
)
def test_a_file_without_demonstrations(text, message, tmp_path, chat):
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        demonstrations.read_demonstrations(str(file), chat, small_sft_config())


def game_of(status, **keys):
    turns = [{"observation": "", "response": "0123"}]
    return {"seed": [1], "status": status, "system": "", "turns": turns, **keys}


def read_games(folder, chat, *games, **changes):
    file = folder / f"games{len(list(folder.iterdir()))}.jsonl"
    file.write_text("".join(json.dumps(game) + "\n" for game in games))
    config = small_sft_config(max_response_tokens=40, **changes)
    read = demonstrations.read_demonstrations(str(file), chat, config)
    return [game.status for game in read], file


def test_lost_games_are_counted_and_left_out_if_wanted(tmp_path, chat, capsys):
    games = [game_of("success"), game_of("failure"), game_of("success", split="train")]
    statuses, file = read_games(tmp_path, chat, *games)
    assert statuses == ["success", "failure", "success"]
    use = "they are imitated, too; --sft_lost=False leaves them out"
    assert capsys.readouterr().out == f"1 of 3 games of {file} were not won; {use}\n"
    statuses, file = read_games(tmp_path, chat, *games, sft_lost=False)
    assert statuses == ["success", "success"]
    said = f"1 of 3 games of {file} were not won; they are left out\n"
    assert capsys.readouterr().out == said
    read_games(tmp_path, chat, games[0])
    assert capsys.readouterr().out == ""
    with pytest.raises(UserError, match="none of the 1 games of .* was won, and sft_lost is Fal"):
        read_games(tmp_path, chat, games[1], sft_lost=False)


@pytest.mark.parametrize("keys", [{"split": "eval"}, {"split": "heldout"}, {"policy": "greedy"}])
def test_games_on_evaluation_prompts_are_refused_unless_wanted(keys, tmp_path, chat):
    games = [game_of("success"), game_of("success", **keys)]
    with pytest.raises(UserError, match=r"games0.jsonl:2 is a game on an evaluation prompt, .*"):
        read_games(tmp_path, chat, *games)
    statuses, _ = read_games(tmp_path, chat, *games, sft_eval_games=True)
    assert len(statuses) == 2
    training = game_of("success", **{**keys, "split": "train"})
    assert read_games(tmp_path, chat, training)[0] == ["success"]


def test_a_record_of_an_evaluation_is_refused(tmp_path, chat):
    file = tmp_path / "games.jsonl"
    settings = [*TINY_BANDIT, "--player=random", "--eval_size=2"]
    evaluation.main([*settings, f"--jsonl={file}"])
    assert [record["split"] for record in read_lines(file)][:2] == ["eval", "eval"]
    with pytest.raises(UserError, match="games.jsonl:1 is a game on an evaluation prompt"):
        sft.main([*TINY_BANDIT, "--sft_steps=1", f"--sft_file={file}", f"--out_dir={tmp_path}/o"])
    assert not (tmp_path / "o").exists()


# ---------- mistakes of the user


@pytest.mark.parametrize(
    "wrong, message",
    [
        ("--sft_file=/nowhere.jsonl", "is not a file"),
        ("--max_response_tokens=2", "raise it"),
    ],
)
def test_wrong_demonstrations_leave_no_folder(tmp_path, wrong, message):
    options = [*TINY_BANDIT, "--sft_steps=1", f"--out_dir={tmp_path}/out"]
    with pytest.raises((OSError, ValueError), match=message):
        sft.main([*options, wrong])
    assert not (tmp_path / "out").exists()


def test_the_folder_of_another_run_is_refused(tmp_path):
    options = [*TINY_BANDIT, "--sft_steps=1", f"--out_dir={tmp_path}/out"]
    save_config(load_config(options, kind=SftConfig)[0], {}, tmp_path / "out")
    message = "holds a run with other settings .*; give another --out_dir$"
    with pytest.raises(ValueError, match=message):
        sft.main([*options, "--sft_lr=0.5"])


@pytest.mark.parametrize("frac, words", [(0.03, "only 3 % of the replies are valid"), (0.5, "")])
def test_few_valid_replies_are_warned_of(frac, words):
    config = small_sft_config(sft_steps=60, eval_temperature=0.5)
    measured = {"valid_frac_T0.5": frac, "valid_frac_T1": 0.9}
    sentence = sft.few_valid_replies(config, measured, {})
    assert sentence.startswith(words) and bool(words) == bool(sentence)
    assert not words or "than 60 or a larger --sft_lr" in sentence and "tiny_new_game" in sentence
    given = {"think": "config/recipes/tiny_new_game.py"}
    assert "tiny_new_game" not in sft.few_valid_replies(config, measured, given)


def test_the_next_command_keeps_the_settings_that_rl_shares():
    argv = ["config/a.py", "--sft_steps=9", "--env=a b.py:C", "--model=tiny", "--out_dir=out/x"]
    config = small_sft_config(out_dir="out/x")
    shared = "config/a.py '--env=a b.py:C' --model=out/x/model"
    assert sft.rl_command(argv, config) == f"python train.py {shared}"


def test_sft_without_steps_is_refused():
    with pytest.raises(ValueError, match="nothing to do: sft_steps is 0"):
        sft.main([FROZENLAKE])


def test_wandb_is_refused():
    with pytest.raises(ValueError, match="does not log to W&B; leave --wandb out"):
        sft.main([FROZENLAKE, "--sft_steps=2", "--wandb=mine"])


@pytest.mark.parametrize("env", ["bandit + sokoban", "bandit @5 > sokoban"])
def test_one_environment_at_a_time(env, tmp_path):
    message = "supervised learning takes one environment, got env='bandit"
    with pytest.raises(ValueError, match=message):
        sft.main([f"--env={env}", "--sft_steps=2", f"--export={tmp_path}/file"])
    assert not list(tmp_path.iterdir())


def test_a_step_needs_work_for_every_process(monkeypatch, tmp_path):
    cpu = torch.device("cpu")
    monkeypatch.setattr(sft.parallel, "world_size", lambda: 3)
    monkeypatch.setattr(sft.parallel, "init_distributed", lambda _: cpu)
    message = r"sft_batch_size \(2\) is less than the number of processes \(3\)"
    with pytest.raises(ValueError, match=message):
        sft.main([*TINY_BANDIT, "--sft_steps=1", "--sft_batch_size=2", f"--out_dir={tmp_path}/o"])
