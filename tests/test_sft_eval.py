"""
Tests of sft.py and eval.py: demonstrations replayed, the warm start and its cache, intervals by hand, players, reports.

    python -m pytest -q tests/test_sft_eval.py
"""

from configurator import load_config

import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from conftest import small_config
from transformers import AutoModelForCausalLM

import eval as evaluation
import model
from dialogue import TurnRecord
from engine import make_engine
from eval import play_reference
from packing import pack
from rollout import Trajectory, Turn, make_episode, summarize
from support.records import trajectory_record, write_jsonl
from support.run_folder import save_config
from support.scores import Scores, score_table
from support.statistics import wilson_interval
from tools import demonstrations, drills, probes, sft, tiny_model
from tools.drills import DrillRecord

ROOT = sft.Path(sft.__file__).parent.parent
EXPERIMENTS = ["frozenlake_ppo", "sokoban_ppo", "bandit_ppo"]


def tiny_config(experiment, **changes):
    return replace(
        load_config([f"{ROOT}/config/{experiment}.py", f"{ROOT}/config/tiny.py"])[0], **changes
    )


# ---------- imitation and fine-tuning


def loss_of(policy, demos):
    with torch.no_grad():
        return -policy(pack(demos), 1.0)[0].mean().item()


@pytest.mark.parametrize("muon", [0.02, 0.0])
def test_imitation_lowers_the_loss(small_tokenizer, chat, muon):
    config = small_config(sft_lr=5e-2, sft_muon_lr=muon, sft_batch_size=8)
    demos = [demonstrations.demonstration(config, chat, i) for i in range(8)]
    policy = model.Policy(tiny_model.build_tiny(0, "2x64")[0])
    before = loss_of(policy, demos)
    assert before == pytest.approx(
        math.log(768), abs=0.2
    )  # random weights: nearly uniform over the vocabulary
    sft.imitate(policy, lambda _: [demos], replace(config, sft_steps=15))
    after = loss_of(policy, demos)
    assert after < before / 2


def test_muon_is_that_of_torch_but_for_its_precision():
    torch.manual_seed(0)
    for shape in ((8, 32), (48, 12), (16, 16)):
        ours, theirs = (torch.nn.Parameter(torch.zeros(shape)) for _ in range(2))
        optimizers = sft.Muon([ours], 0.1), torch.optim.Muon([theirs], 0.1, weight_decay=0.0)
        for _ in range(3):
            gradient = torch.randn(shape)
            for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
                weight.grad = gradient.clone()
                optimizer.step()
        assert theirs.abs().max() > 0.05
        torch.testing.assert_close(
            ours, theirs, rtol=0.05, atol=0.01
        )  # theirs has 8 bits of mantissa


def test_every_weight_has_one_optimizer(random_model):
    policy = model.Policy(random_model)
    adam, muon = sft.make_optimizers(policy, small_config(sft_lr=0.1, sft_muon_lr=0.2))
    names = {id(p): name for name, p in policy.named_parameters()}
    by_muon = [names.pop(id(p)) for group in muon.param_groups for p in group["params"]]
    by_adam = [names.pop(id(p)) for group in adam.param_groups for p in group["params"]]
    assert names == {}
    assert len(by_muon) == 2 * 7 and all(
        re.search(r"layers\.\d.+_proj\.weight", name) for name in by_muon
    )
    assert any("embed_tokens" in name for name in by_adam) and any(
        "bias" in name for name in by_adam
    )
    assert (adam.param_groups[0]["lr"], muon.param_groups[0]["lr"]) == (0.1, 0.2)
    (only,) = sft.make_optimizers(policy, small_config(sft_lr=0.1, sft_muon_lr=0.0))
    assert len(only.param_groups[0]["params"]) == len(list(policy.parameters()))


