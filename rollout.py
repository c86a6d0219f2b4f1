"""Multi-turn rollouts, token in and token out: sampled ids are kept, never encoded again.

`collect` plays many episodes at once on an engine of `engine.py`. There is no barrier between
turns: as soon as one trajectory's turn ends, its environment steps and its next turn is queued. The
policy samples `Turn.response_ids` and is trained on them. `Turn.prompt_ids` are the tokens since
the previous response. If context_turns > 0, `Turn.prompt_ids` are the whole prompt.

A `Rollout` plays one episode, turn by turn. `collect` drives rollouts for a policy. `play` drives
rollouts for players that answer in text: reference players, demonstrations, API models, a human.
"""

from __future__ import annotations

from configurator import Config, UserError

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from dialogue import Chat, Episode, TurnOutcome, TurnRecord, cut_fault
from envs import as_user_error, check_uses, make_env, reserved_keys
from mixtures import env_specs
from utils.text import printable
from utils.threads import call_all, start_thread
from utils.time_limit import EnvError, call_with_timeout

if TYPE_CHECKING:  # torch takes seconds to import, and only policies need it
    from engine import Engine, Sample

MAX_REWARD = 1e9  # a larger absolute reward of a turn is an error, because sums may overflow

# ---------- data


@dataclass
class Credit:
    """A turn's advantage and value, for records.

    Both are None unless the filter kept the group of trajectories that the turn belongs to."""

    advantage: float | None = None  # mean advantage of the response tokens, as in the loss
    value: float | None = None  # critic's value at the first response token; None without a critic


@dataclass
class Turn:
    """One prompt, the response to it, and its outcome in the environment."""

    # The first turn has the first prompt. Later turns have the tokens since the previous response.
    # If context_turns > 0, each turn has its whole context, earlier responses included.
    prompt_ids: list[int]
    # The sampled tokens, with the end-of-turn token if it was sampled. `unmask` puts prompt tokens
    # before them. An API gives no ids, only a text and the number of sampled tokens. So for an API
    # the list is the text and then empty strings. The list has one item per sampled token.
    response_ids: list[int] | list[str]
    # log pi_engine of response_ids at the sampling temperature, nats; NaN if the engine gave none
    rollout_logprobs: list[float]
    # environment reward (reward_density can change it) + format penalty + bonus from think_reward
    reward: float = 0.0
    text: str = ""  # the decoded response; never encoded again
    observation: str = ""  # the user message that the response answers
    record: TurnRecord = field(default_factory=lambda: TurnRecord(actions=[]))  # what happened
    # `unmask` copies the turn, but the copy and the turn share this object. So what `note_credit`
    # (support/records.py) writes to the copy's credit is also in the turn.
    credit: Credit = field(default_factory=Credit)
    state: Hashable = None  # key of the state before the response, see `Episode.state`


