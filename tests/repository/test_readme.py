"""Tests of README, docs and studies: commands parse, short ones run, files and functions exist."""

from configurator import Config, load_config, types_of

import importlib
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from itertools import takewhile
from pathlib import Path

import pytest
from shared_fixtures import READERS, unread_line
from torch.distributed.run import get_args_parser

from studies import reproduce
from support.arguments import SCORING_OPTIONS
from support.no_effect import warn_inert
from tools.sft_config import SftConfig

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PATHS = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("studies/**/*.md")),
]
PAGES = {path: path.read_text(encoding="utf-8") for path in PATHS}
STARTS = ("python", "torchrun", "make", "pip", "tensorboard")
COSTS = re.compile(r"GPU|CPU-s|CPU-min|seconds|minute|hour|server|Slurm")
# Maps a script to arguments that make its commands fast.
SHORT = {
    "train": "--num_iterations=1 --num_groups=2 --group_size=2 --batch_size=2 --filter_keep=1.0 "
    "--eval_size=2",
    "eval": "--eval_size=2",
    "tools.sft": "--sft_steps=1 --eval_every=0 --eval_size=2",
    "tools.view": "",
    "tools.play": "",
    "tools.check_env": "",
    "tools.replay": "",
    "studies.reproduce": "--dry_run=True",
    "studies.base_model.corpus": "--packs=4",
}
# A command of train, eval or tools.sft is run only if an argument matches TINY.
TINY = re.compile(r"config/models/tiny|--player|^out/frozenlake")
# Maps the start of an argument to the package that the argument needs. Without the package, the
# command is skipped. `make test-extras` and `make test-hubs` install all packages but Box2D.
OPTIONAL = {
    "--env=textworld": "textworld",
    "--env=alfworld": "alfworld",
    "--env=rg:": "reasoning_gym",
    "config/envs/hubs.py": "gem",
    "gem:": "gem",
    "gymnasium:LunarLander": "Box2D",
}


# ---------- the commands in the pages


def commands():
    """Yield (words of the command, text) for every command in PAGES.

    In this text, test_what_takes_long_is_said_beside_it looks for the cost of the command. If the
    command is in a block of three or more lines and has a comment, the text is this comment.
    Otherwise the text is the heading and the paragraphs around the command.
    """
    for page in PAGES.values():
        paragraphs = page.replace("\\\n", " ").split("\n\n")
        heading = ""
        for i, text in enumerate(paragraphs):
            if text.startswith("#"):
                heading = text.splitlines()[0]
            around = " ".join([heading, *paragraphs[max(0, i - 1) : i + 2]])
            block = text.splitlines()[1:-1] if text.startswith("```") else []
            for line in block or re.findall(r"`([^`\n]+)`", text):
                command, _, comment = line.partition("#")
                words = command_words(command)
                if words and not line.startswith("#"):
                    yield words, comment if len(block) > 2 and comment else around


def command_words(text):
    """Return the words of the command in `text`, or [] if `text` holds no complete command.

    A command begins with a word of STARTS."""
    words = []
    for word in re.findall(r'--\w+="[^"]*"|\S+', text.replace('ARGS="', "ARGS= ")):
        is_quoted = word.startswith("--") and '="' in word
        words.append(word.replace('"', "") if is_quoted else word)
    places = [i for i, word in enumerate(words) if word in STARTS]
    if not places:
        return []
    words = words[places[0] :]
    names_script = words[0] not in ("python", "torchrun") or ".py" in text or " -m " in text
    return words if names_script and len(words) > 1 else []


def read_torchrun(arguments):
    """Parse `arguments` with torchrun's own parser.

    Return None if the installed torch does not know an option. For an unknown option the parser
    raises SystemExit. If nothing caught SystemExit, pytest would end while it collects tests.
    """
    try:
        return get_args_parser().parse_args(arguments)
    except SystemExit:
        return None


def script_of(words):
    """Return (name of the module that a command runs, arguments of the module).

    If the command begins with neither python nor torchrun, return ("", words). Also return
    ("", words) if the installed torchrun does not know an option.
    """
    if words[0] == "torchrun":
        launch = read_torchrun(words[1:])
        if launch is None:
            return "", words
        return launch.training_script.removesuffix(".py"), launch.training_script_args
    if words[0] != "python":
        return "", words
    if words[1] == "-m":
        return words[2], words[3:]
    return words[1].removesuffix(".py"), words[2:]


SUPERVISED = ("tools.sft", "studies.base_model.pretrain")


def kind_of(script):
    return SftConfig if script in SUPERVISED else Config


COMMANDS = {" ".join(words): (words, text) for words, text in commands()}
each_command = pytest.mark.parametrize("line", COMMANDS)


def is_run(script, arguments):
    is_learning = script in ("train", "tools.sft", "eval")
    is_heavy = is_learning and not any(TINY.search(word) for word in arguments)
    is_optional = "--engine=vllm" in arguments or "--wandb=PROJECT" in arguments
    return script in SHORT and not is_heavy and not is_optional


RUN = [line for line, (words, _) in COMMANDS.items() if is_run(*script_of(words))]