def test_a_loss_that_is_not_finite_stops_imitation(random_model, chat):
    config = small_config(sft_lr=1e-2, sft_batch_size=2)
    demos = [demonstrations.demonstration(config, chat, i) for i in range(2)]
    torch.nn.init.constant_(random_model.model.norm.weight, math.nan)
    with pytest.raises(ValueError, match="the loss is nan at step 0; lower sft_lr or sft_muon_lr"):
        sft.imitate(model.Policy(random_model), lambda _: [demos], replace(config, sft_steps=3))


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
    arguments = [
        f"{ROOT}/config/frozenlake_ppo.py",
        *(f"--{key}={value}" for key, value in settings.items()),
    ]
    for name in "ab":
        sft.main([*arguments, f"--out_dir={tmp_path / name}"])
    assert f"wrote {tmp_path / 'b'}/: curve.jsonl, and model" in capsys.readouterr().out
    before, a, b = (
        model.load_model(str(f))[0]
        for f in (trained_folder, tmp_path / "a/model", tmp_path / "b/model")
    )
    assert all(
        not torch.equal(x, y) for x, y in zip(before.parameters(), a.parameters(), strict=True)
    )
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    (row,) = map(json.loads, (tmp_path / "a/curve.jsonl").read_text().splitlines())
    assert set(row) >= {
        "success_T0.5",
        "success_T1",
        "valid_frac_T1",
        "thought_true_frac_T1",
        "entropy_T1",
        "loss",
    }
    assert row["step"] == 3 and 0 < row["loss"] < 10
    assert 0 < row["response_tokens"] < row["tokens"] and row["cpu_s"] > 0


def test_demonstrations_of_a_step_are_dealt_out_to_the_ranks(chat, monkeypatch):
    config = small_config(model="some", sft_batch_size=5)
    monkeypatch.setattr(sft.parallel, "world_size", lambda: 2)
    dealt = []
    for rank in (0, 1):
        monkeypatch.setattr(sft.parallel, "rank", lambda rank=rank: rank)
        (part,) = sft.packs_of(config, chat, 3)
        dealt.append(sorted(t.seed[-1] for t in part))
    assert dealt == [[15, 17, 19], [16, 18]]


QUEST = "quest:w=2,o=2,q=2"


@pytest.mark.parametrize("context_turns", [0, 2])
def test_demonstrations_of_a_file_are_the_same_tokens(
    trained_folder, chat, tmp_path, capsys, context_turns
):
    file = tmp_path / "demos.jsonl"
    words = [
        "--sft_steps=2",
        "--sft_batch_size=2",
        f"--model={trained_folder}",
        f"--env={QUEST}",
        "--device=cpu",
    ]
    words += [f"--context_turns={context_turns}"]
    sft.main([*words, f"--out_dir={tmp_path / 'run'}", f"--export={file}"])
    assert (
        capsys.readouterr().out.endswith(f"wrote {file}: 4 demonstrations\n")
        and not (tmp_path / "run").exists()
    )
    config = load_config(words)[0]
    made = [t for step in (0, 1) for (part,) in [sft.packs_of(config, chat, step)] for t in part]
    config = replace(config, sft_file=str(file))
    read = [t for step in (0, 1) for (part,) in [sft.packs_of(config, chat, step)] for t in part]
    assert [t.ids for t in made] == [t.ids for t in read]
    assert [t.response_mask for t in made] == [t.response_mask for t in read]
    assert [(t.seed, t.status, t.system) for t in made] == [
        (t.seed, t.status, t.system) for t in read
    ]
    few = replace(config, sft_demos=3, sft_file="")
    shown = [sorted({t.seed[-1] for t in sft.packs_of(few, chat, step)[0]}) for step in (0, 1)]
    assert shown == [[0, 1], [0, 2]]
    assert sft.packs_of(config, chat, 2)[0][0].ids in [t.ids for t in read[:2]]  # over again


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
            '{"seed": [1], "status": "", "system": "", "turns": [{"observation": "", "response": "0123456789abc"}]}',
            r"bad.jsonl:1 is no demonstration .*has a reply of \d+ tokens and max_response_tokens is 12; raise it",
        ),
    ],
)
def test_a_file_without_demonstrations(text, message, tmp_path, chat):
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        demonstrations.read_demonstrations(str(file), chat, small_config())


def test_wrong_demonstrations_leave_no_folder(tmp_path, chat):
    options = [
        f"{ROOT}/config/bandit_ppo.py",
        f"{ROOT}/config/tiny.py",
        "--sft_steps=1",
        f"--out_dir={tmp_path}/out",
    ]
    for wrong, message in (
        ("--sft_file=/nowhere.jsonl", "is not a file"),
        ("--max_response_tokens=2", "raise it"),
    ):
        with pytest.raises((OSError, ValueError), match=message):
            sft.main([*options, wrong])
        assert not (tmp_path / "out").exists()
    save_config(load_config(options)[0], {}, tmp_path / "out")
    with pytest.raises(ValueError, match="holds a run with other settings .*; give another --out_dir$"):
        sft.main([*options, "--sft_lr=0.5"])


