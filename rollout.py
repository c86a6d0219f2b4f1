"""Multi-turn rollouts, token in and token out: sampled ids are kept and never encoded again.

`collect` plays many episodes at once on an engine of `engine.py`. There is no barrier between
turns: as soon as one trajectory's turn ends, its environment steps and its next turn is queued.
Masks are built while sampling: `Turn.response_ids` is what the policy sampled and what is trained;
`Turn.prompt_ids` was inserted by us.

`Conversation` is the only place where a turn happens. `collect` drives it for a policy, `play` for
players that answer in text: reference players, demonstrations, API models, a human.
"""

from __future__ import annotations

from configurator import Config, UserError

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from dialogue import Chat, Episode, TurnOutcome, TurnRecord, shape_rewards
from envs import env_specs, make_env, reserved_keys

if TYPE_CHECKING:  # torch takes seconds to import, and only policies need it
    from engine import Engine, Sample

# ---------- data


@dataclass
class Turn:
    """One prompt, the response to it, and what the environment made of the response."""

    # The first prompt; later the next message, after a forced end mark where one is missing.
    # With context_turns: everything that this turn sees.
    prompt_ids: list[int]
    response_ids: list[int]  # sampled, with the end-of-turn token if the policy sampled one
    rollout_logprobs: list[float]  # of response_ids, under the engine, at its temperature, nats
    reward: float = 0.0  # environment units, format penalty included
    text: str = ""  # the response decoded for the parser; never encoded again
    observation: str = ""  # the user message that the response answers
    record: TurnRecord | None = None


@dataclass
class Trajectory:
    """One episode.

    `status`: success, failure, out_of_turns, out_of_tokens or error. '' while it is under way."""

    seed: tuple[int, ...]  # names the instance
    member: int  # index in the group; members differ in transition and sampling noise
    turns: list[Turn] = field(default_factory=list)
    status: str = ""
    system: str = ""
    env: str = ""

    @property
    def ids(self) -> list[int]:
        """All tokens of the trajectory."""
        ids = []
        for turn in self.turns:
            ids += turn.prompt_ids
            ids += turn.response_ids
        return ids

    @property
    def response_mask(self) -> list[bool]:
        """True exactly on the tokens that the policy sampled."""
        mask = []
        for turn in self.turns:
            mask += [False] * len(turn.prompt_ids)
            mask += [True] * len(turn.response_ids)
        return mask

    @property
    def first_prompt_ids(self) -> list[int]:
        return self.turns[0].prompt_ids

    @property
    def rollout_logprobs(self) -> list[float]:
        """Log-probs of the sampled tokens under the engine, nats."""
        return [logprob for turn in self.turns for logprob in turn.rollout_logprobs]

    @property
    def num_response_tokens(self) -> int:
        return sum(len(turn.response_ids) for turn in self.turns)

    @property
    def score(self) -> float:
        """R(tau), the sum of turn rewards: what the filter and GRPO compare."""
        return sum(turn.reward for turn in self.turns)

    @property
    def success(self) -> bool:
        return self.status == "success"

    @property
    def error(self) -> str | None:
        """Why the environment or the player failed; None for other ends."""
        return self.turns[-1].record.error if self.status == "error" else None


@dataclass
class Reply:
    """What a player answers to one message. Players that write text have no tokens."""

    text: str
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    rollout_logprobs: list[float] = field(default_factory=list)
    error: str | None = None  # why the player could not answer


# ---------- one episode


def make_episode(config: Config, env: str = "") -> Episode:
    """A new dialogue with environment `env`, by default the one that the config names.

    Raises: UserError for an unknown environment, or one that cannot draw its instances."""
    made = make_env(
        env or config.env, observation=config.observation, max_actions=config.actions_per_traj
    )
    made.also_reserved = env_specs(config.env, config.eval_env)
    try:
        # Draw the reserved instances now: `reset` draws them under a time limit.
        reserved_keys(made.spec, *made.also_reserved)
    except Exception as error:  # code of users
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"env={made.spec!r} cannot draw its instances: {reason}") from error
    return Episode(made, config)


