"""Check whether an environment behaves as training requires.

    python -m tools.check_env examples/my_env.py:Doors
    python -m tools.check_env my_env.py:MyEnv,size=5 --actions_per_traj=20
    python -m tools.check_env quest:w=2,o=3,q=4

The command prints a line for each check, and a sentence for each problem. An instance is the
random start of a game. The exit code is 1 if a check fails, and 2 if the environment cannot be
built or cannot draw its instances.
"""

from configurator import Config, UserError, load_config

import hashlib
import io
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from itertools import zip_longest
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from dialogue import Episode, check_thought
from envs import (
    Env,
    Step,
    check_text,
    draw_instance,
    make_env,
    missing_method,
    reserved_instances,
    show,
)
from support.no_effect import print_unread
from support.terminal import run_main
from utils.text import printable
from utils.time_limit import EnvError, call_with_timeout

ROOT = Path(__file__).resolve().parent.parent
SETTINGS_READ = "observation actions_per_traj"
CHECK_SEED = 41  # the seed of training game i is [i, CHECK_SEED]
SEEDS = range(6)  # numbers of the training games that most checks play
NUM_LOOKS = 4  # games that appearance() plays on each instance
NUM_TRAIN = 100  # training games that are compared with the evaluation games
NUM_PLAYED = 40  # evaluation games that the expert and the random player play
# Action budget of the expert. The expert follows plan(), or greedy() if plan() returns [].
EXPERT_ACTIONS = 50
MAX_TWINS = 0.1  # largest allowed fraction of training games that look like evaluation games
MAX_RANDOM = 0.75  # largest allowed ratio of the random player's wins to the expert's wins
SLOW_STEP_S = 0.1  # seconds; slower steps are a problem unless Env.blocking is set
SLOW_DRAW_S = 2.0
CHECK_LIMIT_S = 300.0  # time limit of one check, in seconds
TEXT_LIMIT_S = 10.0  # time limit of a step with an odd text, in seconds
POLL_S = 0.2  # seconds between two tests of whether the process of the checks still runs
ODD_TEXTS = (  # texts for which step() must raise no error
    *("", " ", "\n", "||", "|| ||", "</answer>", "<answer>Up</answer>", "<think>", "<|im_end|>"),
    *("0", "-1", "1e999", "nan", "9" * 10_000, "None", "True", "[]", "{}", "()", "''", '"', "\\"),
    *("%s", "{0}", "${HOME}", "../..", "; exit 1", "$(exit 1)", "__import__('os')", "end", "help"),
    *("a" * 100_000, "(" * 10_000, "a b " * 10_000, "\0", "a\0b", "\x1b[2J", "\u202e", "\u2028"),
    *("é", "ß", "İ", "١٢", "²", "🙂", "\ud800", "put x \ud800", "search \ud800", "1 1 \ud800"),
)


@dataclass
class Subject:
    """The environment to check, and the settings that build it."""

    spec: str
    observation: str = "grid"
    max_actions: int = 10
    notes: list[str] = field(default_factory=list)  # lines for the end of the report

    def make(self, max_actions: int | None = None) -> Env:
        limit = self.max_actions if max_actions is None else max_actions
        return make_env(self.spec, observation=self.observation, max_actions=limit)


class Finding(NamedTuple):
    """The outcome of a check."""

    title: str
    problems: list[str]  # one sentence for each problem; [] if the check passed


def main(argv: list[str]) -> None:
    specs = [word for word in argv if not word.startswith("-")]
    config, _, sources = load_config([word for word in argv if word.startswith("-")])
    if len(specs) != 1:
        raise UserError(
            "expected one environment, such as my_env.py:MyEnv or frozenlake:size=5, and "
            f"settings such as --actions_per_traj=20; got {' '.join(argv) or 'nothing'}"
        )
    print_unread("tools.check_env", SETTINGS_READ, sources)
    findings, notes = check_in_process(subject_of(specs[0], config))
    num_failed = 0
    for title, problems in findings:
        print(f"{'FAIL' if problems else 'ok':6}{title}")
        for problem in problems:
            print(f"      - {problem}")
        num_failed += bool(problems)
    for note in notes:
        print(note)
    if num_failed:
        print(f"{num_failed} of {len(findings)} checks failed")
        sys.exit(1)


def subject_of(spec: str, config: Config) -> Subject:
    return Subject(spec, config.observation, config.actions_per_traj)