def test_sft_without_steps_is_refused():
    with pytest.raises(ValueError, match="nothing to do: sft_steps is 0"):
        sft.main([f"{ROOT}/config/frozenlake_ppo.py"])


@pytest.mark.parametrize("env", ["bandit + sokoban", "bandit @5 > sokoban"])
def test_one_environment_at_a_time(env, tmp_path):
    with pytest.raises(
        ValueError, match="supervised learning takes one environment, got env='bandit"
    ):
        sft.main([f"--env={env}", "--sft_steps=2", f"--export={tmp_path}/file"])
    assert not list(tmp_path.iterdir())


def test_a_step_needs_work_for_every_process(monkeypatch, tmp_path):
    monkeypatch.setattr(sft.parallel, "world_size", lambda: 3)
    monkeypatch.setattr(sft.parallel, "init_distributed", lambda _: (torch.device("cpu"), torch.float32))
    with pytest.raises(
        ValueError, match=r"sft_batch_size \(2\) is less than the number of processes \(3\)"
    ):
        sft.main([f"{ROOT}/config/base.py", f"--out_dir={tmp_path}/out"])


# ---------- pretraining


PRETRAINING = [
    f"{ROOT}/config/base.py",
    "--tiny_shape=2x64",
    "--sft_steps=6",
    "--sft_batch_size=2",
    "--micro_batch_tokens=1024",
    "--save_every=2",
    "--eval_every=3",
]


def test_pretraining_continues_as_if_it_had_not_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(sft, "base_report", lambda *_: {})
    sft.main([*PRETRAINING, f"--out_dir={tmp_path}/whole"])

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sft, "base_report", stop)  # after three steps, of which two are saved
        sft.main([*PRETRAINING, f"--out_dir={tmp_path}/cut"])
    assert torch.load(tmp_path / "cut/state.pt", weights_only=True)["step"] == 2
    with pytest.raises(ValueError, match="holds a run with other settings .seed was 0 and is now 1"):
        sft.main([*PRETRAINING, "--seed=1", f"--out_dir={tmp_path}/cut"])
    sft.main([*PRETRAINING, f"--out_dir={tmp_path}/cut"])
    (a, _), (b, _) = (model.load_model(str(tmp_path / name / "model")) for name in ("whole", "cut"))
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    whole, cut = (
        [json.loads(line) for line in (tmp_path / name / "curve.jsonl").open()]
        for name in ("whole", "cut")
    )
    assert [row["step"] for row in whole] == [row["step"] for row in cut] == [3, 6]
    assert whole[0]["loss"] > whole[1]["loss"]
    assert [(row["tokens"], row["loss"]) for row in whole] == [
        (row["tokens"], row["loss"]) for row in cut
    ]