class Conversation:
    """One episode under way: the trajectory so far and the user message that waits for a reply."""

    def __init__(self, episode: Episode, seed: Sequence[int], *, member: int = 0, env: str = ""):
        self.episode = episode
        self.config = episode.config
        self.trajectory = Trajectory(tuple(seed), member, env=env or episode.config.env)
        self.user = ""
        self.failure: TurnOutcome | None = None  # set when the environment could not start

    @property
    def done(self) -> bool:
        return bool(self.trajectory.status)

    def reset(self, split: str) -> None:
        """Start the episode. If that fails, its first turn will end it with status error."""
        trajectory = self.trajectory
        try:
            opening = call_with_timeout(
                self.config.step_timeout_s,
                self.episode.reset,
                trajectory.seed,
                split=split,
                member=trajectory.member,
            )
        except EnvError as error:
            self.failure = failed_outcome(error)
        else:
            self.open(*opening)

    def open(self, system: str, user: str) -> None:
        """Take up the first messages of an episode that the caller started."""
        self.trajectory.system = system
        self.user = user

    def respond(self, text: str) -> TurnOutcome:
        """Let the environment answer a reply. Every failure of the environment is an outcome."""
        if self.failure:
            return self.failure
        try:
            outcome = call_with_timeout(self.config.step_timeout_s, self.episode.step, text)
        except EnvError as error:
            return failed_outcome(error)
        if not math.isfinite(outcome.reward):
            return failed_outcome(f"its reward is {outcome.reward}")
        return outcome

    def add_turn(self, reply: Reply, outcome: TurnOutcome) -> None:
        """Record a reply with what came of it, and take up the next message."""
        turn = Turn(
            prompt_ids=reply.prompt_ids,
            response_ids=reply.response_ids,
            rollout_logprobs=reply.rollout_logprobs,
            reward=outcome.reward,
            text=reply.text,
            observation=self.user,
            record=outcome.record,
        )
        self.trajectory.turns.append(turn)
        self.trajectory.status = outcome.status or ""
        self.user = outcome.user

    def next_prompt(self, chat: Chat) -> list[int]:
        """The tokens to put before the next response."""
        if not self.trajectory.turns:
            return chat.opening(self.trajectory.system, self.user)
        return next_prompt(chat, self.trajectory, self.user, self.config.context_turns)

    def finish(self) -> Trajectory:
        """The trajectory, its rewards at the density that the config names."""
        trajectory = self.trajectory
        density = self.config.reward_density
        if density == "native" or trajectory.status == "error":
            return trajectory
        native = [turn.record.env_reward for turn in trajectory.turns]
        shaped = shape_rewards(
            native,
            trajectory.success,
            density,
            max_reward=self.episode.env.max_reward,
            plan_lengths=self.episode.plan_lengths,
        )
        for turn, before, after in zip(trajectory.turns, native, shaped, strict=True):
            turn.reward += after - before  # penalties and bonuses stay
        return trajectory


def play(conversation: Conversation, player: Callable[[Conversation], Reply | None]) -> Trajectory:
    """Play a started conversation to its end with a player that answers at once.

    Args: player: gives the reply to `conversation.user`, or None when no more tokens fit."""
    while not conversation.done:
        reply = Reply("") if conversation.failure else player(conversation)
        if reply is None:
            conversation.trajectory.status = "out_of_tokens"
            break
        outcome = failed_outcome(reply.error) if reply.error else conversation.respond(reply.text)
        conversation.add_turn(reply, outcome)
    return conversation.finish()


def next_prompt(chat: Chat, trajectory: Trajectory, user: str, context_turns: int) -> list[int]:
    """The tokens between the last response and the next one.

    With `context_turns` the engine forgets earlier turns, so the prompt repeats all that the turn
    may see."""
    turns = trajectory.turns
    if not context_turns:
        return chat.following(user, closed=chat.is_closed(turns[-1].response_ids))
    visible = turns[max(0, len(turns) + 1 - context_turns) :]
    users = [turn.observation for turn in visible]
    users.append(user)
    prompt = chat.opening(trajectory.system, users[0])
    for turn, following_user in zip(visible, users[1:], strict=True):
        prompt += turn.response_ids
        prompt += chat.following(following_user, closed=chat.is_closed(turn.response_ids))
    return prompt


# ---------- environments that fail


class EnvError(Exception):
    """An environment raised an error, took too long, or paid something that is not a number."""


def failed_outcome(error: object) -> TurnOutcome:
    """The end of a trajectory whose environment or player failed."""
    return TurnOutcome("", 0.0, "error", TurnRecord(actions=[], error=str(error)))


def call_with_timeout(limit_s: float, call: Callable, *args, **options):
    """Call code of an environment.

    Only the main thread can interrupt the call after `limit_s`. In another thread nothing can, so
    the thread that waits for it watches the clock.
    Raises: EnvError for whatever the call raises, and for a timeout."""
    in_main_thread = threading.current_thread() is threading.main_thread()

    def on_alarm(*_) -> None:
        raise TimeoutError(f"no answer within {limit_s:g} s")

    try:
        if in_main_thread:
            previous_handler = signal.signal(signal.SIGALRM, on_alarm)
            signal.setitimer(signal.ITIMER_REAL, limit_s)
        return call(*args, **options)
    except Exception as error:
        raise EnvError(f"{type(error).__name__}: {error}") from error
    finally:
        if in_main_thread:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous_handler)


