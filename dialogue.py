"""The dialogue between a policy and an environment: prompts, parser, limits, format penalty.

An `Episode` shows an environment of `envs.py` as messages, and enforces the limit of turns. Of the
actions in a reply, it tries only the first min(actions_per_turn, actions left in the game). Further
actions are surplus. envs.py ends a game whose actions are used up. rollout.py enforces the limits
on tokens.

A reply is not valid if its form is wrong, if it has surplus actions, if it names an illegal action,
or if it executes no action. After the action that ends the game, no further action is tried. So an
illegal action after the end of the game is no fault. Surplus actions are always a fault. An invalid
reply gets the format penalty. The next message reports the faults of the reply and its reward,
which includes the penalty. In RAGEN the policy never sees the penalty.

`Chat` converts messages to token ids. The token ids that the policy sampled are never changed:
their decoded text is parsed, but never encoded again.
"""

from configurator import Config, UserError

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from envs import Env, Step, check_text, name_of, show

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"


# ---------- replies


class Parsed(NamedTuple):
    """The parts of a response."""

    thought: str
    actions: list[str]
    well_formed: bool  # it has the required tags in the right order, and no text outside them


def parse_response(text: str, *, think: bool = True) -> Parsed:
    """Parse `<think>..</think><answer>a || b</answer>`.

    If `think` is False, parse only `<answer>a || b</answer>`. The parser runs in linear time and
    never raises.

    >>> parse_response("<think>go</think><answer>Up || Left</answer>")
    Parsed(thought='go', actions=['Up', 'Left'], well_formed=True)
    """
    content = {"think": ""}
    outside = ""
    rest = text
    tags = ("think", "answer") if think else ("answer",)
    for tag in tags:
        before, _, rest = rest.partition(f"<{tag}>")  # if <tag> is missing, rest becomes ""
        content[tag], closed, rest = rest.partition(f"</{tag}>")
        if not closed:
            return Parsed("", [], False)
        outside += before
    outside += rest
    actions = [part.strip() for part in content["answer"].split("||")]
    actions = [action for action in actions if action]
    return Parsed(content["think"].strip(), actions, well_formed=not outside.strip())


def format_response(thought: str, actions: Sequence[str], *, think: bool = True) -> str:
    """Write a reply that `parse_response` can parse."""
    answer = f"<answer>{' || '.join(actions)}</answer>"
    return f"<think>{thought}</think>{answer}" if think else answer


def cut_fault(num_tokens: int, setting: str) -> str:
    """Return the sentence that reports a cut-off reply. `setting` names the token limit."""
    return f"The reply was cut off at {num_tokens} tokens ({setting})."


def check_thought(thought: str, facts: list[str]) -> tuple[int, int]:
    """Compare the sentences of a thought with the facts about the state.

    The facts are the sentences of `Env.statements`, which are all true. A fact that the thought
    states can earn a bonus (think_reward). Periods separate sentences. A sentence is checkable if
    it begins with the first word of a fact.
    Returns: the number of checkable sentences, and the number of true ones.
    >>> check_thought("Goal up. Next ice. I go.", ["Goal up.", "Next hole."])
    (2, 1)
    """
    checkable = checkable_sentences(thought, facts)
    return len(checkable), sum(sentence in facts for sentence in checkable)


def checkable_sentences(thought: str, facts: list[str]) -> list[str]:
    """Return the sentences of a thought that begin with the first word of a fact."""
    subjects = {first_word(fact) for fact in facts}
    return [sentence for sentence in sentences_of(thought) if first_word(sentence) in subjects]


def sentences_of(thought: str) -> list[str]:
    """Split a thought at its periods. Returns: the sentences, each with its period."""
    return [part.strip() + "." for part in thought.split(".") if part.strip()]


def first_word(sentence: str) -> str:
    return sentence.split()[0].rstrip(".")


def find_false(thought: str, facts: list[str]) -> dict[str, str]:
    """Return the false sentences of a thought, each with the fact that it contradicts.

    If several facts begin with the first word of a sentence, choose the fact that shares the most
    words with the sentence.
    >>> find_false("Goal up. Next ice. I go.", ["Goal up.", "Next hole."])
    {'Next ice.': 'Next hole.'}
    """
    false = {}
    for sentence in checkable_sentences(thought, facts):
        if sentence in facts or sentence in false:
            continue
        words = set(sentence[:-1].split())
        rivals = [fact for fact in facts if first_word(fact) == first_word(sentence)]
        false[sentence] = max(rivals, key=lambda fact: len(words & set(fact[:-1].split())))
    return false


