"""Tests of how the code outside tests/ is written.

The constants at the top of this file hold the limits that code must keep, and the exceptions.
"""

import ast
import io
import sys
import tokenize
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.sft_config import SftConfig

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("utils", "engines", "worlds", "support", "tools", "studies", "examples")

MAX_COLUMNS = 100
MAX_LINES_OF_FUNCTION = 60
MAX_MEAN_DENSITY = 5.5  # expression nodes per line of code
MAX_FILE_DENSITY = 6.5
MAX_NESTED = 5  # nested comprehensions in all files together
DENSE_FILES: dict[str, str] = {}  # file -> reason
WIDE_FILES: dict[str, str] = {}  # file -> reason

# Each string lists the modules of one floor; the lowest floor comes first. A module may import only
# from lower floors, and from modules of its own package on its own floor.
FLOORS = (
    "configurator packing",
    "utils.*",
    "envs starpo",
    "dialogue model engines.* worlds.* mixtures methods",
    "engine rollout parallel worlds.code.* worlds.text.*",
    "worlds.hubs.*",
    "players learner",
    "support.*",
    "eval",
    "train tools.plotting.* tools.sft_config",
    "tools.viewer.*",
    "tools.*",
    "studies.*",
    "studies.base_model.*",
    "studies.papers.*",
    "studies.*.* examples.*",  # studies.*.* matches the folders of studies/ not named above
    "studies.reproduce studies.readme_pictures",
)
# Apart from tests, only these modules may import train.py, because they measure its functions.
MEASURE_TRAIN = (
    "studies.credit.estimators",
    "studies.speed.bench_gpu",
    "studies.speed.gpu_pieces",
)

THIRD_PARTY = {
    "configurator": set(),
    "support.terminal": set(),
    "tools.sft_config": set(),
    "packing": {"flash_attn", "torch"},
    "envs": {"numpy"},
    "dialogue": {"numpy"},
    "starpo": {"torch"},
    "rollout": {"numpy", "torch"},
    "players": {"numpy"},
    "model": {"huggingface_hub", "peft", "tokenizers", "torch", "transformers"},
    "engine": {"torch", "transformers"},
    "engines": {"numpy", "torch", "tqdm", "transformers", "vllm"},
    "parallel": {"torch"},
    "worlds": {
        "alfworld",
        "fast_downward",
        "gem",
        "gymnasium",
        "numpy",
        "reasoning_gym",
        "textworld",
    },
    "utils": {"huggingface_hub", "safetensors", "torch", "transformers"},
    "mixtures": set(),
    "support": {
        "matplotlib",
        "numpy",
        "safetensors",
        "tensorboard",
        "torch",
        "tqdm",
        "wandb",
    },
}

CONFIG_FILES = sorted([*ROOT.glob("config/**/*.py"), *ROOT.glob("studies/*/config/*.py")])
PACKAGE_FILES = []
for package in PACKAGES:
    for python_file in sorted((ROOT / package).glob("**/*.py")):
        is_test = python_file.name.startswith("test_")
        if not is_test and python_file not in CONFIG_FILES:
            PACKAGE_FILES.append(python_file)
ROOT_FILES = sorted(ROOT.glob("*.py"))
CODE_FILES = ROOT_FILES + PACKAGE_FILES
ALL_FILES = CODE_FILES + CONFIG_FILES
HELPERS = {path.stem for path in ROOT.glob("tests/helpers/*.py")}
FIELDS = {field.name for field in fields(SftConfig)}
LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def module_of(path):
    """Return the dotted name: envs for envs.py, worlds.text for worlds/text/__init__.py."""
    return name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")


@cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def each(paths):
    """Turn a check of one file into a test of `paths`. The test reports every file that fails."""

    def decorate(check):
        def test():
            problems = []
            for path in paths:
                try:
                    check(path)
                except (AssertionError, pytest.fail.Exception) as error:
                    problems.append(str(error))
            if problems:
                pytest.fail("\n".join(problems), pytrace=False)

        test.__name__ = check.__name__
        return test

    return decorate


def fail_if(problems, advice):
    if problems:
        pytest.fail("\n".join([*problems, f"What to do: {advice}"]), pytrace=False)


MODULES = {module_of(path): path for path in CODE_FILES}
LEVELS = {}
for floor, modules_of_floor in enumerate(FLOORS):
    LEVELS |= dict.fromkeys(modules_of_floor.split(), floor)


# ---------- how dense and how long the code is


class Measure(NamedTuple):
    nodes: int  # expression nodes
    lines: int  # lines of code
    packed: list[int]
    # line numbers of comprehensions that hold another one, or have 3 or more clauses (for, if)
    nested: list[int]

    @property
    def density(self):
        return self.nodes / max(1, self.lines)


