"""Multi-turn rollouts, token in and token out: sampled ids are kept and nothing is ever re-encoded.

`collect` plays many episodes at once on an engine of `engine.py`. When a trajectory finishes its turn, its environment
steps and its next turn joins the running batch: no barrier between turns. Masks are by construction:
`Turn.response_ids` is what the policy sampled, `Turn.prompt_ids` was put there by us: not trained.
"""

from configurator import Config, UserError

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from queue import Empty, SimpleQueue

from dialogue import Episode, Outcome, shape_rewards
from engine import Sample
from envs import env_specs, make_env, reserved_keys
from model import IM_END, IM_START


@dataclass
class Turn:
    """What was put before the sample, what was sampled, and what the environment made of it."""

    prompt_ids: list[
        int
    ]  # the first prompt, or a forced end of the last turn and the next observation; with
    # context_turns everything that this turn sees
    response_ids: list[
        int
    ]  # sampled by the policy, its end-of-turn token included when it sampled one
    rollout_logprobs: list[float]  # of response_ids under the sampler, after temperature, nats
    reward: float = (
        0.0  # environment units, format penalty included; earned by this turn's response
    )
    text: str = ""  # the response decoded for the parser; never encoded again
    observation: str = ""  # the user message that the response answers
    info: dict = field(default_factory=dict)  # see dialogue.Outcome


@dataclass
class Trajectory:
    """One episode. `status`: success, failure, out_of_turns, out_of_tokens, error (info["error"] of the last turn)."""

    seed: tuple[int, ...]
    member: int
    turns: list[Turn] = field(default_factory=list)
    status: str = ""
    system: str = ""
    env: str = ""

    @property
    def ids(self) -> list[int]:
        return [token for turn in self.turns for token in (*turn.prompt_ids, *turn.response_ids)]

    @property
    def first_prompt_ids(self) -> list[int]:
        """The tokens before the first response."""
        return self.turns[0].prompt_ids

    @property
    def response_mask(self) -> list[bool]:
        """True exactly on the tokens the policy sampled."""
        return [
            flag
            for t in self.turns
            for flag in (*[False] * len(t.prompt_ids), *[True] * len(t.response_ids))
        ]

    @property
    def rollout_logprobs(self) -> list[float]:
        return [lp for turn in self.turns for lp in turn.rollout_logprobs]

    @property
    def num_response_tokens(self) -> int:
        return sum(len(turn.response_ids) for turn in self.turns)

    @property
    def score(self) -> float:
        """Sum of turn rewards: the raw trajectory score that the filter and GRPO look at."""
        return sum(turn.reward for turn in self.turns)

    @property
    def success(self) -> bool:
        return self.status == "success"


def split_by_context(trajectories: Sequence[Trajectory], config: Config) -> list[Trajectory]:
    """What goes through the model: trajectories as they are, or turn by turn where these forget. Tokens keep order."""
    if not config.context_turns:
        return list(trajectories)
    return [replace(t, turns=[turn]) for t in trajectories for turn in t.turns]


def unmask(trajectory: Trajectory, end_id: int) -> Trajectory:
    """The trajectory as the code of the paper's day trained on it: everything after the system message counts as
    sampled. Its log-probs under the sampler are not known: nan."""
    opening, turns = trajectory.turns[0].prompt_ids, []
    system = opening[: opening.index(end_id) + 2]  # with the mark and the line break behind it
    for turn in trajectory.turns:
        cut = (
            len(system) if turn.prompt_ids[: len(system)] == system else 0
        )  # a window begins with it anew
        prompt, nans = turn.prompt_ids[cut:], [math.nan] * (len(turn.prompt_ids) - cut)
        turns.append(
            replace(
                turn,
                prompt_ids=turn.prompt_ids[:cut],
                response_ids=prompt + turn.response_ids,
                rollout_logprobs=nans + turn.rollout_logprobs,
            )
        )
    return replace(trajectory, turns=turns)


# ---------- chat format