@dataclass
class Trajectory:
    """All turns of one episode, or a single turn (see `split_by_context`)."""

    seed: tuple[int, ...]  # of the instance
    member: int  # index in the group
    turns: list[Turn] = field(default_factory=list)
    # success, failure, out_of_turns, out_of_tokens or error; None while the game goes on
    status: str | None = None
    system: str = ""  # the system message
    env: str = ""  # name and options of the environment, as in the setting `env`
    split: str = ""  # split of the instance: train, eval or heldout; '' until the episode begins
    kept: bool | None = None  # whether the filter kept the group; None outside of training
    filter_value: float | None = None  # the value by which the filter ranked the group

    @property
    def ids(self) -> list[int]:
        """The tokens of all prompts and responses, in their order."""
        ids = []
        for turn in self.turns:
            ids += turn.prompt_ids
            ids += turn.response_ids
        return ids

    @property
    def response_mask(self) -> list[bool]:
        """True for response tokens, False for prompt tokens, in the order of `ids`."""
        mask = []
        for turn in self.turns:
            mask += [False] * len(turn.prompt_ids)
            mask += [True] * len(turn.response_ids)
        return mask

    @property
    def observation_mask(self) -> list[bool]:
        """True for the prompt tokens of all turns but the first, in the order of `ids`."""
        mask = []
        for index, turn in enumerate(self.turns):
            mask += [index > 0] * len(turn.prompt_ids)
            mask += [False] * len(turn.response_ids)
        return mask

    @property
    def has_void_turn(self) -> bool:
        """Whether at least one turn executed no action."""
        return any(turn.record.num_actions == 0 for turn in self.turns)

    @property
    def first_prompt_ids(self) -> list[int]:
        return self.turns[0].prompt_ids

    @property
    def rollout_logprobs(self) -> list[float]:
        """Log-probs of the response tokens under the engine, nats."""
        return [logprob for turn in self.turns for logprob in turn.rollout_logprobs]

    @property
    def num_response_tokens(self) -> int:
        return sum(len(turn.response_ids) for turn in self.turns)

    @property
    def score(self) -> float:
        """The sum of the turn rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def success(self) -> bool:
        return self.status == "success"

    @property
    def end(self) -> str | None:
        """The status, but "failure" is divided into "out_of_actions" and "lost"."""
        if self.status == "failure":
            return "out_of_actions" if self.out_of_actions else "lost"
        return self.status

    @property
    def error(self) -> str | None:
        """Why the trajectory ended in an error; None if it did not."""
        return self.turns[-1].record.error if self.status == "error" else None

    @property
    def out_of_actions(self) -> bool | None:
        """Whether a failed game ended because its actions were used up; None if it did not fail."""
        return self.turns[-1].record.out_of_actions if self.status == "failure" else None


@dataclass
class Reply:
    """The answer to one message."""

    text: str
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] | list[str] = field(default_factory=list)  # see `Turn`
    rollout_logprobs: list[float] = field(default_factory=list)
    error: str | None = None  # why the player could not answer
    cut_by: str | None = None  # the setting that cut the reply off; None if no setting did


# ---------- one episode


def make_episode(config: Config, env: str = "") -> Episode:
    """Build a new episode in the environment `env`, by default `config.env`.

    Raises: UserError if the environment is unknown, cannot draw its instances, or lacks a method
        that reward_density=plan needs."""
    environment = make_env(
        env or config.env, observation=config.observation, max_actions=config.actions_per_traj
    )
    # Training must not draw an instance of the evaluation or held-out split: these instances are
    # reserved. The settings `env` and `eval_env` can name the same game with different options.
    # Training in `env` could then draw an instance that is reserved for `eval_env`. So training
    # in any environment avoids the reserved instances of all environments in `env` and `eval_env`.
    # Only an environment with too few instances (`Env.repeats`) may draw reserved instances.
    environment.also_reserved = env_specs(config.env, config.eval_env)
    with as_user_error(f"env={environment.spec!r} cannot draw its instances"):
        # Draw and cache the reserved instances now, because `reset` has a time limit.
        reserved_keys(environment.spec, *environment.also_reserved)
    if config.reward_density == "plan":
        check_uses(environment, "reward_density=plan")  # needs Env.plan or Env.optimal_length
    return Episode(environment, config)


class Rollout:
    """One episode under way: the trajectory so far and the user message that waits for a reply."""

    def __init__(self, episode: Episode, seed: Sequence[int], *, member: int = 0):
        self.episode = episode
        self.config = episode.config
        self.trajectory = Trajectory(tuple(seed), member, env=episode.env.spec)
        self.user = ""
        self.failure: TurnOutcome | None = None  # set if the environment could not start

    @property
    def done(self) -> bool:
        return self.trajectory.status is not None

    @property
    def blocking(self) -> bool:
        """Whether the environment waits for a program or a server."""
        return self.episode.env.blocking

    def reset(self, split: str) -> None:
        """Start the episode. If the start fails, store the first turn's outcome in `failure`."""
        trajectory = self.trajectory
        trajectory.split = split
        try:
            opening = call_with_timeout(
                self.config.step_timeout_s,
                self.episode.reset,
                trajectory.seed,
                split=split,
                member=trajectory.member,
            )
        except EnvError as error:  # call_with_timeout turns every error into an EnvError
            self.failure = failed_outcome(error)
        else:
            self.trajectory.system, self.user = opening

    def execute(self, text: str) -> TurnOutcome:
        """Execute a reply.

        The outcome has the status "error" if the environment raises an error or exceeds the time
        limit. The status is also "error" if the reward of the turn is NaN or its absolute value
        exceeds MAX_REWARD."""
        if self.failure:
            return self.failure
        try:
            outcome = call_with_timeout(self.config.step_timeout_s, self.episode.step, text)
        except EnvError as error:  # any error, also one that dialogue.py raises
            return failed_outcome(error)
        if not abs(outcome.reward) <= MAX_REWARD:  # true for NaN, too
            return failed_outcome(f"its reward is {outcome.reward:g}")
        return outcome

    def add_turn(self, reply: Reply, outcome: TurnOutcome) -> None:
        """Record a reply and its outcome."""
        record = replace(outcome.record, cut_by=reply.cut_by)
        # A cut alone is no fault, because a reply that was cut off after </answer> can be valid. If
        # the reply has faults, a sentence about the cut is added to the faults.
        if reply.cut_by and record.faults:
            record.faults = [*record.faults, cut_fault(len(reply.response_ids), reply.cut_by)]
        turn = Turn(
            prompt_ids=reply.prompt_ids,
            response_ids=reply.response_ids,
            rollout_logprobs=reply.rollout_logprobs,
            reward=outcome.reward,
            text=reply.text,
            observation=self.user,
            record=record,
            state=outcome.state,  # the state before the reply, not after it
        )
        self.trajectory.turns.append(turn)
        self.trajectory.status = outcome.status
        self.user = outcome.user

    def next_prompt(self, chat: Chat) -> list[int]:
        """Return the tokens to put before the next response."""
        return following_prompt(chat, self.trajectory, self.user, self.config.context_turns)

    def finish(self) -> Trajectory:
        """Return the trajectory of an episode that is over.

        If the episode did not end in an error, first change the rewards of the turns as
        reward_density says. The messages to the policy contain the rewards before this change."""
        trajectory = self.trajectory
        density = self.config.reward_density
        if density != "native" and trajectory.status != "error":
            rewards = rewards_with_density(
                trajectory, density, self.episode.env.max_reward, self.episode.plan_lengths
            )
            for turn, reward in zip(trajectory.turns, rewards, strict=True):
                turn.reward = reward
        return trajectory