def without_errors(
    trajectories: Sequence[Trajectory], config: Config, group_size: int = 1
) -> list[Trajectory]:
    """Drop every group with a member whose environment failed: advantages compare whole groups.

    Raises: UserError with the first error if more than max_error_frac failed, or no group is left.
    """
    failed = [trajectory for trajectory in trajectories if trajectory.status == "error"]
    if not failed:
        return list(trajectories)
    kept = []
    for start in range(0, len(trajectories), group_size):
        group = trajectories[start : start + group_size]
        if all(trajectory.status != "error" for trajectory in group):
            kept += group
    counts = f"{len(failed)} of {len(trajectories)} trajectories ended in an environment error"
    sentence = f"{counts} (the first, in {failed[0].env}: {failed[0].error})"
    if len(failed) > config.max_error_frac * len(trajectories) or not kept:
        raise UserError(
            f"{sentence}; max_error_frac is {config.max_error_frac}, "
            "and at least one whole group must be left"
        )
    print(f"{sentence}; training drops their groups, evaluation counts a failure", flush=True)
    return kept


# ---------- many episodes on one engine


def collect(
    engine: Engine,
    chat: Chat,
    config: Config,
    starts: Sequence[tuple[tuple[int, ...], int]],
    *,
    split: str,
    temperature: float,
    noise_seed: Sequence[int],
    on_done: Callable[[], object] = lambda: None,
    episodes: Sequence[Episode] | None = None,
    envs: Sequence[str] | None = None,
) -> list[Trajectory]:
    """Play one episode for each (instance seed, member) in `starts`, all at once.

    Args: noise_seed: with instance, member and turn it seeds the sampling of every response, so
        the result does not depend on the other episodes in the batch; on_done: called when a
        trajectory ends; episodes: what to play, by default a new one for each of `envs`; envs: by
        default the environment of the config.
    Returns: the trajectories in the order of `starts`.
    Raises: UserError if a first prompt does not fit into the context."""
    envs = envs or [config.env] * len(starts)
    episodes = episodes or [make_episode(config, env) for env in envs]
    conversations = []
    for (seed, member), env, episode in zip(starts, envs, episodes, strict=True):
        conversation = Conversation(episode, seed, member=member, env=env)
        conversation.reset(split)
        conversations.append(conversation)
    scheduler = RolloutScheduler(
        engine, chat, config, conversations, temperature=temperature, noise_seed=noise_seed
    )
    scheduler.run(on_done)
    return [conversation.finish() for conversation in conversations]


class RolloutScheduler:
    """Keeps an engine busy with many conversations.

    The key of a conversation in the engine is its index."""

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        config: Config,
        conversations: Sequence[Conversation],
        *,
        temperature: float,
        noise_seed: Sequence[int],
    ):
        self.engine = engine
        self.chat = chat
        self.config = config
        self.conversations = conversations
        self.temperature = temperature
        self.noise_seed = noise_seed
        self.histories: list[list[int]] = [[] for _ in conversations]  # every token so far
        self.prompts: list[list[int]] = [[] for _ in conversations]  # before the pending response

    def run(self, on_done: Callable[[], object]) -> None:
        """Play all conversations to their ends."""
        for key, conversation in enumerate(self.conversations):
            prompt = conversation.next_prompt(self.chat)
            if not self._request_turn(key, prompt):
                raise UserError(
                    f"the first prompt has {len(prompt)} tokens and max_context_tokens is "
                    f"{self.config.max_context_tokens}; raise it"
                )
        for sample, text, outcome in self._finished_turns():
            self._take(sample, text, outcome)
            if self.conversations[sample.key].done:
                on_done()

    def _request_turn(self, key: int, prompt: list[int]) -> bool:
        """Queue the next turn in the engine. Returns: False if nothing more fits."""
        trajectory = self.conversations[key].trajectory
        used = len(self.histories[key]) + len(prompt)
        room = min(self.config.max_response_tokens, self.config.max_context_tokens - used)
        if room < 1:
            return False
        self.prompts[key] = prompt
        self.histories[key] += prompt
        self.engine.add(
            key,
            self.histories[key],
            max_tokens=room,
            temperature=self.temperature,
            seed=(*self.noise_seed, *trajectory.seed, trajectory.member, len(trajectory.turns)),
        )
        return True

    def _take(self, sample: Sample, text: str, outcome: TurnOutcome) -> None:
        """Record a finished turn and queue the next one."""
        key = sample.key
        conversation = self.conversations[key]
        forgets = bool(self.config.context_turns)
        self.histories[key] += sample.ids
        reply = Reply(text, self.prompts[key], sample.ids, sample.logprobs)
        conversation.add_turn(reply, outcome)
        if forgets:  # the next prompt repeats what the next turn may see
            self.engine.release(key)
            self.histories[key] = []
        if not conversation.done and not self._request_turn(
            key, conversation.next_prompt(self.chat)
        ):
            conversation.trajectory.status = "out_of_tokens"
        if conversation.done and not forgets:
            self.engine.release(key)

    def _finished_turns(self) -> Iterator[tuple[Sample, str, TurnOutcome]]:
        """Advance the engine until nothing is left; yield each response, its text, its outcome.

        A blocking environment works in a thread while the others go on. It is given up after
        step_timeout_s."""
        blocking = BlockingSteps(self.conversations, self.config.step_timeout_s)
        while self.engine.busy or blocking.pending:
            samples = self.engine.step() if self.engine.busy else []
            for sample in samples:
                text = self.chat.decode(sample.ids)
                conversation = self.conversations[sample.key]
                if conversation.episode.env.blocking and not conversation.failure:
                    blocking.start(sample, text)
                else:
                    yield sample, text, conversation.respond(text)
            yield from blocking.finished(self.engine)


