"""Demonstrations for SFT: games of scripted players, and files of games.

The thoughts of scripted players are true sentences about the state. The setting `sft_player`
selects the player:
- shortest: takes the actions of `Env.demonstrate`, mostly one a turn. These actions often follow a
  shortest path. In some environments, the actions are not optimal, so that RL has more to learn.
  For example, in FrozenLake the moves are chosen as if no move slipped.
- planner: plays optimally under the limits of turns and actions (`Env.plan`).
- crowd: good and bad players of FrozenLake and Sokoban (tools/crowd.py).
"""

from configurator import Config, UserError

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from dialogue import Chat, Episode, TurnRecord, format_response
from envs import Env, check_actions, check_uses
from rollout import Reply, Rollout, Trajectory, Turn, following_prompt, make_episode, play
from tools.crowd import crowd_reply, draw_player
from tools.sft_config import SftConfig
from utils.files import read_text, replace_file
from utils.text import describe_line_error, printable
from utils.time_limit import EnvError, call_with_timeout
from worlds.grids import Grid

SEED_DEMOS = 11  # makes the random streams of this file differ from those of other files
# In a turn without random actions, the player `shortest` takes only one action with this
# probability.
COMMIT_ONE = 0.75


def recite(
    chat: Chat, rollout: Rollout, write_reply: Callable[[], str], config: Config
) -> Trajectory:
    """Play a rollout with scripted replies. The caller must reset the rollout first.

    Raises: UserError if the environment fails."""

    def player(rollout: Rollout) -> Reply | None:
        prompt = rollout.next_prompt(chat)
        trajectory = rollout.trajectory
        # End the game if the next prompt does not fit into the context. With context_turns, the
        # prompt repeats the earlier turns that the policy sees, and must leave room for a reply.
        # Without context_turns, the prompt follows all tokens of the trajectory so far.
        used = config.max_response_tokens if config.context_turns else len(trajectory.ids)
        if trajectory.turns and used + len(prompt) > config.max_context_tokens:
            return None
        try:
            text = write_reply()
        except EnvError as error:
            return Reply("", error=str(error))
        return Reply(text, prompt_ids=prompt, response_ids=[*chat.encode(text), chat.end])

    trajectory = play(rollout, player)
    if trajectory.error:
        raise UserError(f"a demonstration in {trajectory.env} failed: {trajectory.error}")
    return trajectory


def num_demonstrations(config: SftConfig) -> int:
    shown = config.sft_steps * config.sft_batch_size
    return min(config.sft_demos or shown, shown)


def demonstration(config: SftConfig, chat: Chat, index: int) -> Trajectory:
    """Play demonstration number `index`.

    A turn has random actions with probability `sft_noise`. `sft_clean` is the fraction of the
    demonstrations, counted from the first, in which this probability is 0. The player "crowd"
    ignores both settings: `draw_player` draws the probability of random actions for each game.

    Raises: UserError if the game fails, if the environment does not have the player `sft_player`,
        or if a reply or the first turn has too many tokens."""
    path = (config.seed, SEED_DEMOS, index)
    episode = make_episode(config)
    check_player(episode.env, config.sft_player)
    rollout = Rollout(episode, path)
    rollout.reset("train")
    is_clean = index < round(config.sft_clean * num_demonstrations(config))
    noise = 0.0 if is_clean else config.sft_noise
    # The instance is drawn with the seed `path`. The player must get other random numbers, so the
    # player's seed is [*path, 1]. The seed [*path, 0] would give the random numbers of `path`
    # again, because numpy ignores zeros at the end of a seed.
    rng = np.random.default_rng([*path, 1])
    if config.sft_player == "crowd":
        write = partial(crowd_reply, episode, draw_player(rng, config.sft_planners), rng)
    else:
        write = partial(scripted_reply, episode, noise, rng)

    def write_reply() -> str:
        return call_with_timeout(config.step_timeout_s, write)

    trajectory = recite(chat, rollout, write_reply, config)
    return cut_to_context(trajectory, config)


