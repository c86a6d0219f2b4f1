"""
README and docs keep their promises: commands parse and, where they are short, run; files and functions are there.

    python -m pytest -q tests/test_readme.py
"""

from configurator import Config, load_config

import re
import subprocess
import sys
from dataclasses import fields
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path

import pytest
from test_train import KEYS
from torch.distributed.run import get_args_parser

import dialogue
import eval as evaluation
import train
from support.metrics import metric_groups
from tools import bench, corpus, reproduce, sft, view

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path: path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
}
COSTS = re.compile(r"GPU|CPU-s|seconds|minute|hour|server|Slurm")
SHORT = {  # what makes a command a short one; commands that are not here are not run
    "train.py": "--num_iterations=1 --num_groups=2 --group_size=2 --batch_size=2 --filter_keep=1.0 --eval_size=2",
    "sft.py": "--sft_steps=1 --eval_every=0 --eval_size=2",
    "eval.py": "--eval_size=2",
    "view.py": "",
    "envs.py": "",
    "reproduce.py": "--dry_run=True",
    "corpus.py": "--packs=4",
}
MAINS = {
    "train.py": train.main,
    "sft.py": sft.main,
    "eval.py": evaluation.main,
    "view.py": view.main,
    "envs.py": dialogue.main,
    "reproduce.py": reproduce.main,
    "corpus.py": corpus.main,
}
TINY = re.compile(
    r"config/tiny|--player|^out/frozenlake"
)  # of train.py, sft.py, eval.py: what a laptop does


def commands():
    """Every command of the pages: its words, and the text that may tell what it needs (its comment, its heading, the
    paragraphs around it)."""
    for page in PAGES.values():
        paragraphs, heading = page.replace("\\\n", " ").split("\n\n"), ""
        for i, text in enumerate(paragraphs):
            heading = text.splitlines()[0] if text.startswith("#") else heading
            around = " ".join([heading, *paragraphs[max(0, i - 1) : i + 2]])
            block = text.startswith("```") and text.splitlines()[1:-1]
            for line in block or re.findall(r"`([^`\n]+)`", text):
                command, _, comment = line.partition("#")
                words = command.replace('ARGS="', "ARGS= ").split()
                starts = [
                    word
                    for word in words
                    if word in ("python", "torchrun", "make", "pip", "tensorboard")
                ]
                whole = starts and (starts[0] not in ("python", "torchrun") or ".py" in command)
                if whole and len(words) > 1 and not line.startswith("#"):
                    yield (
                        words[words.index(starts[0]) :],
                        comment if len(block or ()) > 2 and comment else around,
                    )


COMMANDS = {" ".join(words): (words, text) for words, text in commands()}
each_command = pytest.mark.parametrize("line", COMMANDS)


def script_of(words):
    """(script, its arguments); a torchrun command is read by torchrun's own parser."""
    if words[0] == "torchrun":
        launch = get_args_parser().parse_args(words[1:])
        return launch.training_script, launch.training_script_args
    return (words[1], words[2:]) if words[0] == "python" else ("", words)


def is_run(script, arguments):
    heavy = script in ("train.py", "sft.py", "eval.py") and not any(
        TINY.search(word) for word in arguments
    )
    return script in SHORT and not heavy and "--engine=vllm" not in arguments


@each_command
def test_commands_parse(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    (words, _), makefile = COMMANDS[line], (ROOT / "Makefile").read_text(encoding="utf-8")
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", makefile, re.M)
    script, arguments = script_of(words)
    if script:
        assert (ROOT / script).is_file()
    if script in ("train.py", "sft.py") and arguments != ["--help"]:
        load_config(arguments, extra={"take_config": False, "export": ""})
    if script == "eval.py":
        runs = [*takewhile(lambda word: word.startswith("out/"), arguments)]
        load_config(arguments[len(runs) :], extra=evaluation.OPTIONS)
    if script == "bench.py":
        assert callable(getattr(bench, arguments[0]))
        load_config(arguments[1:], extra={"repeats": 5, "json": ""})
    if script == "reproduce.py":
        reproduce.read_options(arguments)
    for name in words[words.index("-r") + 1 :] if "-r" in words else ():
        assert (ROOT / name).is_file()


@each_command
def test_what_takes_long_is_said_beside_it(line):
    words, text = COMMANDS[line]
    script, arguments = script_of(words)
    if script and not is_run(script, arguments) and arguments != ["--help"]:
        assert COSTS.search(text), (
            "neither run by a test, nor is there a word of the machine or the time that it needs"
        )


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """An empty folder with the files that commands name; what a command writes is there for those after it."""
    folder = tmp_path_factory.mktemp("desk")
    for name in ("config", "examples"):
        (folder / name).symlink_to(ROOT / name, target_is_directory=True)
    (folder / "out").mkdir()
    for name in "AB":  # any two runs
        (folder / "out" / name).symlink_to("frozenlake_ppo", target_is_directory=True)
    return folder


OPTIONAL = re.compile(r"--env=(textworld|alfworld)")  # packages of make test-extras
RUN = [line for line, (words, _) in COMMANDS.items() if is_run(*script_of(words))]


@pytest.mark.parametrize(
    "line", sorted(RUN, key=lambda line: "config/tiny" not in line)
)  # runs, then what reads them
def test_short_commands_run(line, desk, monkeypatch, capsys):
    script, arguments = script_of(COMMANDS[line][0])
    for package in OPTIONAL.findall(" ".join(arguments)):
        pytest.importorskip(package)
    monkeypatch.chdir(desk)
    monkeypatch.setattr("builtins.input", lambda _: "Right")
    MAINS[script]([*arguments, *SHORT[script].split()])
    out = capsys.readouterr().out
    assert out.strip() and ("| after RL" in out) == (script == "train.py")


def test_help_is_given():
    done = subprocess.run(
        [sys.executable, "train.py", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and all(
        f"--{field.name}=" in done.stdout for field in fields(Config)
    )


def test_there_are_commands():
    assert len(COMMANDS) >= 35 and len(RUN) >= 18
    assert {script_of(COMMANDS[line][0])[0] for line in RUN} == set(SHORT)


def test_files_that_readme_names_exist():
    names = re.findall(r"`([\w/]+\.(?:py|md|txt))(?::[\w.]+)?`", README)
    assert {"train.py", "starpo.py"} <= set(names)
    for name in names:
        assert (ROOT / name).is_file(), name


def test_functions_that_readme_names_exist():
    for file, name in re.findall(r"`(\w+\.py):([\w.]+)`", README):
        assert re.search(
            rf"(def|class) {name.split('.')[-1]}\b", (ROOT / file).read_text(encoding="utf-8")
        ), name


def test_every_metric_is_in_the_glossary():
    glossary = re.findall(r"`([^`]+)`", README.split("## Metrics")[1].split("\n## ")[0])
    collapse = {key for key, group in metric_groups(Config()).items() if group == "collapse"}
    wanted = {"pass@16" if key == "pass@4" else key for key in KEYS} - collapse  # those have a page
    assert not [key for key in wanted if not any(fnmatch(key, name) for name in glossary)]


def test_every_setting_is_read():
    """A field of Config that no other file reads is a dead key."""
    code = "".join(
        p.read_text(encoding="utf-8") for p in ROOT.glob("*.py") if p.name != "configurator.py"
    )
    for field in fields(Config):
        assert re.search(rf"\bconfig\.{field.name}\b", code), f"{field.name} is never read"