# ---------- the episode


@dataclass
class TurnRecord:
    """What happened in one turn, for metrics and trajectories.jsonl."""

    actions: list[str]  # parsed from the reply, without surplus actions
    num_actions: int = 0  # executed actions
    format_ok: bool = False  # the reply is valid: it has none of the `faults` below
    effective: float = 0.0  # fraction of the executed actions that changed something
    statements_checked: int = 0  # number of checkable sentences in the thought
    statements_true: int = 0
    # Maps each false sentence to the fact that it contradicts. None if no sentence is false.
    false_statements: dict[str, str] | None = None
    env_reward: float = 0.0  # without format penalty and think_reward
    closing: str | None = None  # the observation after the turn that ended the episode
    # For each of `actions`, the action that took place. Chance can replace a chosen action: a slip.
    # An entry is "" if its action was not executed. The whole field is None if every action took
    # place as chosen.
    moves: list[str] | None = None
    # Why the reply is not valid, in sentences; None if it is valid or was not judged. If a token
    # limit cut off an invalid reply, the last sentence says so (see `cut_fault`). The next message
    # tells the policy all of these sentences except the one from `cut_fault`.
    faults: list[str] | None = None
    # True if the game failed because its actions were used up. False if the game failed because a
    # rule ended it. None if the game did not fail.
    out_of_actions: bool | None = None
    why_lost: str | None = None  # why the game ended without success, from `Env.why_lost`
    error: str | None = None
    # The setting that cut the reply off: max_response_tokens or max_context_tokens.
    cut_by: str | None = None


class TurnOutcome(NamedTuple):
    """The outcome of one reply."""

    user: str  # the next message; '' at the end
    reward: float  # environment reward + format penalty + bonus from think_reward
    status: str | None  # success, failure, out_of_turns or error; None while the game goes on
    record: TurnRecord
    state: Hashable = None  # the state in which the reply was given, see `Episode.state`