def demonstrations_at(config: SftConfig, chat: Chat, indices: Sequence[int]) -> list[Trajectory]:
    """Return the demonstrations with these indices, cut to max_context_tokens.

    A demonstration is left out if its game fails or if a reply is longer than max_response_tokens.
    Without context_turns, a demonstration is also left out if its first turn is longer than
    max_context_tokens. At most the fraction max_error_frac of the demonstrations may be left out.
    If this fraction is less than one demonstration but not 0, one demonstration may be left out,
    because a restart of the program would play the same game and fail again. With
    max_error_frac=0, none may be left out.

    Raises: UserError with the first fault if too many demonstrations, or all, would be left out."""
    demonstrations = []
    faults = []
    for index in indices:
        try:
            demonstrations.append(demonstration(config, chat, index))
        except UserError as error:
            faults.append(error)
    if not faults:
        return demonstrations
    allowed = config.max_error_frac * len(indices)
    if config.max_error_frac > 0:
        allowed = max(allowed, 1)
    if len(faults) > allowed or not demonstrations:
        raise faults[0]
    counts = f"{len(faults)} of {len(indices)} demonstrations are left out"
    print(f"{counts} (the first, because {printable(str(faults[0]))})", flush=True)
    return demonstrations


def describe_cuts(demonstrations: Sequence[Trajectory]) -> str:
    """Say how many demonstrations and replies were cut off by token limits; "" if none were."""
    num_games = sum(trajectory.status == "out_of_tokens" for trajectory in demonstrations)
    turns = [turn for trajectory in demonstrations for turn in trajectory.turns]
    num_replies = sum(bool(turn.record.cut_by) for turn in turns)
    notes = []
    if num_games:
        notes.append(
            f"{num_games} of {len(demonstrations)} demonstrations end before their game, because "
            "max_context_tokens has no room for more turns"
        )
    if num_replies:
        notes.append(
            f"{num_replies} of {len(turns)} replies were cut off when they were sampled; they are "
            "learnt without an end-of-turn token"
        )
    return "; ".join(notes)


def print_cuts(demonstrations: Sequence[Trajectory]) -> None:
    cuts = describe_cuts(demonstrations)
    if cuts:
        print(cuts, flush=True)


def check_player(env: Env, player: str) -> None:
    """Raises: UserError if the environment does not have the player."""
    if player == "crowd" and not isinstance(env, Grid):
        raise UserError(
            f"sft_player=crowd plays frozenlake and sokoban, got env={env.spec!r}; "
            "expected sft_player=shortest or planner"
        )
    check_uses(env, "optimal" if player == "planner" else "demonstrations")


def scripted_reply(episode: Episode, noise: float, rng: np.random.Generator) -> str:
    """Return a reply: a thought of true sentences, and the player's actions. With probability
    `noise`, the actions are random."""
    config = episode.config
    env = episode.env
    most = min(config.sft_actions, config.actions_per_turn, env.actions_left)
    is_noisy = rng.random() < noise
    wanted = int(rng.integers(1, most + 1)) if is_noisy else int(rng.geometric(COMMIT_ONE))
    count = min(wanted, most)
    actions = []
    if config.sft_player == "planner" and not is_noisy:
        actions = env.plan(most, config.max_turns - episode.turn_idx)
    elif not is_noisy:
        actions = env.demonstrate(count, rng)
    if not actions:
        actions = env.random(count, rng)
    actions = check_actions(actions, "demonstrations", env)
    thought = " ".join(episode.statements())
    return format_response(thought, actions, think=config.think)


def cut_to_context(trajectory: Trajectory, config: Config) -> Trajectory:
    """Drop the last turns of a trajectory until it fits into the context.

    With `context_turns` nothing is dropped, because each turn has a context of its own.

    Raises: UserError if a reply is longer than max_response_tokens or, without `context_turns`, if
        the first turn does not fit into the context."""
    longest = max(len(turn.response_ids) for turn in trajectory.turns)
    if longest > config.max_response_tokens:
        raise UserError(
            f"a demonstration in {config.env} has a reply of {longest} tokens and "
            f"max_response_tokens is {config.max_response_tokens}; raise it"
        )
    turns = trajectory.turns
    if not config.context_turns:
        while turns and len(replace(trajectory, turns=turns).ids) > config.max_context_tokens:
            turns = turns[:-1]
    if not turns:
        raise UserError(
            f"one turn of a demonstration in {config.env} is longer than max_context_tokens, "
            f"{config.max_context_tokens}; raise it"
        )
    if len(turns) == len(trajectory.turns):
        return trajectory
    return replace(trajectory, turns=turns, status="out_of_tokens")