def measure(source):
    tree = ast.parse(source)
    nodes = sum(isinstance(node, ast.expr) for node in ast.walk(tree))
    packed = [node.lineno for node in ast.walk(tree) if is_packed(node)]
    nested = [node.lineno for node in ast.walk(tree) if is_nested(node)]
    return Measure(nodes, len(code_lines(source, tree)), packed, nested)


def code_lines(source, tree):
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    no_code.add(tokenize.ENDMARKER)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in no_code:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return lines


def is_packed(node):
    """Whether a node is a statement such as `f(), g()` or `a, b = f(), g()`.

    An assignment counts if two or more of its values are calls, conditionals or comprehensions."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Tuple)
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return False
    if not isinstance(node.value, ast.Tuple):
        return False
    work = [part for part in node.value.elts if isinstance(part, (ast.Call, ast.IfExp, *LOOPS))]
    return len(work) >= 2


def is_nested(node):
    if not isinstance(node, LOOPS):
        return False
    num_clauses = sum(1 + len(generator.ifs) for generator in node.generators)
    inner = [part for part in ast.walk(node) if isinstance(part, LOOPS) and part is not node]
    return bool(inner) or num_clauses >= 3


MEASURES = {name_of(path): measure(path.read_text(encoding="utf-8")) for path in ALL_FILES}


def test_the_mean_line_is_easy_to_read():
    num_nodes = sum(result.nodes for result in MEASURES.values())
    num_lines = sum(result.lines for result in MEASURES.values())
    mean = num_nodes / num_lines
    densest = sorted(MEASURES, key=lambda name: -MEASURES[name].density)[:5]
    problems = [f"{name}: {MEASURES[name].density:.1f} nodes a line" for name in densest]
    advice = f"the mean is {mean:.2f}, the limit {MAX_MEAN_DENSITY}; name intermediate values"
    fail_if(problems if mean > MAX_MEAN_DENSITY else [], advice)


@each(ALL_FILES)
def test_no_file_is_dense(path):
    name = name_of(path)
    density = MEASURES[name].density
    is_dense = density > MAX_FILE_DENSITY
    problem = f"{name}: {density:.1f} nodes a line, the limit is {MAX_FILE_DENSITY}"
    advice = "split statements and name intermediate values, or give a reason in DENSE_FILES"
    fail_if([problem] if is_dense and name not in DENSE_FILES else [], advice)
    stale = f"{name}: {density:.1f} nodes a line need no exception"
    fail_if([stale] if name in DENSE_FILES and not is_dense else [], "remove it from DENSE_FILES")


@each(ALL_FILES)
def test_lines_are_not_wide(path):
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if len(line) > MAX_COLUMNS:
            problems.append(f"{name_of(path)}:{number} has {len(line)} columns")
    if name_of(path) in WIDE_FILES:
        assert problems, f"{name_of(path)}: no wide line is left; remove it from WIDE_FILES"
        return
    fail_if(problems, f"wrap at {MAX_COLUMNS} columns; WIDE_FILES is only for data tables")


@each(ALL_FILES)
def test_ruff_formats_every_line(path):
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if "fmt: skip" in line or "fmt: off" in line:
            problems.append(f"{name_of(path)}:{number} switches the formatter off")
    fail_if(problems, "remove the comment and shorten the line")


def test_a_statement_does_one_thing():
    problems = []
    for name, result in MEASURES.items():
        problems += [
            f"{name}:{line} does several things in one statement" for line in result.packed
        ]
    fail_if(problems, "write one statement on each line")


def test_comprehensions_are_not_nested():
    problems = []
    for name, result in MEASURES.items():
        problems += [f"{name}:{line} is a nested comprehension" for line in result.nested]
    advice = f"use for loops or named functions; at most {MAX_NESTED} may stay in all files"
    fail_if(problems if len(problems) > MAX_NESTED else [], advice)


@each(CODE_FILES)
def test_functions_are_short(path):
    problems = []
    for node in ast.walk(parse(path)):
        if isinstance(node, FUNCTIONS):
            length = node.end_lineno - node.lineno + 1
            if length > MAX_LINES_OF_FUNCTION:
                problems.append(f"{name_of(path)}:{node.lineno} {node.name} has {length} lines")
    fail_if(problems, f"split it: a function has at most {MAX_LINES_OF_FUNCTION} lines")


# ---------- imports


class Import(NamedTuple):
    line: int
    module: str  # for example "starpo", "support.checkpoint" or "numpy"


def imports_of(tree, modules=None):
    """Return all absolute imports. `from support import log` gives support.log."""
    modules = MODULES if modules is None else modules
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                full_name = f"{node.module}.{alias.name}"
                is_module = full_name in modules
                found.append(Import(node.lineno, full_name if is_module else node.module))
    return found


def package_of(module):
    return module.rpartition(".")[0]


def floor_of(module):
    package = package_of(module)
    for name in (module, f"{package}.*", f"{package_of(package)}.*.*"):
        if name in LEVELS:
            return LEVELS[name]
    return None


def is_allowed(module, imported):
    if imported == "train":
        return module in MEASURE_TRAIN
    if floor_of(imported) == floor_of(module):
        return package_of(imported) == package_of(module)
    return floor_of(imported) < floor_of(module)


def find_circle(graph):
    finished = set()

    def search(module, trail):
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in finished:
            return None
        for imported in graph.get(module, ()):
            circle = search(imported, [*trail, module])
            if circle:
                return circle
        finished.add(module)
        return None

    for module in graph:
        circle = search(module, [])
        if circle:
            return circle
    return None


def test_every_module_has_a_floor():
    problems = [name_of(path) for module, path in MODULES.items() if floor_of(module) is None]
    problems = [name for name in problems if not name.endswith("__init__.py")]
    fail_if(problems, "add the module to FLOORS, on the lowest floor that fits its imports")
    stale = [name for name in LEVELS if not name.endswith(".*") and name not in MODULES]
    fail_if(stale, "remove the name from FLOORS: there is no such file")


@each(CODE_FILES)
def test_imports_go_one_way(path):
    module = module_of(path)
    problems = []
    for line, imported in imports_of(parse(path)):
        if imported.split(".")[0] in ("tests", *HELPERS):
            problems.append(f"{name_of(path)}:{line} imports {imported}")
        if None in (floor_of(module), floor_of(imported)):
            continue
        if not is_allowed(module, imported):
            floors = f"floor {floor_of(module)} imports floor {floor_of(imported)}"
            problems.append(f"{name_of(path)}:{line} imports {imported} ({floors})")
    fail_if(problems, "move what is imported to a lower floor, see FLOORS")


def test_imports_form_no_circle():
    graph = {}
    for module, path in MODULES.items():
        imported = {found.module for found in imports_of(parse(path))}
        graph[module] = sorted((imported & MODULES.keys()) - {module})
    circle = find_circle(graph)
    assert circle is None, f"{' -> '.join(circle)}: move what they share to a module of its own"


@each(CODE_FILES)
def test_imports_are_absolute(path):
    problems = []
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            problems.append(f"{name_of(path)}:{node.lineno} is a relative import")
    fail_if(problems, "write the full name of the module")


@each(CODE_FILES)
def test_core_files_need_few_packages(path):
    module = module_of(path)
    allowed = THIRD_PARTY.get(module, THIRD_PARTY.get(package_of(module)))
    if allowed is None:
        return
    problems = []
    for line, imported in imports_of(parse(path)):
        package = imported.split(".")[0]
        is_known = package in sys.stdlib_module_names or imported in MODULES or package in PACKAGES
        if not is_known and package not in allowed:
            problems.append(f"{name_of(path)}:{line} imports {package}")
    fail_if(problems, "do without the package, or add it to THIRD_PARTY")


# ---------- errors, defaults, docstrings


def find_swallowed_errors(tree):
    """Yield the line of each `except` that catches all errors and neither raises nor calls
    `Future.set_exception`."""
    broad = {"Exception", "BaseException"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {kind.id for kind in kinds if isinstance(kind, ast.Name)}
            passes_on = any(
                isinstance(inner, ast.Raise) or getattr(inner, "attr", "") == "set_exception"
                for inner in ast.walk(node)
            )
            if (node.type is None or names & broad) and not passes_on:
                yield node.lineno


def find_defaults(tree):
    """Yield the lines in which a setting seems to get a default.

    Such a line calls getattr(.., key, ..) or config.get(key, ..), where `key` is the name of a
    setting, or is not a constant."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        key = None
        if isinstance(function, ast.Name) and function.id == "getattr" and len(node.args) == 3:
            key = node.args[1]
        elif isinstance(function, ast.Attribute) and function.attr == "get":
            owner = function.value
            if isinstance(owner, ast.Name) and owner.id in ("config", "cfg"):
                key = node.args[0]
        if key is None:
            continue
        if not isinstance(key, ast.Constant) or key.value in FIELDS:
            yield node.lineno