def check_in_process(subject: Subject) -> tuple[list[Finding], list[str]]:
    """Run all checks in a new process, because the environment may end the process.

    Raises: UserError if the environment cannot be built, or cannot draw its instances."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=send_findings, args=(subject, writer))
    process.start()
    writer.close()
    findings: list[Finding] = []
    stage = "the process began"
    while True:
        message = receive(reader, process)
        if message is None:
            problem = f"it ended its process (exit code {process.exitcode}) while {stage}"
            return [*findings, Finding("the environment lets the process go on", [problem])], []
        if isinstance(message, UserError):
            raise message
        if isinstance(message, str):
            stage = message
        elif isinstance(message, Finding):
            findings.append(message)
        else:
            return findings, message


def receive(reader: Connection, process: BaseProcess) -> Any:
    """Return the next message of a process; None if the process ended without another message."""
    while not reader.poll(POLL_S):
        if not process.is_alive() and not reader.poll():
            return None
    try:
        return reader.recv()
    except EOFError:
        process.join()
        return None


def send_findings(subject: Subject, writer: Connection) -> None:
    """Run all checks, and send their findings and the notes of `subject` through a pipe.

    Before each stage, such as a check, the function sends the name of the stage. So if the
    environment ends the process, the reader of the pipe knows the last stage.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback here: the parent reports Ctrl-C
    try:
        check_environment(subject, writer.send)
        writer.send(subject.notes)
    except UserError as error:
        writer.send(UserError(str(error)))


def check_environment(
    subject: Subject, report: Callable[[str | Finding], object] = lambda _: None
) -> list[Finding]:
    """Run all checks and return the findings.

    Args: report: function that receives each finding. Before each stage, it also receives words
        such as "it was built". The words complete the message "it ended its process (exit code N)
        while ...".
    Raises: UserError if the environment cannot be built, or cannot draw its instances.
    """
    findings = []
    printed = io.StringIO()
    states = (random.getstate(), np.random.get_state())

    def add(title: str, problems: list[str]) -> None:
        findings.append(Finding(title, problems))
        report(findings[-1])

    with redirect_stdout(printed):
        report("it was built")
        subject.make()
        report("its instances were drawn")
        try:
            call_with_timeout(CHECK_LIMIT_S, reserved_instances, subject.spec)
        except EnvError as error:
            raise UserError(
                f"env={subject.spec!r} cannot draw the instances of its splits: {error}"
            ) from error
        for title, check in CHECKS.items():
            report(f'"{title}" was checked')
            try:
                problems = call_with_timeout(CHECK_LIMIT_S, check, subject)
            except EnvError as error:
                problems = [f"a game ended with {error}"]
            add(title, [printable(problem) for problem in problems])
    random.setstate(states[0])
    np.random.set_state(states[1])
    text = " ".join(printed.getvalue().split())
    add("nothing is printed", [f"it prints {show(text)}"] if text else [])
    return findings


# ---------- games


def is_over(env: Env) -> bool:
    return env.terminated or env.actions_left == 0


def action_rng(seed: int) -> np.random.Generator:
    """Return a random generator for actions.

    The 1 in its seed makes it differ from the generator that draws the instance."""
    return np.random.default_rng([seed, CHECK_SEED, 1])


def random_action(env: Env, rng: np.random.Generator) -> str:
    """Return a random action.

    If the environment has no random player, return the first action of `plan`. If `plan` returns
    [], return the text "no action"."""
    if missing_method(env, "random"):
        return [*env.plan(1, env.actions_left), "no action"][0]
    return env.random(1, rng)[0]


class Seen(NamedTuple):
    """What a game shows in one step."""

    step: str  # the action and its result; at the start, the opening observation
    # Results of `observe`, `statements` and `plan`. These methods must not change the game.
    asked: str


def game_log(env: Env, seed: int, *, member: int = 0, asks: bool = True) -> Iterator[Seen]:
    """Play a training game with random actions.

    Yields: the opening observation, then what each step shows.
    Args: asks: whether to call `observe`, `statements` and `plan` before each step."""
    rng = action_rng(seed)
    # With an empty cache, `reset` draws the instance again. So the checks also cover `draw`.
    draw_instance.cache_clear()
    yield Seen(env.reset([seed, CHECK_SEED], member=member), "")
    for _ in range(env.max_actions):
        if is_over(env):
            break
        asked = ""
        if asks:
            plan = env.plan(2, env.actions_left)
            asked = f"{env.observe()!r} {env.statements()!r} {plan!r}"
        action = random_action(env, rng)
        yield Seen(f"{action!r} -> {tuple(env.step(action))!r}", asked)