def rewards_with_density(
    trajectory: Trajectory, density: str, max_reward: float, plan_lengths: Sequence[int]
) -> list[float]:
    """Return the new reward of each turn.

    `shape_rewards` changes the environment's part of a reward. Penalties and bonuses stay.
    Args: see `methods.shape_rewards`."""
    from methods import shape_rewards  # here, because methods.py imports torch, which takes seconds

    native = [turn.record.env_reward for turn in trajectory.turns]
    shaped = shape_rewards(
        native, trajectory.success, density, max_reward=max_reward, plan_lengths=plan_lengths
    )
    rewards = []
    for turn, before, after in zip(trajectory.turns, native, shaped, strict=True):
        rewards.append(turn.reward + (after - before))
    return rewards


def play(rollout: Rollout, player: Callable[[Rollout], Reply | None]) -> Trajectory:
    """Play a started rollout to its end with a player that answers in text.

    `player` returns the reply to `rollout.user`, or None if the player's context has no room for a
    reply.
    """
    while not rollout.done:
        # If the environment could not start, `execute` ignores the reply and returns `failure`.
        reply = Reply("") if rollout.failure else player(rollout)
        if reply is None:
            rollout.trajectory.status = "out_of_tokens"
            break
        if reply.error:
            outcome = failed_outcome(reply.error)
        else:
            outcome = rollout.execute(reply.text)
        rollout.add_turn(reply, outcome)
    return rollout.finish()


def reset_all(rollouts: Sequence[Rollout], split: str) -> None:
    """Start rollouts. Blocking environments (see `Rollout.blocking`) start in threads."""
    for blocking in (False, True):
        resets = [
            partial(rollout.reset, split) for rollout in rollouts if rollout.blocking == blocking
        ]
        call_all(resets, at_once=blocking)