class Chat:
    """ChatML as token ids. Role marks are put by id, contents are encoded without special tokens: no text from the
    environment or echoed from the policy can forge a role boundary."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.start, self.end = tokenizer.convert_tokens_to_ids([IM_START, IM_END])
        if None in (self.start, self.end) or self.start == self.end:
            raise UserError(
                f"the tokenizer has no {IM_START} and {IM_END} tokens; expected a ChatML (Qwen) tokenizer"
            )
        self.encode = lru_cache(maxsize=4096)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(
            self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        )

    def message(self, role: str, text: str) -> list[int]:
        return [
            self.start,
            *self.encode(f"{role}\n"),
            *self.encode(text),
            self.end,
            *self.encode("\n"),
        ]

    def opening(self, system: str, user: str) -> list[int]:
        """The first prompt, up to and including the mark that opens the assistant's turn."""
        return [*self.message("system", system), *self._reply_to(user)]

    def following(self, user: str, *, closed: bool) -> list[int]:
        """What comes between two responses. `closed`: the policy sampled its own end-of-turn token."""
        return [*([] if closed else [self.end]), *self.encode("\n"), *self._reply_to(user)]

    def _reply_to(self, user: str) -> list[int]:
        return [*self.message("user", user), self.start, *self.encode("assistant\n")]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a response without its end-of-turn token."""
        ids = ids[:-1] if ids and ids[-1] == self.end else ids
        return self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )


# ---------- the multi-turn loop


def make_episode(config: Config, env: str = "") -> Episode:
    """A new dialogue with this environment, by default the one that the config names."""
    made = make_env(
        env or config.env, observation=config.observation, max_actions=config.actions_per_traj
    )
    made.also_reserved = env_specs(config.env, config.eval_env)
    try:
        reserved_keys(
            made.spec, *made.also_reserved
        )  # now and not in the first `reset`, which has a time limit
    except Exception as error:  # of anybody's code
        raise UserError(
            f"env={made.spec!r} cannot draw its instances: {type(error).__name__}: {error}"
        ) from error
    return Episode(made, config)


def next_prompt(chat: Chat, t: Trajectory, user: str, context_turns: int) -> list[int]:
    """What is put before the next response: the next message, or with `context_turns` all that the turn may see."""
    if not context_turns:
        return chat.following(user, closed=t.turns[-1].response_ids[-1] == chat.end)
    seen = t.turns[max(0, len(t.turns) + 1 - context_turns) :]
    users = [*(turn.observation for turn in seen), user]
    prompt = chat.opening(t.system, users[0])
    for turn, following in zip(seen, users[1:], strict=True):
        prompt += [
            *turn.response_ids,
            *chat.following(following, closed=turn.response_ids[-1] == chat.end),
        ]
    return prompt


def reshape_rewards(t: Trajectory, episode: Episode) -> None:
    """Put `dialogue.shape_rewards` of the environment's rewards in their place; penalties and bonuses stay."""
    density = episode.config.reward_density
    if density == "native" or t.status == "error":
        return
    native = [turn.info["env_reward"] for turn in t.turns]
    shaped = shape_rewards(
        native, t.success, density, most=episode.env.max_reward, remaining=episode.remaining
    )
    for turn, old, new in zip(t.turns, native, shaped, strict=True):
        turn.reward += new - old


class EnvError(Exception):
    """An environment raised, took too long, or paid what is no number."""


def error_outcome(error: object) -> Outcome:
    """The end of a trajectory whose environment failed."""
    nothing = dict.fromkeys(
        ("num_actions", "effective", "statements_checked", "statements_true", "env_reward"), 0
    )
    return Outcome(
        "", 0.0, "error", nothing | {"actions": [], "format_ok": False, "error": str(error)}
    )