def digest(subject: Subject) -> str:
    """Return a hash of one game for each seed in SEEDS, and of the eval and heldout instances."""
    sha = hashlib.sha256(repr(reserved_instances(subject.spec)).encode("utf-8", "replace"))
    for seed in SEEDS:
        for seen in game_log(subject.make(), seed):
            sha.update(repr(seen).encode("utf-8", "replace"))
    return sha.hexdigest()


def compare(reason: str, seed: int, expected: list, got: list) -> list[str]:
    """Return a sentence on the first difference between two logs of a game; [] for equal logs."""
    for before, after in zip_longest(expected, got, fillvalue="the end"):
        if before != after:
            return [f"{reason}: in game {seed}, {show(before)} became {show(after)}"]
    return []


# ---------- the checks


def check_repeats(subject: Subject) -> list[str]:
    """Check that a game does not depend on other games, or on calls of `observe`, `statements`
    and `plan`."""
    expected = {seed: list(game_log(subject.make(), seed)) for seed in SEEDS}
    problems = []
    env = subject.make()
    for seed in reversed(SEEDS):
        reason = "a game depends on the games before it"
        problems += compare(reason, seed, expected[seed], list(game_log(env, seed)))
    for seed in SEEDS[::2]:
        games = (game_log(subject.make(), seed), game_log(subject.make(), seed + 1))
        together = [seen for seen, _ in zip_longest(*games) if seen]
        reason = "a game depends on another one that is played at the same time"
        problems += compare(reason, seed, expected[seed], together)
    for seed in SEEDS:
        steps = [seen.step for seen in expected[seed]]
        quiet_steps = [seen.step for seen in game_log(subject.make(), seed, asks=False)]
        reason = "observe, statements or plan changes the game"
        problems += compare(reason, seed, quiet_steps, steps)
    return problems[:3]


def check_processes(subject: Subject) -> list[str]:
    """Check that a seed gives the same game in another process with another PYTHONHASHSEED."""
    arguments = (subject.spec, subject.observation, subject.max_actions)
    code = f"from tools.check_env import Subject, digest\nprint(digest(Subject{arguments!r}))"
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=CHECK_LIMIT_S
    )
    if done.returncode or not done.stdout.strip():
        reason = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        return [f"another process ended with {reason}"]
    if done.stdout.split()[-1] != digest(subject):
        return [
            "the same seed gives another game in another process; sort what comes from a set, and "
            "use no hash() and no clock"
        ]
    return []


def check_generators(subject: Subject) -> list[str]:
    random.seed(1)
    np.random.seed(1)
    python_state = random.getstate()
    numpy_state = np.random.get_state()[1].tolist(), np.random.get_state()[2]
    for seed in SEEDS:
        list(game_log(subject.make(), seed))
    problems = []
    advice = "draw from the argument rng, or from self.rng during a game"
    if random.getstate() != python_state:
        problems.append(f"a game changes Python's global random state; {advice}")
    if (np.random.get_state()[1].tolist(), np.random.get_state()[2]) != numpy_state:
        problems.append(f"a game changes numpy's global random state; {advice}")
    return problems


def check_splits(subject: Subject) -> list[str]:
    env = subject.make()
    if env.repeats:
        subject.notes.append("training and evaluation share instances (repeats = True)")
        return []
    reserved = reserved_instances(subject.spec)["eval"]
    seen = {appearance(env, instance) for instance in reserved}
    num_twins = 0
    for seed in range(NUM_TRAIN):
        instance = draw_instance(subject.spec, (seed, CHECK_SEED), "train")
        num_twins += appearance(env, instance) in seen
    if num_twins <= MAX_TWINS * NUM_TRAIN:
        return []
    return [
        f"{num_twins} of {NUM_TRAIN} training games look like a game of the evaluation: the same "
        "texts, plan and outcome; leave what does not matter out of draw(), or override key()"
    ]


def appearance(env: Env, instance: tuple) -> tuple:
    """Return the actions and observations of NUM_LOOKS games on an instance.

    The first game takes the actions of `Env.plan`, and a random action where `plan` returns [].
    The other games have random actions."""
    texts = []
    for number in range(NUM_LOOKS):
        rng = np.random.default_rng([CHECK_SEED, number])
        texts.append(env.start(instance, [0]))
        for _ in range(env.max_actions):
            if is_over(env):
                break
            plan = [] if number else env.plan(1, env.actions_left)
            action = plan[0] if plan else random_action(env, rng)
            texts += [action, env.step(action).observation]
    return tuple(texts)


