"""The dialogue between a policy and an environment: prompt, parser, limits, format penalty. No dynamics here.

What the prompt promises is what is executed: every limit it states is enforced, and unknown, surplus and malformed
answers are reported back in the next turn. The format penalty is part of the reward of the turn that earned it, unlike
RAGEN's, which is added to the trajectory's score and never shown. The policy's text is parsed, never rewritten.
"""

from configurator import Config, UserError, run_main

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from envs import Env, make_env


class Parsed(NamedTuple):
    """A response taken apart."""

    thought: str
    actions: list[str]
    well_formed: bool  # the promised tags in order and nothing outside of them


def parse_response(text: str, *, think: bool = True) -> Parsed:
    """Read `<think>..</think><answer>a || b</answer>`; without `think` only the answer. Linear time, never raises.

    >>> parse_response("<think>go</think><answer>Up || Left</answer>")
    Parsed(thought='go', actions=['Up', 'Left'], well_formed=True)
    """
    inside, outside, rest = {"think": ""}, "", text
    for tag in ("think", "answer") if think else ("answer",):
        before, _, rest = rest.partition(f"<{tag}>")
        inside[tag], closed, rest = rest.partition(f"</{tag}>")
        if not closed:
            return Parsed("", [], False)
        outside += before
    actions = [part.strip() for part in inside["answer"].split("||")]
    return Parsed(inside["think"].strip(), [a for a in actions if a], not (outside + rest).strip())


def format_response(thought: str, actions: Sequence[str], *, think: bool = True) -> str:
    """The text that `parse_response` reads back; used by demonstrations and reference players."""
    return (
        f"<think>{thought}</think>" if think else ""
    ) + f"<answer>{' || '.join(actions)}</answer>"


class Outcome(NamedTuple):
    """What one turn did. `status` is None while the dialogue goes on; `user` is the next message ('' at the end)."""

    user: str
    reward: float  # environment reward plus format penalty, plus think_reward if that is on
    status: str | None  # success, failure, out_of_turns
    info: dict  # actions, num_actions, format_ok, effective, statements_checked, statements_true, env_reward; at the
    # end also closing, the observation that nobody answers


class Episode:
    """One dialogue with an environment: builds the messages, executes the answers, keeps the limits of the config."""

    def __init__(self, env: Env, config: Config):
        self.env, self.config = env, config

    def reset(
        self, seed: int | Sequence[int], *, split: str = "train", member: int = 0
    ) -> tuple[str, str]:
        """Returns (system message, first user message). The system message is the same for all instances."""
        return self.open(self.env.reset(seed, split=split, member=member))

    def open(self, observation: str) -> tuple[str, str]:
        """The same for an environment that has just been started."""
        self.turn_idx, self.remaining = 0, self.plan_length()
        return self.system(), self._turn_text(observation, "")

    def plan_length(self) -> list[int]:
        """How long the best plan is from here, for the reward density that asks for it."""
        return [self.env.optimal_length()] if self.config.reward_density == "plan" else []

    def system(self) -> str:
        most = min(self.config.actions_per_turn, self.env.max_actions)
        form = format_response("thoughts", ["action"] * min(most, 2), think=self.config.think)
        names = f"Actions: {', '.join(self.env.actions)}. " if type(self.env).actions else ""
        limits = f"{names}At most {most} action{'s' * (most > 1)} a turn."
        return f"{self.env.rules()}\n{limits}\nReply {form} in at most {self.config.max_response_tokens} tokens."

    def _turn_text(self, observation: str, report: str) -> str:
        left = self.env.actions_left
        head = f"Turn {self.turn_idx + 1} of {self.config.max_turns}, {left} action{'s' * (left != 1)} left."
        return f"{report}{head}\n{observation}"

    def step(self, response: str) -> Outcome:
        """Execute one response. Any text is accepted; what is not executed is reported in the next message."""
        config, facts = self.config, self.env.statements()
        parsed = parse_response(response, think=config.think)
        checked, true = check_thought(parsed.thought, facts)
        allowed = min(config.actions_per_turn, self.env.actions_left)
        earned, unknown, num_actions, num_effective, status = 0.0, [], 0, 0, None
        for action in parsed.actions[:allowed]:
            step = self.env.step(action)
            if not step.valid:
                unknown.append(action)
                continue
            earned, num_actions = (
                earned + float(step.reward),
                num_actions + 1,
            )  # which may be numpy's
            num_effective += step.effective
            if step.terminated or step.truncated:
                status = "success" if step.success else "failure"
                break
        self.remaining += self.plan_length()
        surplus = len(parsed.actions) - allowed
        format_ok = parsed.well_formed and not unknown and surplus <= 0 and num_actions > 0
        reward = earned + (0.0 if format_ok else config.format_penalty)
        self.turn_idx += 1
        if self.turn_idx == config.max_turns:
            status = status or "out_of_turns"
        stated = {s.strip() + "." for s in parsed.thought.split(".")} & {
            *facts
        }  # each once, repeated or not
        thinking = (
            config.think_reward * max(0, len(stated) - (checked - true)) / max(1, len({*facts}))
        )
        info = dict(
            actions=parsed.actions[:allowed],
            num_actions=num_actions,
            format_ok=format_ok,
            effective=num_effective / max(num_actions, 1),
            statements_checked=checked,
            statements_true=true,
            env_reward=earned,
        )
        report = self._report(reward, parsed, unknown, surplus, num_actions)
        user = "" if status else self._turn_text(self.env.observe(), report)
        info |= {"closing": self.env.observe()} if status else {}
        return Outcome(user, reward + thinking, status, info)

    def _report(
        self, reward: float, parsed: Parsed, unknown: list[str], surplus: int, num_actions: int
    ) -> str:
        notes = [f"Reward {round(reward, 6):g}."]
        if not parsed.well_formed:
            notes.append("The reply was not in the required form.")
        if unknown:
            names = (" ".join(name.split())[:20] for name in unknown[:3])
            notes.append("Unknown action: " + ", ".join(f'"{name}"' for name in names) + ".")
        if surplus > 0:
            notes.append(f"Not executed, over the limit: {surplus}.")
        if num_actions == 0:
            notes.append("No action was executed; nothing changed.")
        return " ".join(notes) + "\n"