def play_all(
    rollouts: Sequence[Rollout],
    players: Sequence[Callable[[Rollout], Reply | None]],
    split: str,
) -> list[Trajectory]:
    """Play rollouts of one environment from start to end, each with a player of its own.

    Games of a blocking environment are played at the same time."""

    def play_from_start(rollout: Rollout, player: Callable) -> Trajectory:
        rollout.reset(split)
        return play(rollout, player)

    games = []
    for rollout, player in zip(rollouts, players, strict=True):
        games.append(partial(play_from_start, rollout, player))
    return call_all(games, at_once=rollouts[0].blocking)


def following_prompt(
    chat: Chat, trajectory: Trajectory, user: str, context_turns: int
) -> list[int]:
    """Return the prompt of the next turn: the tokens since the last response.

    In the first turn, these are the system message and the user message. If context_turns > 0, the
    engine forgets earlier turns. So each prompt repeats the system message and the turns that the
    policy may see."""
    turns = trajectory.turns
    if turns and not context_turns:
        # A response is closed if it ends with the end-of-turn token. If the last response is not
        # closed, `following` inserts the token.
        return chat.following(user, closed=chat.is_closed(turns[-1].response_ids))
    visible = visible_turns(turns, context_turns)
    # users[i] is the message that visible[i] answers. The last message, `user`, has no answer yet.
    users = [turn.observation for turn in visible]
    users.append(user)
    prompt = chat.opening(trajectory.system, users[0])
    for turn, following_user in zip(visible, users[1:], strict=True):
        prompt += turn.response_ids
        prompt += chat.following(following_user, closed=chat.is_closed(turn.response_ids))
    return prompt


def visible_turns(turns: Sequence[Turn], context_turns: int) -> Sequence[Turn]:
    """Return the earlier turns that the policy sees in the next turn.

    If context_turns is 0, the policy sees all earlier turns. Otherwise it sees at most the last
    context_turns - 1 of them, because context_turns counts the next turn too."""
    first = max(0, len(turns) + 1 - context_turns) if context_turns else 0
    return turns[first:]


# ---------- trajectories that end in an error


def failed_outcome(error: object) -> TurnOutcome:
    """Return the outcome that ends a trajectory with an error."""
    record = TurnRecord(actions=[], error=str(error))
    return TurnOutcome(user="", reward=0.0, status="error", record=record)


def check_errors(trajectories: Sequence[Trajectory], config: Config, group_size: int = 1) -> None:
    """Print how many trajectories ended in an error, and stop the run if there are too many.

    The limit on failed trajectories is max_error_frac times the number of all trajectories. If
    max_error_frac is above 0, the limit is at least group_size, because one broken instance causes
    an error in every trajectory of its group. With max_error_frac=0 the limit is 0.

    Raises: UserError if the number of failed trajectories exceeds the limit, or if every group has
        an error. The message quotes the first error.
    """
    failed = [trajectory for trajectory in trajectories if trajectory.status == "error"]
    if not failed:
        return
    allowed = config.max_error_frac * len(trajectories)
    if config.max_error_frac > 0:
        allowed = max(allowed, group_size)
    counts = f"{len(failed)} of {len(trajectories)} trajectories ended in an error"
    reason = printable(failed[0].error)
    sentence = f"{counts} (the first, in {failed[0].env}: {reason})"
    if len(failed) > allowed or not without_errors(trajectories, group_size):
        raise UserError(
            f"{sentence}; the limit is {int(allowed)} (max_error_frac is {config.max_error_frac}), "
            "and at least one group must have no error"
        )
    print(
        f"{sentence}; training drops their groups, and evaluation counts each as a failure",
        flush=True,
    )


def without_errors(trajectories: Sequence[Trajectory], group_size: int) -> list[Trajectory]:
    """Return the trajectories of the groups in which no trajectory ended in an error.

    A group with an error is left out as a whole, because advantages compare the scores of a
    group."""
    failed_groups = groups_with_errors(trajectories, group_size)
    kept = []
    for index, trajectory in enumerate(trajectories):
        if index // group_size not in failed_groups:
            kept.append(trajectory)
    return kept