def check_budget(subject: Subject) -> list[str]:
    """Check that games end when the action budget is used up, and accept no action after the end.

    Also check that a won game pays at most `max_reward`, and that a lost game pays less than
    `max_reward`."""
    problems = []
    for limit in sorted({1, 2, subject.max_actions}):
        env = subject.make(limit)
        for seed in SEEDS:
            problems += budget_problems(env, seed)
    return list(dict.fromkeys(problems))[:3]


def budget_problems(env: Env, seed: int) -> list[str]:
    """Play a game with random actions. Return what is wrong with its rewards and its end."""
    rng = action_rng(seed)
    env.reset([seed, CHECK_SEED])
    problems = []
    total = 0.0
    for _ in range(env.max_actions):
        step = env.step(random_action(env, rng))
        total += step.reward
        if step.success and not step.terminated:
            problems.append("a step is a success and does not end the game")
        if step.terminated or step.truncated:
            break
    if not is_over(env):
        problems.append(f"a game was not over after {env.max_actions} random actions")
    if not math.isfinite(total):
        problems.append(f"a game paid {total}; expected a finite number")
    elif step.success and total > env.max_reward + 1e-6:
        problems.append(f"a won game paid {total:g}, more than max_reward ({env.max_reward:g})")
    elif not step.success and total > env.max_reward - 1e-6:
        problems.append(
            f"a lost game paid {total:g}, not less than max_reward ({env.max_reward:g})"
        )
    after = env.step(random_action(env, rng)) if not env.terminated else env.step("no action")
    if after.valid or after.reward:
        problems.append("step() accepts an action after the end of the game")
    return problems


def check_texts(subject: Subject) -> list[str]:
    """Check that odd texts cause no error in `step`, and that only legal actions change a game."""
    env = subject.make()
    env.reset([0, CHECK_SEED])
    rng = np.random.default_rng(CHECK_SEED)
    legal = random_action(env, rng)
    changed = (legal.upper(), f" {legal} ", f"{legal}\0", f"{legal} {legal}", legal[:-1], legal[1:])
    problems = []
    for seed, text in enumerate((*ODD_TEXTS, *changed)):
        env.reset([seed, CHECK_SEED])
        before = env.observe()
        try:
            is_legal, step = call_with_timeout(TEXT_LIMIT_S, try_text, env, text)
        except EnvError as error:
            problems.append(f"step({show(text)}) ended with {error}")
            continue
        if not isinstance(step, Step):
            problems.append(f"step({show(text)}) returned {show(step)}; expected an envs.Step")
        elif step.valid != is_legal:
            problems.append(f"is_legal and step do not agree on {show(text)}")
        elif not step.valid and (env.observe() != before or env.num_actions or step.reward):
            problems.append(f"{show(text)} is no action, but step({show(text)}) changed the game")
    return problems[:3]


def try_text(env: Env, text: str) -> tuple[bool, Step]:
    is_legal = env.is_legal(text)
    step = env.step(text)
    check_text(env.observe(), "observe", env)
    return is_legal, step


def check_sentences(subject: Subject) -> list[str]:
    """Check that `rules()` is the same text for all instances, and that `why_lost()` is a text.

    Also check that `check_thought` finds all `statements()` in a thought that consists of them."""
    episode = Episode(subject.make(), Config())
    env = episode.env
    problems = []
    rules = set()
    for seed in SEEDS:
        env.reset([seed, CHECK_SEED])
        rules.add(episode.system())
        rng = action_rng(seed)
        for _ in range(env.max_actions):
            facts = episode.statements()
            thought = " ".join(facts)
            if check_thought(thought, facts) != (len(facts), len(facts)):
                problems.append(
                    f"statements {show(facts)} cannot be read back; each must be one sentence that "
                    "ends with the only full stop in it"
                )
            if is_over(env):
                break
            env.step(random_action(env, rng))
        check_text(env.why_lost(), "why_lost", env)
    if len(rules) > 1:
        problems.append("rules() differs between instances; put what differs into observe()")
    return problems[:3]


def check_players(subject: Subject) -> list[str]:
    env = subject.make()
    problems = []
    if missing_method(env, "random"):
        problems.append("there is no random player; define random(count, rng)")
    for seed in SEEDS:
        env.reset([seed, CHECK_SEED])
        rng = action_rng(seed)
        for _ in range(env.max_actions):
            if is_over(env):
                break
            problems += player_problems(env, rng)
            env.step(random_action(env, rng))
    return list(dict.fromkeys(problems))[:3]