def test_two_processes_train_like_one(tmp_path):
    code = "from tools import sft; sft.base_report = lambda *_: {}; sft.run_main(sft.main)"  # probing takes minutes
    for ranks in (1, 2):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc_per_node={ranks}",
            "--no_python",
            sys.executable,
            "-c",
            code,
            *PRETRAINING,
        ]
        done = subprocess.run(
            [*command, f"--out_dir={tmp_path}/{ranks}"], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (torch.load(tmp_path / name / "state.pt", weights_only=True) for name in "12")
    assert one["totals"]["tokens"] == two["totals"]["tokens"]
    assert one["totals"]["losses"] == pytest.approx(two["totals"]["losses"], abs=1e-5)
    start = model.Policy(tiny_model.build_tiny(0, "2x64")[0]).state_dict()
    assert all((weight - start[name]).abs().max() > 1e-3 for name, weight in one["policy"].items())
    for name, weight in one["policy"].items():
        torch.testing.assert_close(weight, two["policy"][name], rtol=1e-4, atol=1e-4)


def test_reading_is_scored_by_kind():
    def turn(question, truth, answer):
        return Turn([], [], [], record=DrillRecord([], question=question, truth=truth, answer=answer))

    turns = [
        turn(
            "Where",
            "Player (1,1). Goal (3,2). Holes (1,3) (2,3).",
            "Player (1,1). Goal (3,1). Holes (1,3) (2,3).",
        ),
        turn("Where", "Player (1,1). Goal (3,2). Holes none.", "Player (1,1)"),
        turn("Row 1", "wall you floor wall", "wall you wall wall"),
        turn("Column 2", "wall box", ""),
        turn("Up", "P_\n__", "P_\n__"),
    ]
    scores = drills.score_reading([Trajectory((0,), 0, turns)])
    # cells: 3 of 4 and 0 of 2; walls: 2 of 2 and 0 of 1
    assert scores == {
        "cell": 0.5,
        "goal": 0.0,
        "holes": 0.5,
        "next_board": 1.0,
        "player": 1.0,
        "wall": 0.6667,
    }


def test_a_probe_of_reading_asks_about_heldout_boards(trained_model, chat):
    config = small_config(
        eval_size=3, observation="grid", reward_density="dense"
    )  # answers are paid one by one
    scores = probes.probe_reading(trained_model, chat, config)
    assert set(scores) == {"cell", "goal", "holes", "next_board", "player"}


# ---------- reference players


def test_players_rank_as_they_should():
    config = evaluation.reference_settings(tiny_config("frozenlake_ppo", eval_size=64))[
        "random, closed loop"
    ]
    assert (config.max_turns, config.actions_per_turn, config.actions_per_traj) == (10, 1, 10)
    rates = {}
    for player in evaluation.PLAYERS:
        played = play_reference(config, player)
        assert [t.seed for t in played] == [(i,) for i in range(64)]
        assert all(
            turn.record.format_ok and turn.record.num_actions == 1
            for t in played
            for turn in t.turns
        )
        assert {t.status for t in played} <= {"success", "failure", "out_of_turns"}
        assert all(sum(turn.record.num_actions for turn in t.turns) <= 10 for t in played)
        rates[player] = summarize(played)["success"]
    assert (
        rates["optimal"] >= rates["greedy"] >= rates["random"]
        and rates["optimal"] > rates["random"] + 0.3
    )


def test_players_see_the_evaluation_instances_and_are_repeatable():
    config = tiny_config("frozenlake_ppo", eval_size=6)
    episode = make_episode(config)
    for split in ("eval", "heldout"):
        config = replace(config, eval_split=split)
        played = play_reference(config, "random")
        assert [t.turns[0].observation for t in played] == [
            episode.reset((i,), split=split)[1] for i in range(6)
        ]
        again = play_reference(config, "random")
        assert [trajectory_record(t) for t in again] == [trajectory_record(t) for t in played]


def test_reference_rows():
    config = tiny_config("frozenlake_ppo", eval_size=2)
    rows = evaluation.reference_rows(config)
    assert list(rows) == [
        "random, closed loop",
        "greedy, closed loop",
        "optimal, closed loop",
        "optimal, 1 a turn",
        "optimal, 2 a turn",
        "optimal, 5 a turn",
    ]
    most = [
        max(turn.record.num_actions for t in rows[f"optimal, {k} a turn"].trajectories for turn in t.turns)
        for k in (1, 2, 5)
    ]
    assert most[0] == 1 and most[1] == 2 < most[2] <= 5
    assert all(len(t.turns) <= 5 for k in (1, 2, 5) for t in rows[f"optimal, {k} a turn"].trajectories)
    assert list(evaluation.reference_rows(tiny_config("bandit_ppo", eval_size=2))) == [
        "random, closed loop",
        "greedy, closed loop",
        "optimal, closed loop",
        "optimal, 1 a turn",
    ]


# ---------- evaluation of a model


def test_evaluate_a_model(trained_model, trained_folder, chat):
    config = small_config()
    engine = make_engine(config, trained_model, chat)
    metrics, played = evaluation.evaluate(config, engine, chat, model.Policy(trained_model))
    assert [(t.seed, t.member) for t in played] == [((i,), 0) for i in range(6)]
    episode = make_episode(config)
    assert [t.turns[0].observation for t in played] == [
        episode.reset((i,), split="eval")[1] for i in range(6)
    ]
    reference, entropies = AutoModelForCausalLM.from_pretrained(trained_folder), []
    for t in played:
        with torch.no_grad():
            logits = reference(input_ids=torch.tensor([t.ids])).logits[0, :-1]
        distribution = torch.distributions.Categorical(logits=logits / 0.5)
        entropies.append(distribution.entropy()[torch.tensor(t.response_mask)[1:]])
    assert metrics == pytest.approx(
        summarize(played) | {"entropy": torch.cat(entropies).mean().item()}, rel=1e-4
    )
    assert metrics["entropy"] > 0.01
    again, _ = evaluation.evaluate(config, engine, chat, model.Policy(trained_model))
    assert again == metrics
    config = replace(config, eval_split="heldout")
    other, _ = evaluation.evaluate(config, engine, chat, model.Policy(trained_model))
    assert other != metrics


# ---------- reports


def played_by_hand():
    def turn(text, reward, num_actions):
        record = TurnRecord(
            actions=["Up"] * num_actions,
            num_actions=num_actions,
            format_ok=num_actions > 0,
            effective=0.5,
        )
        return Turn([1], [2, 3, 4], [-1.0] * 3, reward, text, f"before {text}", record)

    success = Trajectory(
        (0,), 0, [turn("first", -0.1, 0), turn("second", 1.0, 2)], "success", "rules"
    )
    return [success, Trajectory((1,), 0, [turn("third", -0.25, 1)], "failure", "rules")]


def test_a_record_has_every_reward_at_the_turn_that_earned_it(tokenizer):
    half = tokenizer("\u00e9")["input_ids"][:1]  # the first of the two bytes of e with an accent
    played = played_by_hand()[0]
    played.turns[0].response_ids = [*half, *tokenizer("a<think>")["input_ids"]]
    record = trajectory_record(played, tokenizer)
    tokens = [turn.pop("tokens") for turn in record["turns"]]
    assert tokens[0] == ["\ufffd", "a", "<think>"] and [len(part) for part in tokens] == [3, 3]
    assert record == {
        "env": "",
        "seed": (0,),
        "member": 0,
        "status": "success",
        "success": True,
        "score": 0.9,
        "system": "rules",
        "turns": [
            {
                "observation": "before first",
                "response": "first",
                "reward": -0.1,
                "surprise": [1.0] * 3,
                "actions": [],
                "num_actions": 0,
                "format_ok": False,
                "effective": 0.5,
                "statements_true": 0,
                "statements_checked": 0,
                "env_reward": 0.0,
            },
            {
                "observation": "before second",
                "response": "second",
                "reward": 1.0,
                "surprise": [1.0] * 3,
                "actions": ["Up", "Up"],
                "num_actions": 2,
                "format_ok": True,
                "effective": 0.5,
                "statements_true": 0,
                "statements_checked": 0,
                "env_reward": 0.0,
            },
        ],
    }


def test_records_of_real_play_add_up(tmp_path):
    """Sokoban pays in many turns; each reward must be what the environment pays for that turn's own actions."""
    config = tiny_config("sokoban_ppo", eval_size=3)
    played = play_reference(config, "optimal")
    write_jsonl(tmp_path / "played.jsonl", {"optimal": Scores(summarize(played), played)})
    records = [json.loads(line) for line in (tmp_path / "played.jsonl").read_text().splitlines()]
    assert len(records) == 3
    for index, record in enumerate(records):
        episode = make_episode(config)
        episode.reset((index,), split="eval")
        for turn in record["turns"]:
            assert episode.step(turn["response"]).reward == pytest.approx(turn["reward"])
        assert record["score"] == pytest.approx(sum(turn["reward"] for turn in record["turns"]))
        assert record["success"] and record["turns"][-1]["reward"] > 9


def test_table_by_hand():
    played = played_by_hand()
    text = score_table(
        {
            "a player": Scores(summarize(played), played),
            "us": Scores(summarize(played) | {"entropy": 0.126}, played),
        }
    )
    # 1 of 2: Wilson (0.0945, 0.9055); reward (0.9 - 0.25) / 2 = 0.325; turns 3/2; actions 3/2; valid 2/3; tokens 9/2
    assert text.split("\n") == [
        "|          | success % [95 %] | reward | turns | actions | valid | effective | entropy | tokens |",
        "| ---      | ---              | ---    | ---   | ---     | ---   | ---       | ---     | ---    |",
        "| a player | 50.0 [9.5, 90.5] | 0.33   | 1.50  | 1.50    | 0.67  | 0.50      | -       | 4.50   |",
        "| us       | 50.0 [9.5, 90.5] | 0.33   | 1.50  | 1.50    | 0.67  | 0.50      | 0.13    | 4.50   |",
    ]


def test_a_measured_zero_is_a_number():
    played = [
        replace(t, turns=[replace(turn, reward=0.0) for turn in t.turns]) for t in played_by_hand()
    ]
    (line,) = score_table({"us": Scores(summarize(played), played)}).split("\n")[2:]
    assert line.split("|")[3].strip() == "0.00"


def run_folder(tmp_path, trained_folder):
    """What train.py leaves behind before it is over."""
    run = tmp_path / "run"
    save_config(small_config(eval_size=4), {}, run)
    shutil.copytree(trained_folder, run / "best")
    return run


def test_the_policy_of_a_run_is_the_last_else_the_best(tmp_path, trained_folder):
    run = run_folder(tmp_path, trained_folder)
    assert evaluation.policy_of(run) == run / "best"
    (run / "policy").mkdir()
    assert evaluation.policy_of(run) == run / "policy"


def test_eval_of_a_run(tmp_path, trained_folder, trained_model, chat, capsys):
    run, scores, lines = (
        run_folder(tmp_path, trained_folder),
        tmp_path / "scores.json",
        tmp_path / "played.jsonl",
    )
    evaluation.main(
        [str(run), f"--json={scores}", f"--jsonl={lines}", "--eval_split=heldout", "--eval_size=5"]
    )
    config = small_config(eval_size=5, eval_split="heldout")
    expected = evaluation.evaluate(
        config, make_engine(config, trained_model, chat), chat, model.Policy(trained_model)
    )
    ((name, row),) = json.loads(scores.read_text()).items()
    assert name == str(run / "best")
    successes = [int(t.success) for t in expected[1]]
    assert (row["successes"], row["n"]) == (successes, 5)
    assert row["interval"] == pytest.approx(wilson_interval(sum(successes), 5))
    assert {key: row[key] for key in expected[0]} == pytest.approx(expected[0])
    assert [json.loads(line)["score"] for line in lines.read_text().splitlines()] == [
        t.score for t in expected[1]
    ]
    out = capsys.readouterr().out
    assert score_table({name: expected}) in out and "5 heldout prompts, T=0.5" in out


def test_eval_of_a_run_is_checked_against_the_settings_of_the_run(tmp_path, trained_folder, capsys):
    run = run_folder(tmp_path, trained_folder)  # six actions a trajectory; the default is ten
    evaluation.main([str(run), "--player=greedy", "--eval_size=2", "--actions_per_turn=6"])
    with pytest.raises(
        ValueError, match=r"actions_per_turn \(7\) must not exceed actions_per_traj \(6\)"
    ):
        evaluation.main([str(run), "--player=greedy", "--actions_per_turn=7"])


def test_eval_of_a_player(tmp_path, capsys):
    evaluation.main(
        [f"{ROOT}/config/frozenlake_ppo.py", "--player=greedy", "--eval_size=3", "--num_threads=1"]
    )
    assert "| greedy, closed loop |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--player=oracle"], "player must be one of random, greedy, optimal, got 'oracle'"),
        (["--eval_split=train"], "eval_split must be one of eval, heldout, got 'train'"),
        (
            ["--model=tiny"],
            "model='tiny' has random weights, which only tools/sft.py trains; give --model=base, "
            "the model of a run, or --model=PATH",
        ),
        (["--model=./nothing"], "model='./nothing' is not a model folder: it has no config.json"),
        (
            ["no/such/run"],
            "no/such/run is not a folder; expected folders of runs first, then config/name.py "
            "files and --key=value",
        ),
    ],
)
def test_eval_messages(argv, message):
    with pytest.raises(ValueError) as error:
        evaluation.main(argv)
    assert str(error.value) == message


def test_eval_of_a_run_without_a_policy(tmp_path):
    save_config(small_config(), {}, tmp_path)
    with pytest.raises(ValueError) as error:
        evaluation.main([str(tmp_path)])
    wanted = (
        "holds no policy/ or best/; train.py writes them at the end and at the best evaluation"
    )
    assert str(error.value) == f"{tmp_path} {wanted}"
