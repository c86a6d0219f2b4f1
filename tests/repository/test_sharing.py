"""Tests of docs/sharing.md: the code for transformers runs on a model folder."""

import json
import re
from pathlib import Path

from dialogue import Chat
from model import load_model

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sharing.md").read_text(encoding="utf-8")
GAME = {"system": "Walk to G.", "turns": [{"observation": "P_\n_G"}]}


def test_the_lines_of_transformers_play_a_turn(trained_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = Path("out/frozenlake_ppo")
    run.mkdir(parents=True)
    (run / "policy").symlink_to(trained_folder, target_is_directory=True)
    (run / "eval_final.jsonl").write_text(json.dumps(GAME) + "\n")
    code = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
    names = {}
    exec(code, names)
    _, tokenizer = load_model(str(trained_folder))
    prompt = Chat(tokenizer).opening(GAME["system"], GAME["turns"][0]["observation"])
    assert names["prompt"]["input_ids"][0].tolist() == prompt
    assert capsys.readouterr().out.strip()


def test_the_lines_of_vllm_are_python():
    transformers, vllm = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    compile(vllm, "docs/sharing.md", "exec")
    assert "messages" in vllm and "messages =" in transformers