def player_problems(env: Env, rng: np.random.Generator) -> list[str]:
    chosen = {"plan": env.plan(3, env.actions_left)}
    if not missing_method(env, "random"):
        chosen["random"] = env.random(3, rng)
    if not missing_method(env, "greedy"):
        chosen["greedy"] = [env.greedy()]
    if not missing_method(env, "demonstrations"):
        chosen["demonstrate"] = env.demonstrate(3, rng)
    problems = []
    for method, actions in chosen.items():
        if not isinstance(actions, list) or not all(isinstance(a, str) for a in actions):
            problems.append(f"{method} returned {show(actions)}; expected a list of texts")
        elif len(actions) > 3:
            problems.append(f"{method} returned {len(actions)} actions; expected at most 3")
        elif actions and not env.is_legal(actions[0]):
            problems.append(f"{method} chose {show(actions[0])}, which is no action now")
    return problems


def check_skill(subject: Subject) -> list[str]:
    env = subject.make(EXPERT_ACTIONS)
    if missing_method(env, "optimal"):
        subject.notes.append("plan() is not defined, so there is no optimal player")
        return []
    wins = []
    random_wins = 0
    for index in range(NUM_PLAYED):
        env.reset(index, split="eval")
        wins.append(wins_game(env, lambda env: [*env.plan(1, env.actions_left), env.greedy()][0]))
        rng = action_rng(index)
        weak = subject.make(2 * env.num_actions)
        weak.reset(index, split="eval")
        random_wins += wins_game(weak, lambda env, rng=rng: random_action(env, rng))
    subject.notes.append(
        f"the expert wins {sum(wins)} of {NUM_PLAYED} games, and random play with twice the "
        f"actions {random_wins}"
    )
    problems = []
    if not all(wins) and not is_random(subject):
        problems.append(
            f"plan loses evaluation game {wins.index(False)} in {EXPERT_ACTIONS} actions, although "
            "nothing in the game is random"
        )
    if random_wins > MAX_RANDOM * sum(wins):
        problems.append(
            f"random play wins {random_wins} games and the expert {sum(wins)} of {NUM_PLAYED}; "
            "there is little to learn"
        )
    return problems


def wins_game(env: Env, choose: Callable[[Env], str]) -> bool:
    success = False
    for _ in range(env.max_actions):
        if is_over(env):
            break
        success = env.step(choose(env)).success
    return success


def is_random(subject: Subject) -> bool:
    """Whether the same actions on the same instance can lead to different games.

    The function plays each instance with several values of `member`. `member` changes only the
    random events of a game."""
    for seed in SEEDS:
        logs = set()
        for member in range(4):
            logs.add(tuple(game_log(subject.make(EXPERT_ACTIONS), seed, member=member)))
        if len(logs) > 1:
            return True
    return False


def check_speed(subject: Subject) -> list[str]:
    env = subject.make()
    step_times = []
    draw_times = []
    for seed in SEEDS:
        began = time.perf_counter()
        env.draw(np.random.default_rng([seed, CHECK_SEED]))
        draw_times.append(time.perf_counter() - began)
        env.reset([seed, CHECK_SEED])
        rng = action_rng(seed)
        while not is_over(env) and len(step_times) < 10 * len(draw_times):
            action = random_action(env, rng)
            began = time.perf_counter()
            env.step(action)
            step_times.append(time.perf_counter() - began)
    step_s = median(step_times)
    draw_s = median(draw_times)
    subject.notes.append(f"a step takes {1000 * step_s:.3g} ms, a draw {1000 * draw_s:.3g} ms")
    problems = []
    if step_s > SLOW_STEP_S and not env.blocking:
        problems.append(
            f"a step takes {step_s:.2g} s; speed it up, or set blocking = True if it waits"
        )
    if draw_s > SLOW_DRAW_S:
        problems.append(f"a draw takes {draw_s:.2g} s; every group of a run draws an instance")
    return problems


CHECKS: dict[str, Callable[[Subject], list[str]]] = {
    "a seed gives the same game in any order": check_repeats,
    "a seed gives the same game in another process": check_processes,
    "no global random generator is used": check_generators,
    "training games do not look like those of the evaluation": check_splits,
    "games end with the action budget, and rewards keep their limits": check_budget,
    "any text is handled": check_texts,
    "rules and statements can be used": check_sentences,
    "players choose legal actions": check_players,
    "the expert wins clearly more often than random play": check_skill,
    "steps and draws are fast": check_speed,
}


if __name__ == "__main__":
    run_main(main)