@each(CODE_FILES)
def test_no_error_is_swallowed(path):
    lines = find_swallowed_errors(parse(path))
    problems = [f"{name_of(path)}:{line} catches every error and raises none" for line in lines]
    fail_if(problems, "name the errors, or raise another one from it")


@each(CODE_FILES)
def test_defaults_live_in_the_config(path):
    lines = find_defaults(parse(path))
    problems = [f"{name_of(path)}:{line} has a default for a setting" for line in lines]
    fail_if(problems, "put the default into the class Config of configurator.py")


@each(CODE_FILES)
def test_every_file_and_public_class_has_a_docstring(path):
    tree = parse(path)
    problems = [] if ast.get_docstring(tree) else [f"{name_of(path)}:1 has no docstring"]
    for node in tree.body:
        is_public_class = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if is_public_class and not ast.get_docstring(node):
            problems.append(f"{name_of(path)}:{node.lineno} {node.name} has no docstring")
    fail_if(problems, "say in one sentence what it is for")


@each(CONFIG_FILES)
def test_config_files_say_what_they_do_and_assign_one_setting_a_line(path):
    text = path.read_text(encoding="utf-8")
    header = text.split("\n\n")[0]
    assert header.startswith("# "), f"{name_of(path)}:1 must begin with a comment that says its use"
    is_overlay = path.parent.parent == ROOT / "config"
    wanted = "# Example:" if is_overlay else "# Launch:"
    assert wanted in header, f"{name_of(path)}:1 must have a line that begins with {wanted!r}"
    assert path.name in header.split(wanted)[1], f"{name_of(path)}:1 must show its own file name"
    problems = []
    for node in parse(path).body:
        if isinstance(node, ast.Assign) and len(node.targets) > 1:
            problems.append(f"{name_of(path)}:{node.lineno} assigns several settings")
    fail_if(problems, "assign one setting on each line")