class Episode:
    """One dialogue with an environment.

    An episode builds the messages and executes the replies. It limits the number of turns and the
    number of actions in a turn."""

    def __init__(self, env: Env, config: Config):
        self.env = env
        self.config = config

    def reset(
        self, seed: int | Sequence[int], *, split: str = "train", member: int = 0
    ) -> tuple[str, str]:
        """Start an instance. Returns: (system message, first user message)."""
        observation = self.env.reset(seed, split=split, member=member)
        return self.open(check_text(observation, "reset", self.env))

    def open(self, observation: str) -> tuple[str, str]:
        """Begin the dialogue. The environment has already started and shows `observation`.

        Returns: (system message, first user message)."""
        self.turn_idx = 0
        self.observation = observation
        # The number of actions in a shortest solution, before turn 1 and after each turn. The list
        # is filled only if reward_density is "plan" (see `methods.shape_rewards`).
        self.plan_lengths: list[int] = []
        self._note_plan_length()
        return self.system(), self._turn_text(observation, "")

    def _note_plan_length(self) -> None:
        if self.config.reward_density == "plan":
            length = self.env.optimal_length()
            if not isinstance(length, (int, np.integer)):
                raise UserError(
                    f"{name_of(self.env)}.optimal_length returned {show(length)}; "
                    "expected a whole number"
                )
            self.plan_lengths.append(int(length))

    def system(self) -> str:
        """Return the system message: rules, action names, limits and the form of a reply."""
        config = self.config
        # A whole game can allow fewer actions than actions_per_turn: Bandit allows only one.
        limit = min(config.actions_per_turn, self.env.max_actions)
        form = format_response("thoughts", ["action"] * min(limit, 2), think=config.think)
        # All games of an environment have the same system message. So the message lists the actions
        # only if the class of the environment defines `actions`. The class of Bandit does not
        # define `actions`, because each game of Bandit draws names of its own.
        class_has_actions = bool(type(self.env).actions)
        names = f"Actions: {', '.join(self.env.actions)}. " if class_has_actions else ""
        limits = f"{names}At most {limit} action{'s' if limit > 1 else ''} a turn."
        reply = f"Reply {form} in at most {config.max_response_tokens} tokens."
        return f"{check_text(self.env.rules(), 'rules', self.env)}\n{limits}\n{reply}"

    def statements(self) -> list[str]:
        """Return true sentences about the present state.

        Raises: UserError if `Env.statements` returns no list of texts, or if a text is empty."""
        facts = self.env.statements()
        if not isinstance(facts, (list, tuple)):
            raise UserError(
                f"{name_of(self.env)}.statements returned {show(facts)}; expected a list of texts"
            )
        for fact in facts:
            if not check_text(fact, "statements", self.env).strip():
                raise UserError(f"{name_of(self.env)}.statements returned an empty sentence")
        return list(facts)

    def state(self) -> Hashable:
        """Return a key of the present state.

        The key comes from `Env.state_key`. If that returns None, the last observation is the key.
        Raises: UserError if the key cannot be hashed."""
        key = self.env.state_key()
        if key is None:
            return self.observation
        try:
            hash(key)
        except TypeError as error:
            raise UserError(
                f"{name_of(self.env)}.state_key returned {show(key)}; expected a hashable value"
            ) from error
        return key

    def _turn_text(self, observation: str, report: str) -> str:
        """Return a user message.

        It holds the report on the last reply, the number of the turn, the number of actions left,
        and the observation."""
        left = self.env.actions_left
        turn = f"Turn {self.turn_idx + 1} of {self.config.max_turns}"
        return f"{report}{turn}, {left} action{'s' if left != 1 else ''} left.\n{observation}"

    def step(self, response: str) -> TurnOutcome:
        """Execute one response. Any text is accepted.

        The next message says what is wrong with the response. The message also reports the reward
        of the turn, without the bonus of think_reward."""
        config = self.config
        state = self.state()
        facts = self.statements()
        parsed = parse_response(response, think=config.think)
        allowed = min(config.actions_per_turn, self.env.actions_left)
        surplus = max(0, len(parsed.actions) - allowed)
        record = TurnRecord(actions=parsed.actions[:allowed])
        status, illegal = self._execute(record)  # fills in the record
        self._note_plan_length()
        self.turn_idx += 1
        if self.turn_idx == config.max_turns:
            status = status or "out_of_turns"

        faults = self._faults(parsed, record, illegal, surplus)
        record.faults = faults or None
        record.format_ok = not faults
        penalty = 0.0 if record.format_ok else config.format_penalty  # not above 0
        reward = record.env_reward + penalty
        checked, true = check_thought(parsed.thought, facts)
        record.statements_checked = checked
        record.statements_true = true
        record.false_statements = find_false(parsed.thought, facts) or None
        user = ""
        if status:
            record.closing = self.observation
            if status != "success":
                record.why_lost = check_text(self.env.why_lost(), "why_lost", self.env) or None
        else:
            report = " ".join([f"Reward {round(reward, 6):g}.", *faults]) + "\n"
            user = self._turn_text(self.observation, report)
        bonus = self._think_bonus(parsed.thought, facts, num_false=checked - true)
        return TurnOutcome(user, reward + bonus, status, record, state)

    def _execute(self, record: TurnRecord) -> tuple[str | None, list[str]]:
        """Execute the actions of a record, and note in the record what they did.

        Returns: (status, illegal actions). The status is "success" or "failure" if the game is
            over, and None if the game goes on."""
        status = None
        illegal = []
        moves = []  # the actions that took place; "" for an illegal action
        num_effective = 0
        for action in record.actions:
            step = self.env.step(action)
            if not isinstance(step, Step):
                raise UserError(
                    f"{name_of(self.env)}.step returned {show(step)}; expected an envs.Step"
                )
            self.observation = check_text(step.observation, "observe", self.env)
            moves.append((step.slipped_to or action) if step.valid else "")
            if not step.valid:
                illegal.append(action)
                continue
            record.env_reward += float(step.reward)
            record.num_actions += 1
            num_effective += step.effective
            if step.terminated or step.truncated:
                status = "success" if step.success else "failure"
                if not step.success:
                    # True if the actions were used up and no rule ended the game
                    record.out_of_actions = step.truncated
                break
        record.effective = num_effective / max(record.num_actions, 1)
        moves += [""] * (len(record.actions) - len(moves))  # "" for actions after the game's end
        if moves != record.actions:
            record.moves = moves
        return status, illegal

    def _think_bonus(self, thought: str, facts: list[str], num_false: int) -> float:
        """Return think_reward * max(0, stated facts - false sentences) / (number of facts).

        A repeated fact counts once."""
        distinct = set(facts)
        stated = distinct.intersection(sentences_of(thought))
        return self.config.think_reward * max(0, len(stated) - num_false) / max(1, len(distinct))

    def _faults(
        self, parsed: Parsed, record: TurnRecord, illegal: list[str], surplus: int
    ) -> list[str]:
        """Return sentences that tell the policy why a reply is not valid; [] if it is valid."""
        notes = []
        if not parsed.well_formed:
            notes.append("The reply was not in the required form.")
        if illegal:
            shortened = [" ".join(name.split())[:20] for name in illegal[:3]]
            notes.append("Unknown action: " + ", ".join(f'"{name}"' for name in shortened) + ".")
        if surplus:
            notes.append(f"Not executed, over the limit: {surplus}.")
        if record.num_actions == 0:
            notes.append("No action was executed; nothing changed.")
        return notes