def groups_with_errors(trajectories: Sequence[Trajectory], group_size: int) -> list[int]:
    """Return the indices of the groups with an error, ascending."""
    failed = set()
    for index, trajectory in enumerate(trajectories):
        if trajectory.status == "error":
            failed.add(index // group_size)
    return sorted(failed)


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
    envs: Sequence[str] | None = None,
) -> list[Trajectory]:
    """Play episodes side by side, one for each (instance seed, member) in `starts`.

    Several episodes can play one instance, as a group. `member` is an episode's index in its group.

    Args:
        noise_seed: part of the sampling seed of each response. The other parts are the instance
            seed, the member and the index of the turn.
        on_done: is called when a trajectory ends, for a progress bar.
        envs: the environment of each episode, by default `config.env`.
    Returns: the trajectories in the order of `starts`. If an environment cannot start, or a first
        prompt does not fit into the context, its trajectory has the status "error" and a single
        turn without tokens."""
    envs = envs or [config.env] * len(starts)
    rollouts = []
    for (seed, member), env in zip(starts, envs, strict=True):
        rollouts.append(Rollout(make_episode(config, env), seed, member=member))
    reset_all(rollouts, split)
    scheduler = RolloutScheduler(
        engine,
        chat,
        config,
        rollouts,
        temperature=temperature,
        noise_seed=noise_seed,
        on_done=on_done,
    )
    scheduler.run()
    return [rollout.finish() for rollout in rollouts]


class RolloutScheduler:
    """Keeps an engine busy with the turns of many rollouts.

    The engine knows each rollout by a key: the index of the rollout in `rollouts`."""

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        config: Config,
        rollouts: Sequence[Rollout],
        *,
        temperature: float,
        noise_seed: Sequence[int],
        on_done: Callable[[], object] = lambda: None,
    ):
        self.engine = engine
        self.chat = chat
        self.config = config
        self.rollouts = rollouts
        self.temperature = temperature
        self.noise_seed = noise_seed
        self.on_done = on_done
        # `histories[key]` holds all tokens of a rollout so far. If context_turns > 0, it holds only
        # the prompt and the response of the latest turn.
        self.histories: list[list[int]] = [[] for _ in rollouts]
        self.prompts: list[list[int]] = [[] for _ in rollouts]  # prompts of the pending responses

    def run(self) -> None:
        """Play all rollouts to their ends.

        A blocking environment (see `Rollout.blocking`) executes a response in a thread. Meanwhile
        the engine decodes other rollouts."""
        for key, rollout in enumerate(self.rollouts):
            self._request_first_turn(key)
            if rollout.done:
                self.on_done()
        blocking_steps = BlockingSteps()
        while self.engine.busy or blocking_steps.num_pending:
            # the responses that have just ended, often none
            samples = self.engine.step() if self.engine.busy else []
            for sample in samples:
                rollout = self.rollouts[sample.key]
                text = self.chat.decode(sample.ids)
                if not sample.ids:  # advantage estimators need a token in each turn
                    self._record_turn(sample, text, failed_outcome("the engine sampled no token"))
                elif rollout.blocking:
                    blocking_steps.start(rollout, sample, text)
                else:
                    self._record_turn(sample, text, rollout.execute(text))
            # Record the steps that have finished. Wait for a step only while the engine is idle.
            # Recording a step can queue a turn, and then the engine is busy. So each pass of this
            # loop computes `wait` again.
            while finished := blocking_steps.next_finished(wait=not self.engine.busy):
                self._record_turn(*finished)

    def _request_first_turn(self, key: int) -> None:
        """Queue the first turn.

        If the environment cannot start, or the prompt is too long, record an error instead."""
        rollout = self.rollouts[key]
        if rollout.failure:
            rollout.add_turn(Reply(""), rollout.failure)
            return
        prompt = rollout.next_prompt(self.chat)
        if not self._request_turn(key, prompt):
            failure = failed_outcome(
                f"the first prompt has {len(prompt)} tokens and max_context_tokens is "
                f"{self.config.max_context_tokens}; raise it"
            )
            rollout.add_turn(Reply(""), failure)

    def _request_next_turn(self, key: int) -> None:
        rollout = self.rollouts[key]
        if not self._request_turn(key, rollout.next_prompt(self.chat)):
            rollout.trajectory.status = "out_of_tokens"

    def _request_turn(self, key: int, prompt: list[int]) -> bool:
        """Queue a turn in the engine.

        Returns: False if the context has no room for the prompt and a response token."""
        trajectory = self.rollouts[key].trajectory
        used = len(self.histories[key]) + len(prompt)
        room = min(self.config.max_response_tokens, self.config.max_context_tokens - used)
        if room < 1:
            return False
        self.prompts[key] = prompt
        self.histories[key] += prompt
        self.engine.add(
            key,
            self.histories[key],  # the whole history, of which `add` makes a copy
            max_tokens=room,
            temperature=self.temperature,
            seed=(*self.noise_seed, *trajectory.seed, trajectory.member, len(trajectory.turns)),
        )
        return True

    def _record_turn(self, sample: Sample, text: str, outcome: TurnOutcome) -> None:
        """Record a finished turn, then queue the next turn or end the rollout."""
        key = sample.key
        rollout = self.rollouts[key]
        forgets_turns = self.config.context_turns > 0
        self.histories[key] += sample.ids
        reply = Reply(
            text, self.prompts[key], sample.ids, sample.logprobs, cut_by=self._cut_by(sample)
        )
        rollout.add_turn(reply, outcome)
        # If the policy forgets turns, the next prompt contains all earlier turns that the policy
        # may see. So the next turn starts with an empty history in the engine.
        if forgets_turns:
            self.engine.release(key)
            self.histories[key] = []
        if not rollout.done:
            self._request_next_turn(key)
        if rollout.done:  # `_request_next_turn` may have ended the rollout
            if not forgets_turns:
                self.engine.release(key)
            self.on_done()

    def _cut_by(self, sample: Sample) -> str | None:
        """Return the setting that cut a response off, or None if it was not cut off."""
        if not sample.ids or self.chat.is_closed(sample.ids):
            return None
        # `_request_turn` allowed max_response_tokens tokens, or fewer if the context had less room.
        if len(sample.ids) == self.config.max_response_tokens:
            return "max_response_tokens"
        return "max_context_tokens"