def call_with_timeout(limit_s: float, call: Callable, *args, **options):
    """What `call`, an environment's code, returns. Raises: EnvError for whatever it raises, and after `limit_s` in the
    main thread: in others nothing can end it, there the caller watches the clock."""
    in_main = threading.current_thread() is threading.main_thread()

    def late(*_) -> None:
        raise TimeoutError(f"no answer within {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, late) if in_main else None
    try:
        if in_main:  # the process has one timer, and a thread could stop it
            signal.setitimer(signal.ITIMER_REAL, limit_s)
        return call(*args, **options)
    except Exception as error:
        raise EnvError(f"{type(error).__name__}: {error}") from error
    finally:
        if in_main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def open_episode(
    episode: Episode, t: Trajectory, split: str, limit_s: float
) -> tuple[str, str, Outcome | None]:
    """System message, user message and None; where that fails, empty ones and what the only turn is to come to."""
    try:
        return *call_with_timeout(
            limit_s, episode.reset, t.seed, split=split, member=t.member
        ), None
    except EnvError as error:
        return "", "", error_outcome(error)


def take_step(episode: Episode, text: str, limit_s: float) -> Outcome:
    """`episode.step`, or an outcome of status error."""
    try:
        outcome = call_with_timeout(limit_s, episode.step, text)
    except EnvError as error:
        return error_outcome(error)
    return (
        outcome
        if math.isfinite(outcome.reward)
        else error_outcome(f"its reward is {outcome.reward}")
    )


def without_errors(
    trajectories: Sequence[Trajectory], config: Config, group_size: int = 1
) -> list[Trajectory]:
    """The groups of which no member ended in an error of its environment: advantages compare whole groups.

    Raises: UserError with the first error if more than max_error_frac did, or no group is left."""
    broken = [t for t in trajectories if t.status == "error"]
    groups = [trajectories[i : i + group_size] for i in range(0, len(trajectories), group_size)]
    whole = [t for group in groups if not any(t.status == "error" for t in group) for t in group]
    if broken:
        share = f"{len(broken)} of {len(trajectories)} trajectories ended in an error of their environment"
        sentence = f"{share} (the first, {broken[0].env}: {broken[0].turns[-1].info['error']})"
        if len(broken) > config.max_error_frac * len(trajectories) or not whole:
            raise UserError(
                f"{sentence}; max_error_frac is {config.max_error_frac}, and whole groups must be left"
            )
        print(
            f"{sentence}; they fail an evaluation, and training leaves their groups out", flush=True
        )
    return whole


def collect(
    engine,
    chat: Chat,
    config: Config,
    starts: Sequence[tuple[tuple[int, ...], int]],
    *,
    split: str,
    temperature: float,
    noise_seed: Sequence[int],
    on_done: Callable[[], object] = lambda: None,
    episodes: Sequence | None = None,
    envs: Sequence[str] | None = None,
) -> list[Trajectory]:
    """Play one episode for each (instance seed, member) in `starts`, all at once; trajectories in the same order.

    Args: noise_seed: with instance, member and turn it seeds the sampling of every response, so the result does not
        depend on what happens to run together; on_done: called when a trajectory ends; episodes: what to play, by
        default those with `envs`, else what the config names. Raises: UserError for a too long first prompt."""
    envs, users, failed = envs or [config.env] * len(starts), [], []
    trajectories = [
        Trajectory(tuple(seed), member, env=env)
        for (seed, member), env in zip(starts, envs, strict=True)
    ]
    episodes = episodes or [make_episode(config, env) for env in envs]
    for trajectory, episode in zip(trajectories, episodes, strict=True):
        trajectory.system, user, error = open_episode(
            episode, trajectory, split, config.step_timeout_s
        )
        users.append(user), failed.append(error)
    history: list[list[int]] = [[] for _ in starts]  # every token so far
    prompts: list[list[int]] = [[] for _ in starts]  # the tokens put before the response under way

    def ask(i: int, prompt: list[int]) -> bool:
        """Hand the next turn to the engine; False when nothing more fits into the context."""
        room = min(
            config.max_response_tokens, config.max_context_tokens - len(history[i]) - len(prompt)
        )
        if room < 1:
            return False
        prompts[i], t = prompt, trajectories[i]
        history[i] += prompt
        seed = (*noise_seed, *t.seed, t.member, len(t.turns))
        engine.add(i, history[i], max_tokens=room, temperature=temperature, seed=seed)
        return True

    for i, trajectory in enumerate(trajectories):
        prompt, limit = chat.opening(trajectory.system, users[i]), config.max_context_tokens
        if not ask(i, prompt):
            raise UserError(
                f"the first prompt has {len(prompt)} tokens and max_context_tokens is {limit}; raise it"
            )
    for sample, text, outcome in finished_turns(
        engine, chat, episodes, failed, config.step_timeout_s
    ):
        i, trajectory = sample.key, trajectories[sample.key]
        history[i] += sample.ids
        turn = Turn(
            prompts[i], sample.ids, sample.logprobs, outcome.reward, text, users[i], outcome.info
        )
        trajectory.turns.append(turn)
        trajectory.status, users[i] = outcome.status or "", outcome.user
        if config.context_turns:  # a window begins anew
            engine.release(i)
            history[i] = []
        if not trajectory.status and not ask(
            i, next_prompt(chat, trajectory, users[i], config.context_turns)
        ):
            trajectory.status = "out_of_tokens"
        if trajectory.status:
            if not config.context_turns:
                engine.release(i)
            on_done()
    for trajectory, episode in zip(trajectories, episodes, strict=True):
        reshape_rewards(trajectory, episode)
    return trajectories


def finished_turns(
    engine,
    chat: Chat,
    episodes: Sequence[Episode],
    failed: Sequence[Outcome | None],
    limit_s: float,
) -> Iterator[tuple[Sample, str, Outcome]]:
    """Advance the engine until it has nothing left; yields every response with its text and what its environment made
    of it. A blocking environment works in a thread while the others go on, and is given up after `limit_s`. The outcome
    of those that `failed` is known."""
    done: SimpleQueue = SimpleQueue()  # what threads have finished: (sample, text, outcome)
    under_way: dict[int, tuple[float, Sample, str]] = {}  # with the time at which patience ends

    def work(sample: Sample, text: str) -> None:
        done.put((sample, text, take_step(episodes[sample.key], text, limit_s)))

    while engine.busy or under_way:
        for sample in engine.step() if engine.busy else ():
            text = chat.decode(sample.ids)
            if known := failed[sample.key]:
                yield sample, text, known
            elif episodes[sample.key].env.blocking:
                under_way[sample.key] = (time.monotonic() + limit_s, sample, text)
                threading.Thread(target=work, args=(sample, text), daemon=True).start()
            else:
                yield sample, text, take_step(episodes[sample.key], text, limit_s)
        while under_way:
            end, *late = min(under_way.values(), key=lambda entry: entry[0])
            left = end - time.monotonic()
            try:  # look, but wait only when there is nothing to decode
                finished = done.get(timeout=0 if engine.busy else max(0, left))
            except Empty:
                if left > 0:
                    break
                finished = *late, error_outcome(f"no answer within {limit_s:g} s")
            if under_way.pop(finished[0].key, None):  # else it was given up
                yield finished


def summarize(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means over trajectories (see the metric glossary in README); fractions are over turns or statements."""
    turns = [turn for t in trajectories for turn in t.turns]
    checked = sum(turn.info["statements_checked"] for turn in turns)
    n = len(trajectories)
    return {
        "success": sum(t.success for t in trajectories) / n,
        "reward": sum(t.score for t in trajectories) / n,
        "num_turns": len(turns) / n,
        "num_actions": sum(turn.info["num_actions"] for turn in turns) / n,
        "valid_frac": sum(turn.info["format_ok"] for turn in turns) / len(turns),
        "effective_frac": sum(turn.info["effective"] for turn in turns) / len(turns),
        "thought_true_frac": sum(turn.info["statements_true"] for turn in turns) / max(checked, 1),
        "thoughts_per_turn": checked / len(turns),
        "response_length": sum(t.num_response_tokens for t in trajectories) / n,
    }