def reference_actions(episode: Episode, player: str, rng: np.random.Generator) -> list[str]:
    """What a reference player answers now: `optimal` commits the best plan of at most `actions_per_turn` actions,
    `greedy` and `random` decide on a single one."""
    if player == "random":
        return episode.env.random(1, rng)
    turns_left = episode.config.max_turns - episode.turn_idx
    plan = (
        episode.env.plan(episode.config.actions_per_turn, turns_left) if player == "optimal" else []
    )
    return plan or [episode.env.greedy()]


def check_thought(thought: str, facts: list[str]) -> tuple[int, int]:
    """(checkable sentences, true ones): a sentence is checkable when it begins like a fact about the board.

    >>> check_thought("Goal up. Next ice. I go.", ["Goal up.", "Next hole."])
    (2, 1)
    """
    subjects = {fact.split()[0] for fact in facts}
    sentences = [
        s.strip() + "." for s in thought.split(".") if s.strip() and s.split()[0] in subjects
    ]
    return len(sentences), sum(s in facts for s in sentences)


def shape_rewards(
    rewards: Sequence[float],
    success: bool,
    density: str,
    *,
    most: float = 1.0,
    remaining: Sequence[int] = (),
) -> list[float]:
    """What the turns of a finished episode earn from the environment, at another density; the sum is 1 for a success
    and less than 1 for anything else (in arXiv 2510.01132, whose densities these are, a loss could exceed a win).

    "sparse" all at the last turn. "dense" progress as it is made: what the rewards so far amount to, as a share of
    `most`. "balanced" the same, but paid out at every second turn with progress, and at the end. "plan" steps nearer to
    the goal over the steps there were at first; a dead end is as far away as twice these.

    Args: rewards of the K turns in environment units; most: what a success pays; remaining: for "plan", lengths of the
        best plan before the first turn and after every one, 0 where there is none. Raises: UserError for others.
    >>> shape_rewards([1.0, 0.0, 1.0], True, "dense", most=2.0), shape_rewards([1.0, 1.0, 0.0], False, "balanced", most=4.0)
    ([0.5, 0.0, 0.5], [0.0, 0.5, 0.0])
    """
    last = len(rewards) - 1
    if density == "sparse":
        return [float(success and k == last) for k in range(len(rewards))]
    if density == "plan":
        first = remaining[0] or 1
        away = [first, *(n or 2 * first for n in remaining[1:])]
        away[-1] = 0 if success else away[-1]
        return [(a - b) / first for a, b in zip(away, away[1:], strict=False)]
    if density not in ("dense", "balanced"):
        raise UserError(f"reward density must be sparse, dense, balanced or plan, got {density!r}")
    totals = [min(sum(rewards[: k + 1]) / most, 0.99) for k in range(len(rewards))]
    totals[last] = 1.0 if success else totals[last]
    paid, milestones, shaped = 0.0, 0, []
    for k, total in enumerate(totals):
        milestones += rewards[k] > 0
        pays = density == "dense" or k == last or (rewards[k] > 0 and milestones % 2 == 0)
        shaped.append(total - paid if pays else 0.0)
        paid += shaped[-1]
    return shaped


# ---------- by hand


def main(argv: list[str]) -> None:
    """Play a training instance in the terminal (see envs.py): what is typed is put into tags where it has none."""
    flags = dict(arg.partition("=")[::2] for arg in argv[1:])
    seed, player = flags.pop("--seed", "0"), " ".join(flags)
    if not (argv and seed.isdecimal() and player in ("", "--expert", "--random")):
        wanted = "an environment, --seed=N, and one of --expert, --random or none"
        raise UserError(f"expected {wanted}; got {' '.join(argv)!r}")
    episode, rng, score, status = (
        Episode(make_env(argv[0]), Config()),
        np.random.default_rng(int(seed)),
        0.0,
        None,
    )
    system, user = episode.reset(int(seed))
    print(system)
    while not status:
        print(f"\n{user}")
        if player:
            actions = reference_actions(
                episode, "optimal" if player == "--expert" else "random", rng
            )
            print("> " + (text := format_response(" ".join(episode.env.statements()), actions)))
        else:
            try:
                text = input("> ")
            except EOFError:
                return
            text = text if "<" in text else format_response("", text.split("||"))
        user, reward, status, _ = episode.step(text)
        score += reward
    print(f"\n{episode.env.observe()}\n{status} after {episode.turn_idx} turns, score {score:g}")


if __name__ == "__main__":
    run_main(main)
