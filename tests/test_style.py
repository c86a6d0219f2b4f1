"""
Tests of how the code is written: one-way imports, short functions and files, no swallowed errors, no second defaults.

    python -m pytest -q tests/test_style.py
"""

from configurator import Config

import ast
import sys
from dataclasses import fields
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(ROOT.glob("*.py"))
# a file imports only from below; what is not named here stands on top
LEVELS = dict(
    configurator=0,
    envs=1,
    grids=2,
    dialogue=2,
    packing=2,
    model=3,
    engine=4,
    starpo=4,
    rollout=5,
    parallel=6,
    corpus=6,
    sft=7,
    eval=7,
    diagnostics=7,
    checkpoint=7,
    pictures=3,
    log=8,
    train=9,
    countdown=2,
    worlds=2,
    repair=2,
    adapters=3,
    sandbox=2,
)
OUTSIDE = {  # what a file may import besides the standard library and the project
    "configurator": set(),
    "envs": {"numpy"},
    "grids": {"numpy", "worlds"},
    "dialogue": {"numpy"},
    "starpo": {"torch"},
    "rollout": {"numpy", "torch"},
    "packing": {"flash_attn", "torch"},
    "model": {"peft", "safetensors", "torch", "transformers"},
    "engine": {"numpy", "torch", "transformers", "vllm"},
    "parallel": {"torch"},
    "corpus": {"numpy"},
    "diagnostics": {"numpy", "torch"},
    "log": {"torch"},
    "checkpoint": {"safetensors", "torch"},
    "sandbox": {"numpy"},
    "adapters": {"alfworld", "fast_downward", "numpy", "textworld"},
}
FIELDS = {field.name for field in fields(Config)}

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path):
    """First parts of the names of all imported modules, also inside functions."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} is a relative import"
            yield node.module.split(".")[0]


def non_blank(path):
    return sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())


def violations_of_errors(tree):
    """Line numbers of handlers that catch everything, or nothing by name, and do not raise."""
    broad = {"Exception", "BaseException"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {kind.id for kind in kinds if isinstance(kind, ast.Name)}
            raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            if (node.type is None or names & broad) and not raises:
                yield node.lineno


def violations_of_defaults(tree):
    """Line numbers of getattr(.., key, default) and config.get(key, default) for a setting or a computed key."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        is_getattr = (
            isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) == 3
        )
        is_get = isinstance(node.func, ast.Attribute) and node.func.attr == "get"
        is_get = (
            is_get
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in ("config", "cfg")
        )
        if is_getattr or is_get:
            key = node.args[1 if is_getattr else 0]
            if not isinstance(key, ast.Constant) or key.value in FIELDS:
                yield node.lineno


def test_the_files_are_there():
    assert {path.stem for path in FILES} >= set(LEVELS)


@each_file
def test_imports_go_one_way(path):
    project, own = {p.stem for p in FILES}, LEVELS.get(path.stem, 9)
    for name in imports(path):
        assert name not in ("train", "tests", "conftest"), f"{path.name} imports {name}"
        if name in project:
            assert LEVELS.get(name, 9) < own, (
                f"{path.name} imports {name}, which stands beside or above it"
            )


@each_file
def test_core_files_need_little(path):
    if path.stem in OUTSIDE:
        outside = set(imports(path)) - set(sys.stdlib_module_names) - {p.stem for p in FILES}
        assert outside <= OUTSIDE[path.stem]


@each_file
def test_a_file_is_read_in_one_sitting(path):
    assert non_blank(path) <= 600


def test_the_whole_is_small():
    assert sum(map(non_blank, [*FILES, *(ROOT / "config").glob("*.py")])) <= 6281


@each_file
def test_functions_are_short(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            limit = 150 if (path.stem, node.name) == ("train", "main") else 60
            length = node.end_lineno - node.lineno + 1
            assert length <= limit, f"{path.name}: {node.name} has {length} lines"


@each_file
def test_no_error_is_swallowed(path):
    assert list(violations_of_errors(tree_of(path))) == []


@each_file
def test_defaults_live_in_the_config(path):
    assert list(violations_of_defaults(tree_of(path))) == []


@each_file
def test_every_file_and_public_class_says_what_it_is(path):
    tree = tree_of(path)
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path.name}: {node.name} has no docstring"


def test_the_checks_find_what_they_look_for():
    def lines(check, code):
        return list(check(ast.parse(code)))

    assert lines(violations_of_errors, "try:\n  f()\nexcept Exception:\n  pass") == [3]
    assert lines(violations_of_errors, "try:\n  f()\nexcept:\n  pass") == [3]
    assert lines(violations_of_errors, "try:\n  f()\nexcept (OSError, BaseException):\n  pass") == [
        3
    ]
    assert (
        lines(
            violations_of_errors,
            "try:\n  f()\nexcept Exception as e:\n  raise ValueError('x') from e",
        )
        == []
    )
    assert lines(violations_of_errors, "try:\n  f()\nexcept OSError:\n  pass") == []
    assert lines(violations_of_defaults, "getattr(config, 'seed', 0)\ngetattr(c, key, 0)") == [1, 2]
    assert lines(violations_of_defaults, "config.get('lam', 1)") == [1]
    assert (
        lines(
            violations_of_defaults,
            "getattr(config, key)\ngetattr(hf, 'head_dim', None)\nrow.get('seed')",
        )
        == []
    )