# ---------- the checks themselves


def test_the_checks_of_lines_find_what_they_look_for():
    dense = measure("x = [a + b for a in c]\ny = 1\n")
    assert (dense.nodes, dense.lines) == (9, 2)
    code = (
        '"""Docstring.\n\nLong."""\n\n# comment\n\n\ndef f():\n    """One line."""\n    return (\n'
    )
    assert measure(code + "        1\n    )\n").lines == 4
    for statement in ("f(), g()", "a, b = f(), g()", "a, b = [x for x in c], f()"):
        assert measure(statement).packed == [1]
    for statement in ("a, b = c, d", "a, b = f()", "a, b = f(), 1", "f(a, b)"):
        assert measure(statement).packed == []
    assert measure("[[x for x in y] for y in z]").nested == [1]
    assert measure("{x for y in z if y for x in y}").nested == [1]
    assert measure("[x for x in y if x]").nested == []


def test_the_checks_of_imports_find_what_they_look_for():
    code = "import numpy.linalg\nfrom support import log\nfrom envs import Env\n\n\ndef f():\n"
    tree = ast.parse(code + "    from tools.sft import imitate\n")
    found = imports_of(tree, {"support.log", "envs", "tools.sft"})
    assert found == [(1, "numpy.linalg"), (2, "support.log"), (3, "envs"), (7, "tools.sft")]
    assert is_allowed("train", "starpo") and not is_allowed("starpo", "train")
    assert is_allowed("rollout", "engine")
    assert is_allowed("tools.sft", "tools.probes") and not is_allowed("tools.sft", "train")
    assert not is_allowed("support.log", "tools.view")
    assert not is_allowed("support.log", "eval")
    assert not is_allowed("worlds.text.quest", "support.run_folder")
    assert floor_of("tools.anything") == floor_of("tools.sft") and floor_of("unknown") is None
    assert is_allowed("studies.reproduce", "studies.credit.page")
    assert not is_allowed("studies.anything.page", "studies.credit.page")
    assert not is_allowed("tools.view", "studies.reproduce")
    assert find_circle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]
    assert find_circle({"a": ["b", "c"], "b": ["c"], "c": []}) is None


def test_the_checks_of_errors_and_defaults_find_what_they_look_for():
    def lines(check, code):
        return list(check(ast.parse(code)))

    attempt = "try:\n  f()\n"
    assert lines(find_swallowed_errors, attempt + "except Exception:\n  pass") == [3]
    assert lines(find_swallowed_errors, attempt + "except:\n  pass") == [3]
    assert lines(find_swallowed_errors, attempt + "except (OSError, BaseException):\n  pass") == [3]
    chained = attempt + "except Exception as e:\n  raise ValueError('x') from e"
    assert lines(find_swallowed_errors, chained) == []
    assert lines(find_swallowed_errors, attempt + "except OSError:\n  pass") == []
    assert lines(find_defaults, "getattr(config, 'seed', 0)\ngetattr(c, key, 0)") == [1, 2]
    assert lines(find_defaults, "config.get('lam', 1)") == [1]
    harmless = "getattr(config, key)\ngetattr(hf, 'head_dim', None)\nrow.get('seed')"
    assert lines(find_defaults, harmless) == []


def test_a_failure_names_the_file_and_the_remedy():
    with pytest.raises(pytest.fail.Exception, match="a.py:1 is wide\nWhat to do: wrap it"):
        fail_if(["a.py:1 is wide"], "wrap it")
    fail_if([], "nothing")