@each_command
def test_commands_parse(line, monkeypatch):
    words, _ = COMMANDS[line]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", makefile, re.M)
    script, arguments = script_of(words)
    if script and script != "pytest":
        assert (ROOT / f"{script.replace('.', '/')}.py").is_file()
    if script in ("train", *SUPERVISED) and arguments != ["--help"]:
        load_config(arguments, extra={"take_config": False, "export": ""}, kind=kind_of(script))
    if script in ("eval", "tools.api_models", "tools.replay"):
        runs = [*takewhile(lambda word: word.startswith("out/"), arguments)]
        extra = {**SCORING_OPTIONS, "api_base": "", "api_model": "", "record": ""}
        load_config(arguments[len(runs) :], extra=extra)
    if script == "studies.speed.bench":
        bench = importlib.import_module(script)
        monkeypatch.setattr(bench, "find_model", lambda name: name)
        bench.read_arguments(arguments)
    if script == "studies.reproduce":
        reproduce.read_options(arguments)
    for name in words[words.index("-r") + 1 :] if "-r" in words else ():
        assert (ROOT / name).is_file()


@each_command
def test_torchrun_has_the_options(line):
    words, _ = COMMANDS[line]
    if words[0] == "torchrun":
        assert read_torchrun(words[1:]) is not None


def test_an_option_that_torchrun_lacks_fails_one_test_only():
    assert read_torchrun(["--standalone", "--no-such-option=1", "train.py"]) is None
    assert script_of(["torchrun", "--no-such-option=1", "train.py"])[0] == ""


@each_command
def test_what_takes_long_is_said_beside_it(line):
    words, text = COMMANDS[line]
    script, arguments = script_of(words)
    if script and not is_run(script, arguments) and arguments != ["--help"]:
        assert COSTS.search(text), "say beside the command what machine or time it needs"


def test_there_are_commands():
    assert len(COMMANDS) >= 35 and len(RUN) >= 15
    assert {script_of(COMMANDS[line][0])[0] for line in RUN} == set(SHORT)


# ---------- short commands run


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    for name in ("config", "docs", "examples", "worlds"):
        (folder / name).symlink_to(ROOT / name, target_is_directory=True)
    (folder / "out").mkdir()
    for name in ("A", "A_s1", "B", "NAME"):
        (folder / "out" / name).symlink_to("frozenlake_ppo", target_is_directory=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("line", sorted(RUN, key=lambda line: "config/models/tiny" not in line))
def test_short_commands_run(line, desk, monkeypatch, capsys):
    script, arguments = script_of(COMMANDS[line][0])
    for start, package in OPTIONAL.items():
        if any(argument.startswith(start) for argument in arguments):
            pytest.importorskip(package)
    monkeypatch.chdir(desk)
    typed = iter(["Right"] * 20)

    def type_right(_):
        for text in typed:
            return text
        raise EOFError

    monkeypatch.setattr("builtins.input", type_right)
    importlib.import_module(script).main([*arguments, *SHORT[script].split()])
    out = capsys.readouterr().out
    assert out.strip() and ("| after RL" in out) == (script == "train")


def test_help_is_given():
    command = [sys.executable, "train.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and all(
        f"--{field.name}=" in done.stdout for field in fields(Config)
    )


# ---------- files, functions, settings


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_files_exist(path):
    page = PAGES[path]
    for target in re.findall(r"\]\(([^)#]+?)\)", page):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
    for name in re.findall(r"`([\w/]+\.(?:py|md|txt|html))(?::[\w.]+)?`", page):
        if name not in ("path/to/my_env.py", "metrics.jsonl", "scores.md"):
            found = [ROOT / name, path.parent / name, *ROOT.glob(f"config/**/{name}")]
            assert any(place.exists() for place in found), name


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_that_pages_name_exist(path):
    for file, name in re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGES[path]):
        if file == "path/to/my_env.py":
            continue
        code = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"(def|class) {name.split('.')[-1]}\b", code), f"{file}:{name}"


def test_readme_is_short():
    assert len(README.split()) <= 2200


def test_every_setting_is_read():
    paths = [*ROOT.glob("*.py"), *ROOT.glob("[!.]*/**/*.py")]
    own = [path for path in paths if not {"configurator.py", "out", "tests"} & set(path.parts)]
    code = "".join(path.read_text(encoding="utf-8") for path in own)
    for name, method in inspect.getmembers(SftConfig, inspect.isfunction):
        if not name.startswith("_"):
            code += inspect.getsource(method)
    for field in fields(SftConfig):
        is_read = re.search(rf"\b(config|self)\.{field.name}\b", code)
        assert is_read, f"{field.name} is never read"


@each_command
def test_commands_of_the_pages_set_nothing_in_vain(line):
    script, arguments = script_of(COMMANDS[line][0])
    if script == "train" and arguments != ["--help"]:
        config, _, sources = load_config(arguments, extra={"take_config": False})
        assert warn_inert(config, sources) == ""
    command = "eval.py" if script == "eval" else script
    if command in READERS and arguments != ["--help"]:
        files = [word for word in arguments if word.endswith(".py")]
        settings = [word for word in arguments if word[2:].split("=")[0] in types_of(SftConfig)]
        config, _, sources = load_config([*files, *settings], kind=kind_of(script))
        assert unread_line(command, config, sources) == ""


WRITES = re.compile(r"--(?:json|jsonl|export|out_dir)=(\w[^\s`\]]+)")


def test_commands_write_under_out():
    texts = [*PAGES.values(), *(path.read_text(encoding="utf-8") for path in ROOT.glob("*.py"))]
    texts += [path.read_text(encoding="utf-8") for path in ROOT.glob("tools/*.py")]
    paths = [path for text in texts for path in WRITES.findall(text)]
    assert len(paths) > 10
    for path in paths:
        assert path.startswith("out/") or path.isupper(), path