# ---------- chat format


class Chat:
    """Encodes messages as token ids in the ChatML format.

    The marks at the start and the end of a message are inserted as token ids. The text between them
    is encoded without special tokens. So no text can forge the boundary of a message."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        marks = [IM_START, IM_END]
        self.start, self.end = tokenizer.convert_tokens_to_ids(marks)
        # For a mark that is not a token, the tokenizer returns None or the id of its unknown token.
        # So the ids are converted back to tokens, and these tokens are compared with the marks.
        # None cannot be converted, so it is replaced by id 0.
        if tokenizer.convert_ids_to_tokens([self.start or 0, self.end or 0]) != marks:
            raise UserError(
                f"the tokenizer has no {IM_START} and {IM_END} tokens; expected a ChatML tokenizer"
            )
        self.encode = lru_cache(maxsize=4096)(self._encode)
        if {self.start, self.end} & {*self.encode(IM_START), *self.encode(IM_END)}:
            raise UserError(
                f"{IM_START} and {IM_END} must be special tokens of the tokenizer; "
                "otherwise text of an environment could end a message"
            )

    def _encode(self, text: str) -> tuple[int, ...]:
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return tuple(encoded["input_ids"])

    def message(self, role: str, text: str) -> list[int]:
        """Return the tokens of a message: start mark, role, text, end mark and a line break."""
        head = [self.start, *self.encode(f"{role}\n")]
        return [*head, *self.encode(text), self.end, *self.encode("\n")]

    def opening(self, system: str, user: str) -> list[int]:
        """Return the tokens of the first prompt.

        If context_turns is above 0, the policy sees only the last context_turns turns, the present
        turn included. In this case, every later prompt also begins with tokens that `opening`
        returns. For a later prompt, `system` is the same message as for the first prompt, and
        `user` is the user message of the oldest turn that the policy sees."""
        return [*self.message("system", system), *self._user_and_assistant(user)]

    def following(self, user: str, *, closed: bool) -> list[int]:
        """Return the tokens between two responses.

        `closed` says whether the earlier response ends with the end-of-turn token. If `closed` is
        False, the returned tokens begin with the end-of-turn token."""
        end = [] if closed else [self.end]
        # The policy samples the end-of-turn token, but not the line break after it.
        line_break = self.encode("\n")
        return [*end, *line_break, *self._user_and_assistant(user)]

    def _user_and_assistant(self, user: str) -> list[int]:
        return [*self.message("user", user), self.start, *self.encode("assistant\n")]

    def is_closed(self, response_ids: Sequence[int]) -> bool:
        """Whether a response ends with the end-of-turn token."""
        return bool(response_ids) and response_ids[-1] == self.end

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a response without its end-of-turn token."""
        text_ids = ids[:-1] if self.is_closed(ids) else ids
        return self.tokenizer.decode(
            text_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
