"""README keeps its promises: its commands parse, the files that it names exist, every setting is read somewhere."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from configurator import Config, load_config

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```\n(.*?)```", README, re.S)
LINES = [line.split("#")[0].split() for block in BLOCKS for line in block.splitlines() if ".py" in line]
COMMANDS = [words for words in LINES if "--help" not in words]
EXTRAS = {"eval.py": {"player": "", "json": "", "jsonl": ""}, "bench.py": {"repeats": 5, "json": ""}}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_parse(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    script = next(word for word in words if word.endswith(".py"))
    assert (ROOT / script).is_file()
    arguments = words[words.index(script) + 1 :]
    if script in ("reproduce.py", "bench.py"):
        arguments = arguments[1:]
    if script == "eval.py" and arguments[0].startswith("out/"):
        arguments = arguments[1:]  # a run folder
    load_config(arguments, extra=EXTRAS.get(script))


def test_there_are_commands():
    assert len(COMMANDS) >= 6


def test_files_that_readme_names_exist():
    names = re.findall(r"`([\w/]+\.(?:py|md|txt))(?::[\w.]+)?`", README)
    assert {"train.py", "starpo.py"} <= set(names)
    for name in names:
        assert (ROOT / name).is_file(), name


def test_functions_that_readme_names_exist():
    for file, name in re.findall(r"`(\w+\.py):([\w.]+)`", README):
        assert re.search(rf"(def|class) {name.split('.')[-1]}\b", (ROOT / file).read_text(encoding="utf-8")), name


def test_every_setting_is_read():
    """A field of Config that no other file reads is a dead key."""
    code = "".join(p.read_text(encoding="utf-8") for p in ROOT.glob("*.py") if p.name != "configurator.py")
    for field in fields(Config):
        assert re.search(rf"\bconfig\.{field.name}\b", code), f"{field.name} is never read"