class BlockingSteps:
    """Steps of environments that wait for a program or a server, each in a thread of its own."""

    def __init__(self, conversations: Sequence[Conversation], limit_s: float):
        self.conversations = conversations
        self.limit_s = limit_s
        self.results: SimpleQueue = SimpleQueue()  # (sample, text, outcome), put by the threads
        self.pending: dict[int, tuple[float, Sample, str]] = {}  # key: (deadline, sample, text)

    def start(self, sample: Sample, text: str) -> None:
        def work() -> None:
            outcome = self.conversations[sample.key].respond(text)
            self.results.put((sample, text, outcome))

        self.pending[sample.key] = (time.monotonic() + self.limit_s, sample, text)
        threading.Thread(target=work, daemon=True).start()

    def finished(self, engine: Engine) -> Iterator[tuple[Sample, str, TurnOutcome]]:
        """Yield the steps that ended or ran out of time.

        It waits for a thread only while the engine has nothing to decode."""
        while self.pending:
            deadline, late_sample, late_text = min(
                self.pending.values(), key=lambda entry: entry[0]
            )
            left_s = deadline - time.monotonic()
            try:
                result = self.results.get(timeout=0 if engine.busy else max(0, left_s))
            except Empty:
                if left_s > 0:
                    return
                outcome = failed_outcome(f"no answer within {self.limit_s:g} s")
                result = (late_sample, late_text, outcome)
            if self.pending.pop(result[0].key, None):  # otherwise it was given up earlier
                yield result


# ---------- trajectories for training and reports


def split_by_context(trajectories: Sequence[Trajectory], config: Config) -> list[Trajectory]:
    """The training sequences: whole trajectories, or single turns where the policy forgets.

    With context_turns every turn repeats its context in its own prompt. The order of the response
    tokens stays."""
    if not config.context_turns:
        return list(trajectories)
    return [
        replace(trajectory, turns=[turn])
        for trajectory in trajectories
        for turn in trajectory.turns
    ]


def unmask(trajectory: Trajectory, end_id: int) -> Trajectory:
    """Count every token after the system message as sampled: RAGEN v1's loss mask.

    Log-probs of tokens that the engine did not sample are unknown: NaN."""
    opening = trajectory.turns[0].prompt_ids
    system = opening[: opening.index(end_id) + 2]  # with the end mark and its line break
    turns = []
    for turn in trajectory.turns:
        # With context_turns every prompt begins with the system message.
        masked = len(system) if turn.prompt_ids[: len(system)] == system else 0
        unmasked = turn.prompt_ids[masked:]
        turns.append(
            replace(
                turn,
                prompt_ids=turn.prompt_ids[:masked],
                response_ids=unmasked + turn.response_ids,
                rollout_logprobs=[math.nan] * len(unmasked) + turn.rollout_logprobs,
            )
        )
    return replace(trajectory, turns=turns)


def summarize(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of the group "rollout" that need no group structure; see support/metrics.py."""
    num_trajectories = len(trajectories)
    records = [turn.record for trajectory in trajectories for turn in trajectory.turns]
    num_turns = len(records)
    num_checked = sum(record.statements_checked for record in records)
    num_true = sum(record.statements_true for record in records)
    num_tokens = sum(trajectory.num_response_tokens for trajectory in trajectories)
    return {
        "success": sum(trajectory.success for trajectory in trajectories) / num_trajectories,
        "reward": sum(trajectory.score for trajectory in trajectories) / num_trajectories,
        "num_turns": num_turns / num_trajectories,
        "num_actions": sum(record.num_actions for record in records) / num_trajectories,
        "valid_frac": sum(record.format_ok for record in records) / num_turns,
        "effective_frac": sum(record.effective for record in records) / num_turns,
        "thought_true_frac": num_true / max(num_checked, 1),
        "thoughts_per_turn": num_checked / num_turns,
        "response_length": num_tokens / num_trajectories,
    }