# ---------- files of demonstrations


def write_demonstrations(path: str, config: SftConfig, chat: Chat) -> int:
    """Write the demonstrations of these settings as lines of JSON. Returns: their number.

    Training reads such a file if the setting sft_file names the file. The setting can also name a
    file that eval.py --jsonl wrote, because lines of eval.py have all keys of a demonstration. But
    training refuses a file of eval.py unless sft_eval_games=True, because eval.py plays on
    evaluation prompts."""
    demonstrations = demonstrations_at(config, chat, range(num_demonstrations(config)))
    with replace_file(path) as file:
        for trajectory in demonstrations:
            turns = []
            for turn in trajectory.turns:
                turns.append({"observation": turn.observation, "response": turn.text})
            record = {
                "env": config.env,
                "seed": trajectory.seed,
                "split": trajectory.split,
                "status": trajectory.status,
                "system": trajectory.system,
                "turns": turns,
            }
            file.write(json.dumps(record) + "\n")
    print_cuts(demonstrations)
    return len(demonstrations)


@lru_cache(maxsize=1)
def read_demonstrations(path: str, chat: Chat, config: SftConfig) -> list[Trajectory]:
    """Read a file of demonstrations, and tokenize the games.

    A line is illegal if it is no demonstration, or if a reply is longer than max_response_tokens.
    Without sft_eval_games=True, a line is also illegal if its game is on an evaluation prompt.
    Without context_turns, a game that is longer than max_context_tokens loses its last turns, and
    a line is illegal if the first turn alone is longer than max_context_tokens.

    Raises: UserError if the file is missing, a line is illegal, or no game is left."""
    if not Path(path).is_file():
        raise UserError(f"sft_file={path!r} is not a file")
    games = []
    lines = read_text(Path(path)).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            game = demonstration_of(json.loads(line), chat, config)
            games.append(cut_to_context(game, config))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {describe_line_error(error)}"
            raise UserError(f"{path}:{number} is no demonstration ({reason})") from error
        if game.split != "train" and not config.sft_eval_games:
            raise UserError(
                f"{path}:{number} is a game on an evaluation prompt, and scores on these prompts "
                "mean nothing after training on them; give games of training instances, or "
                "--sft_eval_games=True"
            )
    if not games:
        raise UserError(
            f"{path} holds no demonstrations; python -m tools.sft --export={path} writes some"
        )
    return choose_games(games, path, keep_lost=config.sft_lost)


def choose_games(games: list[Trajectory], path: str, *, keep_lost: bool) -> list[Trajectory]:
    """Return the games to imitate, and print how many games were not won.

    Raises: UserError if no game is left."""
    won = [game for game in games if game.success]
    num_lost = len(games) - len(won)
    if not won and not keep_lost:
        raise UserError(f"none of the {num_lost} games of {path} was won, and sft_lost is False")
    if num_lost:
        use = "imitated, too; --sft_lost=False leaves them out" if keep_lost else "left out"
        print(
            f"{num_lost} of {len(games)} games of {path} were not won; they are {use}", flush=True
        )
    return games if keep_lost else won


def demonstration_of(record: dict, chat: Chat, config: SftConfig) -> Trajectory:
    """Return the trajectory of one line of a file.

    Each reply gets an end-of-turn token, except a reply that was cut off. An empty reply always
    gets the token.

    Raises: LookupError, TypeError or AttributeError if the record is no demonstration."""
    # Older files do not name the split. In these files, only games of an evaluation have the key
    # "policy".
    split = record.get("split", "eval" if "policy" in record else "train")
    trajectory = Trajectory(
        tuple(record["seed"]),
        member=0,
        status=record["status"],
        system=record["system"],
        split=split,
    )
    for turn in record["turns"]:
        user = turn["observation"]
        text = turn["response"]
        prompt = following_prompt(chat, trajectory, user, config.context_turns)
        response = list(chat.encode(text))
        cut_by = turn.get("cut_by")
        if not cut_by or not response:
            response.append(chat.end)
        trajectory.turns.append(
            Turn(
                prompt,
                response,
                [],
                text=text,
                observation=user,
                record=TurnRecord([], cut_by=cut_by),
            )
        )
    if not trajectory.turns:
        raise LookupError("it has no turns")
    return trajectory
