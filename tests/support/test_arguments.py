"""Tests of the command line: a mistake gives a one-sentence error before torch is imported."""

from configurator import UserError

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.arguments import SCORING_OPTIONS, read_eval, read_train
from tools.sft import read_sft
from utils.files import check_writable
from utils.model_folder import BASE, find_model

ROOT = Path(__file__).resolve().parents[2]
LAKE = ["config/frozenlake_ppo.py", "config/models/tiny.py"]
COMMANDS = {
    "train.py": LAKE,
    "eval.py": LAKE,
    "-m tools.sft": [*LAKE, "--sft_steps=1"],
    "-m tools.api_models": [*LAKE, "--api_base=http://localhost:1", "--api_model=x"],
    "-m tools.replay": [*LAKE, "--record=README.md"],
    "-m studies.speed.bench": ["update"],
    "-m studies.base_model.corpus": [],
    "-m studies.reproduce": ["fig5"],
}
MODELS = (
    "train.py",
    "eval.py",
    "-m tools.sft",
    "-m studies.speed.bench",
)
WITHOUT_SETTINGS = """
    tools.compare tools.smollm2 tools.view studies.readme_pictures studies.reproduce
    studies.base_model.card studies.collapse.survival studies.credit.page
    studies.imitation.comparison studies.real_model.echo_trap studies.real_model.page
    studies.speed.bench_head studies.speed.random_model
""".split()
WITH_SETTINGS_OF_SFT = ("tools.sft", "studies.base_model.corpus", "studies.base_model.pretrain")
ENVS = (*MODELS, "-m tools.api_models", "-m tools.replay")