class BlockingSteps:
    """Environment steps that wait for a program or a server. Each runs in its own thread."""

    def __init__(self):
        # Holds ((sample, text), future) for each finished step. `future.result()` is the outcome.
        self.results: SimpleQueue = SimpleQueue()
        self.num_pending = 0

    def start(self, rollout: Rollout, sample: Sample, text: str) -> None:
        """Execute a response in a new thread."""
        self.num_pending += 1
        start_thread(partial(rollout.execute, text), self.results, key=(sample, text))

    def next_finished(self, *, wait: bool) -> tuple[Sample, str, TurnOutcome] | None:
        """Return (sample, text, outcome) of a finished step, or None if no step is finished.

        If `wait` is True and steps are pending, wait until one of them ends."""
        if not self.num_pending:
            return None
        try:
            (sample, text), future = self.results.get(block=wait)
        except Empty:
            return None
        self.num_pending -= 1
        return sample, text, future.result()


# ---------- trajectories for training and reports


def split_by_context(trajectories: Sequence[Trajectory], config: Config) -> list[Trajectory]:
    """Return the sequences for the model: trajectories, or single turns if context_turns > 0.

    If context_turns > 0, the prompt of each turn repeats the context, so each turn is a sequence of
    its own. The result has the same response tokens as `trajectories`, in the same order. So a
    tensor with one number for each response token fits both the result and `trajectories`."""
    if not config.context_turns:
        return list(trajectories)
    return [
        replace(trajectory, turns=[turn])
        for trajectory in trajectories
        for turn in trajectory.turns
    ]


def unmask(trajectory: Trajectory, chat: Chat) -> Trajectory:
    """Make every token after the system message a response token, as in RAGEN v1's loss mask.

    The new response tokens get the rollout log-prob NaN, because the engine gave no log-probs of
    prompt tokens."""
    system = chat.message("system", trajectory.system)
    turns = []
    for turn in trajectory.turns:
        # The first prompt begins with the system message. If context_turns > 0, every prompt begins
        # with the system message.
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