@pytest.fixture(scope="module")
def run_without_torch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("poison")
    for name in ("torch", "transformers", "matplotlib"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    environ = {**os.environ, "PYTHONPATH": str(folder)}

    def run(command, *arguments):
        words = [sys.executable, *command.split(), *arguments]
        return subprocess.run(words, env=environ, capture_output=True, text=True)

    return run


def assert_sentence(done, sentence):
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {sentence}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_flag(run_without_torch, command):
    done = run_without_torch(command, *COMMANDS[command], "--learing_rate=1")
    sentence = "unknown key 'learing_rate' from command line: did you mean learning_rate"
    assert done.stderr.startswith(f"error: {sentence}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    "command, arguments, words",
    [
        ("-m tools.view", ["--bad=1"], "unknown option --bad; expected --against, --follow"),
        ("-m tools.play", ["frozenlake", "--sed=1"], "unknown key 'sed' from command line"),
        ("-m studies.speed.bench_head", ["x"], "give the number of vocabulary columns per chunk"),
        ("-m studies.speed.bench", ["chess"], "give one of rollout, update"),
        (
            "-m studies.speed.random_model",
            ["out/x", "--layers=0"],
            "give one folder, and --layers=N",
        ),
    ],
)
def test_a_wrong_argument_of_other_commands(run_without_torch, command, arguments, words):
    done = run_without_torch(command, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {words}")


@pytest.mark.parametrize("command", ENVS)
def test_an_unknown_environment(run_without_torch, command):
    done = run_without_torch(command, *COMMANDS[command], "--env=frozenlak")
    sentence = "unknown environment 'frozenlak' in env='frozenlak'; did you mean frozenlake?"
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {sentence}")


@pytest.mark.parametrize("command", MODELS)
def test_a_missing_model(run_without_torch, command):
    done = run_without_torch(command, *COMMANDS[command], "--model=out/nothing/policy")
    sentence = "model='out/nothing/policy' is not a model folder: it has no config.json"
    assert_sentence(done, sentence)


@pytest.mark.parametrize("command", COMMANDS)
def test_right_arguments_go_on_to_torch(run_without_torch, command):
    done = run_without_torch(command, *COMMANDS[command], "--seed=1")
    expected = (1, "torch was imported\n")
    if command == "-m studies.reproduce":  # only its child processes import torch
        expected = (2, done.stderr)
    if command == "-m tools.api_models":  # this command first asks the server for its models
        url = "http://localhost:1"
        assert f"api_base={url!r}: requesting its list of models" in done.stderr
        assert f"error: api_base={url!r} cannot be reached" in done.stderr
        expected = (2, done.stderr)
    assert (done.returncode, done.stderr) == expected


def test_other_settings_for_a_run_are_refused_at_once(run_without_torch, tmp_path):
    (tmp_path / "config.json").write_text('{"config": {"seed": 4}}')
    done = run_without_torch("train.py", *LAKE, f"--out_dir={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: out_dir={str(tmp_path)!r} holds a run with other sett")
    with pytest.raises(UserError, match="holds a run of train.py; give another --out_dir"):
        read_sft([*LAKE, "--sft_steps=1", f"--out_dir={tmp_path}"])


@pytest.mark.parametrize(
    "arguments, folder",
    [
        ([*LAKE, "--sft_steps=1"], "out/frozenlake_ppo_sft"),  # train.py writes out/frozenlake_ppo
        ([*LAKE, "--sft_steps=1", "--seed=1"], "out/frozenlake_ppo_s1_sft"),
        ([*LAKE, "--sft_steps=1", "--out_dir=out/mine"], "out/mine"),
    ],
)
def test_supervised_learning_has_a_folder_of_its_own(arguments, folder):
    assert read_sft(arguments)[0].out_dir == folder


def test_what_supervised_learning_cannot_do_is_refused():
    with pytest.raises(UserError, match="computes in float32 or bfloat16, got dtype='float16'"):
        read_sft([*LAKE, "--sft_steps=1", "--dtype=float16"])


@pytest.mark.parametrize("command", ["train.py", "eval.py"])
def test_without_arguments_the_files_are_listed(run_without_torch, command):
    done = run_without_torch(command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    names = "bandit_grpo, bandit_ppo, cliff_walking_grpo, countdown_ppo"
    assert f"NAME is one of {names}" in done.stderr and "asking the" not in done.stderr


@pytest.mark.parametrize("command", MODELS)
def test_a_wrong_type_of_model_comes_before_the_settings(run_without_torch, command, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    done = run_without_torch(command, *COMMANDS[command], f"--model={tmp_path}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"model={str(tmp_path)!r} is of type 'gpt2'; expected one of qwen2" in done.stderr


OWN_OPTIONS = {
    "train": ["take_config"],
    "eval": SCORING_OPTIONS,
    "tools.api_models": [*SCORING_OPTIONS, "api_base", "api_model"],
    "tools.replay": ["record", "against", "json", "jsonl"],
    "tools.sft": ["export"],
    "tools.crowd": ["samples"],
    "tools.play": ["expert", "random"],
}


@pytest.mark.parametrize("script", OWN_OPTIONS)
def test_the_help_of_a_script_begins_with_its_own_options(script):
    path = Path(ROOT, f"{script.replace('.', '/')}.py")
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    for option in OWN_OPTIONS[script]:
        assert f"--{option}" in doc, option


def scripts():
    paths = [*ROOT.glob("*.py"), *ROOT.glob("tools/*.py"), *ROOT.glob("studies/**/*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    found = [path for path in paths if re.search(r"\n    run_main\(main.*\n$", texts[path])]
    return [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in found]


def test_all_scripts_are_found():
    assert {"train", "eval", *WITHOUT_SETTINGS, *WITH_SETTINGS_OF_SFT} <= set(scripts())


@pytest.mark.parametrize("script", scripts())
def test_help_comes_before_the_slow_imports(run_without_torch, script):
    done = run_without_torch(f"-m {script}", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    path = Path(ROOT, f"{script.replace('.', '/')}.py")
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False)
    if script in WITHOUT_SETTINGS:
        assert done.stdout == f"{doc.strip()}\n"
    else:
        assert done.stdout.startswith(f"{doc.strip()}\n\nSettings and their defaults:\n")
        assert done.stdout.count("\n  --seed=0 ") == 1
        assert done.stdout.count("\n  --sft_lr=") == (script in WITH_SETTINGS_OF_SFT)


def test_a_missing_record_is_said_at_once(run_without_torch):
    done = run_without_torch("-m tools.replay", *LAKE, "--record=nowhere.jsonl")
    assert_sentence(done, "record='nowhere.jsonl' is not a file")


def test_a_misspelt_reference_is_said_at_once(run_without_torch):
    done = run_without_torch("eval.py", *LAKE, "--player=greedy", "--against=gredy")
    start = "--against must be the beginning of a row's name; the rows begin with"
    assert_sentence(done, f"{start} 'greedy', got 'gredy'")
    done = run_without_torch("eval.py", *LAKE, "--player=greedy,optimal", "--against=base")
    assert_sentence(done, f"{start} 'greedy' or 'optimal', got 'base'")


@pytest.mark.parametrize("reference", ["", "t", "tiny", "gre", "greedy", "greedy, closed loop"])
def test_the_beginning_of_a_row_is_a_reference(reference):
    read_eval([*LAKE, "--model=tiny", "--player=greedy", f"--against={reference}"])


def test_a_model_in_place_of_a_run_is_named(run_without_torch):
    sentence = (
        "base is the folder of a model; give the folder of its run, or config/name.py files and "
        "--model=base"
    )
    assert_sentence(run_without_torch("eval.py", "base"), sentence)


@pytest.mark.parametrize("command", ["train.py", "-m tools.view"])
def test_help_into_a_closed_pipe_has_no_traceback(command):
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, *command.split(), "--help"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""


@pytest.mark.parametrize("out_dir", ["README.md", "README.md/run"])
def test_a_file_in_place_of_the_folder_is_said_at_once(run_without_torch, out_dir):
    done = run_without_torch("train.py", *LAKE, f"--out_dir={out_dir}")
    assert_sentence(done, f"out_dir={out_dir!r} cannot be a folder: README.md is a file")


def test_a_folder_without_permission_is_said_at_once(tmp_path, monkeypatch):
    # os.access is replaced, because root can write to every folder, and tests may run as root
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    sentence = re.escape(f"cannot be written: you may not write to {tmp_path}")
    with pytest.raises(UserError, match=sentence):
        read_train([*LAKE, f"--out_dir={tmp_path / 'run'}"])


def test_a_missing_vllm_is_said_at_once(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="engine='vllm', but vLLM is not installed"):
        read_train([LAKE[0], "--out_dir=out/never"])


def test_the_folder_of_results_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_writable("out/scores.json")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not list(tmp_path.glob("out/*"))
    with pytest.raises(UserError, match="results/scores.json cannot be written: there is no fol"):
        check_writable("results/scores.json")


# ---------- folder or hub


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B-Instruct", "a/b", "user_1/model.v2"])
def test_names_on_the_hub_stay_as_they_are(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_model(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "otu/sft/model",
        "models/mine",
        "out/sft",
        "./a/b",
        "../a",
        "~/model",
        "/nowhere/model",
        "a/b/",
        "qwen",
        "a b/c",
        "a\\b/c",
        "",
    ],
)
def test_what_looks_like_a_folder_is_never_looked_up(name, tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"model='.*' is not a model folder"):
        find_model(name)


def test_the_base_model_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_model("tiny") == str(BASE) and (BASE / "model.safetensors").is_file()
