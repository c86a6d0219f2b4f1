"""Score policies and reference players on the 256 fixed prompts that training never draws (Bandit shares its two).

    python eval.py out/frozenlake_ppo --json=scores.json             # the last policy of a run, or its best so far
    python eval.py out/A out/B --samples=4 --player=greedy,optimal   # several runs, with the settings of the first
    python eval.py out/A out/A_s1 --samples=16 --player=greedy --against=greedy     # paired differences
    python eval.py config/frozenlake_ppo.py --model=PATH,HUB/ID      # any Qwen2-family models
    python eval.py config/frozenlake_ppo.py --player=optimal         # reference players: random, greedy, optimal
    python eval.py config/frozenlake_ppo.py --api_base=http://localhost:8000/v1 --api_model=NAME     # what a server has
    python eval.py out/frozenlake_ppo --repeat=out/frozenlake_ppo/eval_final.jsonl      # a record, without its model

Sampling at T=0.5 under the limits of the config (5 turns). `--eval_split=heldout` scores 256 other instances: choose
settings there. `--samples=N` plays every prompt N times, `--against=NAME` pairs all rows with one. `--jsonl=PATH`
writes the trajectories, each reward next to the action that earned it; `--repeat` puts such a record through the
environments again and fails where anything differs. The key of a server is in OPENAI_API_KEY; its context is its own
matter. Intervals are 95 % Wilson; instances and transition noise are the same for all, so rows can be paired.
"""

from configurator import Config, UserError, load_config, run_main

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.client import HTTPException
from itertools import product, takewhile
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from tqdm import tqdm

import rollout
from dialogue import Episode, format_response, reference_actions
from engine import make_engine
from envs import mixture_at
from model import Policy, load_model
from parallel import collect_all, rank, score_tokens, set_up, synchronize, tear_down, world_size
from rollout import (
    Chat,
    Trajectory,
    Turn,
    make_episode,
    split_by_context,
    summarize,
    without_errors,
)
from support.run_folder import load_saved
from support.statistics import paired_bootstrap, pass_at_k, wilson_interval

SEED_EVAL = 21
PLAYERS = ("random", "greedy", "optimal")
ATTEMPTS, PAUSE_S, TIMEOUT_S = (
    5,
    1.0,
    120.0,
)  # of a request to a server; the pause doubles after each
OPTIONS = {
    "player": "",
    "api_base": "",
    "api_model": "",
    "samples": 1,
    "against": "",
    "repeat": "",
    "json": "",
    "jsonl": "",
}
COLUMNS = (
    "reward",
    "num_turns",
    "num_actions",
    "valid_frac",
    "effective_frac",
    "entropy",
    "response_length",
)


def wins_of(played: Sequence[Trajectory]) -> dict[tuple[int, ...], list[bool]]:
    """Successes of the samples of every prompt."""
    wins = defaultdict(list)
    for t in played:
        wins[t.seed].append(t.success)
    return wins


def score(played: Sequence[Trajectory]) -> dict[str, float]:
    """`rollout.summarize`, and where prompts were played n times the mean over prompts of pass@k, k = 2, 4, ..., n."""
    wins = wins_of(played)
    n = len(played) // len(wins)
    ks = sorted({2**i for i in range(1, n.bit_length())} | {n} - {1})
    passes = {
        f"pass@{k}": sum(pass_at_k(n, sum(won), k) for won in wins.values()) / len(wins) for k in ks
    }
    return summarize(played) | passes


def success_interval(played: Sequence[Trajectory]) -> tuple[float, float]:
    """95 % interval of the success rate; the samples of a prompt count as one trial, which is the safe side."""
    num_prompts = len({t.seed for t in played})
    return wilson_interval(num_prompts * sum(t.success for t in played) / len(played), num_prompts)


def progress(**options) -> tqdm:
    """A bar on the terminal of rank 0. A log file has the lines that are printed."""
    return tqdm(mininterval=1, disable=True if rank() else None, **options)


# ---------- players that answer in text


Answer = Callable[
    [Episode, Trajectory, str], Turn | None
]  # episode, trajectory so far, user message


def play(config: Config, answer: Answer, seed: Sequence[int], member: int) -> Trajectory:
    """One episode as `rollout.collect` plays it, with a player that reads and writes text.

    Args: answer: gives a turn with its text, or with info["error"]; None where the trajectory is out of tokens."""
    t, episode = Trajectory(tuple(seed), member, env=config.env), make_episode(config)
    t.system, user, failed = rollout.open_episode(
        episode, t, config.eval_split, config.step_timeout_s
    )
    while not t.status and (turn := Turn([], [], []) if failed else answer(episode, t, user)):
        failed = failed or ("error" in turn.info and rollout.error_outcome(turn.info["error"]))
        outcome = failed or rollout.take_step(episode, turn.text, config.step_timeout_s)
        t.turns.append(replace(turn, reward=outcome.reward, observation=user, info=outcome.info))
        t.status, user = outcome.status or "", outcome.user
    t.status = t.status or "out_of_tokens"
    rollout.reshape_rewards(t, episode)
    return t


def play_reference(config: Config, player: str, samples: int = 1) -> list[Trajectory]:
    """Let a reference player answer through the same dialogue; see `dialogue.reference_actions`.

    Raises: UserError, see `rollout.without_errors`."""

    def answer(rng: np.random.Generator, episode: Episode, *_) -> Turn:
        try:
            actions = rollout.call_with_timeout(
                config.step_timeout_s, reference_actions, episode, player, rng
            )
        except rollout.EnvError as error:
            return Turn([], [], [], info={"error": error})
        return Turn([], [], [], text=format_response("", actions, think=config.think))

    starts = product(range(config.eval_size), range(samples))
    played = [
        play(config, partial(answer, np.random.default_rng([SEED_EVAL, i, m])), (i,), m)
        for i, m in starts
    ]
    without_errors(played, config)  # a few count as failures
    return played


def reference_settings(config: Config, players: Iterable[str] = PLAYERS) -> dict[str, Config]:
    """By row: each player closed-loop, which is the same action budget with a turn for every action, and optimal under
    the turn limit at 1, 2, 5 actions."""
    closed = replace(config, max_turns=config.actions_per_traj, actions_per_turn=1)
    rows = {f"{name}, closed loop": closed for name in players}
    if "optimal" in players:
        for k in sorted({1, 2, 5} & set(range(1, config.actions_per_turn + 1))):
            rows[f"optimal, {k} a turn"] = replace(config, actions_per_turn=k)
    return rows


def reference_rows(
    config: Config, players: Iterable[str] = PLAYERS, samples: int = 1
) -> dict[str, list]:
    """By row the trajectories of the players."""
    settings = reference_settings(config, players).items()
    return {name: play_reference(row, name.split(",")[0], samples) for name, row in settings}


def ask(url: str, body: dict) -> Turn:
    """A reply from a server that speaks OpenAI's chat completions; what may pass (no connection, timeouts, 5xx, 429,
    malformed replies) is tried ATTEMPTS times. Returns: a turn with the text and as many tokens as the server counted
    (the first is all of the text), or one with info["error"]."""
    key = os.environ.get("OPENAI_API_KEY", "none")  # local servers want none
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = Request(f"{url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE_S * (2**attempt - 1))
        try:
            with urlopen(request, timeout=TIMEOUT_S) as response:
                reply = json.load(response)
            text, count = (
                reply["choices"][0]["message"]["content"],
                reply["usage"]["completion_tokens"],
            )
            return Turn(
                [], [text, *[""] * (count - 1)], [], text=text + ""
            )  # a TypeError where it is no text
        except HTTPError as error:
            fault = f"{error}: {error.read(300).decode(errors='replace')}"
            if error.code < 500 and error.code not in (408, 429):
                break  # it is the request that is wrong
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            fault = f"{type(error).__name__}: {error}"
    return Turn([], [], [], info={"error": f"{request.full_url}: {' '.join(fault.split())}"})


def play_served(config: Config, url: str, name: str, samples: int = 1) -> list[Trajectory]:
    """Play the fixed prompts with the model that a server calls `name`, `max_running` trajectories at once, each in a
    thread, where environments have no time limit. An error of the server is a failure. Raises: UserError if there is
    nothing else."""

    def answer(episode: Episode, t: Trajectory, user: str) -> Turn:
        said, first = (
            [("system", t.system)],
            len(t.turns) + 1 - config.context_turns if config.context_turns else 0,
        )
        for turn in t.turns[max(0, first) :]:
            said += [("user", turn.observation), ("assistant", turn.text)]
        messages = [{"role": role, "content": text} for role, text in (*said, ("user", user))]
        seed = int(
            np.random.SeedSequence((SEED_EVAL, *t.seed, t.member, len(t.turns))).generate_state(1)[
                0
            ]
            >> 1
        )
        return ask(
            url,
            dict(
                model=name,
                messages=messages,
                seed=seed,
                max_tokens=config.max_response_tokens,
                temperature=config.eval_temperature,
            ),
        )

    seeds, members = zip(
        *product([(i,) for i in range(config.eval_size)], range(samples)), strict=True
    )
    with ThreadPoolExecutor(config.max_running) as pool:
        done = pool.map(partial(play, config, answer), seeds, members)
        played = list(
            progress(iterable=done, total=len(seeds), desc=name, unit="traj", leave=False)
        )
    if faults := [t.turns[-1].info["error"] for t in played if t.status == "error"]:
        sentence = f"{len(faults)} of {len(played)} trajectories of {name} ended in an error, the first by {faults[0]}"
        if len(faults) == len(played):
            raise UserError(sentence)
        print(f"{sentence}; they count as failures", flush=True)
    return played


def repeat(
    config: Config, path: str
) -> Iterator[tuple[str, str, tuple[dict, list[Trajectory]], None]]:
    """Put the replies of a record (`write_jsonl`) through parser and environments again; entropy is taken from it.
    Yields: what `scored` does. Raises: UserError for games of an environment that is not scored here, and when all are
    and one differs from its record."""

    def answer(record: dict, _, t: Trajectory, user: str) -> Turn | None:
        for turn in record["turns"][len(t.turns) : len(t.turns) + 1]:
            return Turn(
                [],
                turn["tokens"],
                [-nats for nats in turn["surprise"]],
                text=turn["response"],
                info=turn,
            )

    groups, seen, differ = defaultdict(list), Counter(), []
    legal, players = scored_envs(config), reference_settings(config)
    try:
        records = [
            json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n") if line
        ]
        turns = [turn for record in records for turn in record["turns"]]
        whole = records and all({"env", "seed", "member"} <= record.keys() for record in records)
        whole = whole and all({"response", "tokens", "surprise"} <= turn.keys() for turn in turns)
    except (ValueError, LookupError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise UserError(f"{path} does not hold trajectories as --jsonl writes them")
    for record in ({"policy": "recorded", "entropy": None} | record for record in records):
        if record["env"] not in legal:  # a name may be a file of code, which no record can choose
            raise UserError(
                f"{path} has games of {record['env']!r}; add --env={record['env']} to play these"
            )
        settings = players.get(record["policy"], config)
        t = play(
            replace(settings, env=record["env"]),
            partial(answer, record),
            record["seed"],
            record["member"],
        )
        row = record["env"], record["policy"], record["entropy"]
        seen[row, t.seed, t.member] += 1  # more than once in a record of several evaluations
        groups[row, seen[row, t.seed, t.member]].append(t)
        if record | json.loads(json.dumps(trajectory_record(t))) != record:
            differ.append(f"prompt {t.seed[0]} of {record['policy']} in {t.env}")
    for ((env, name, entropy), _), played in groups.items():
        yield (
            env,
            name,
            (score(played) | ({} if entropy is None else {"entropy": entropy}), played),
            None,
        )
    if differ:
        raise UserError(
            f"{len(differ)} trajectories of {path} went otherwise than recorded, the first: {differ[0]}"
        )


# ---------- models


def evaluate(
    config: Config, engine, chat: Chat, policy: Policy, samples: int = 1
) -> tuple[dict, list[Trajectory]]:
    """Play the fixed prompts, each `samples` times, with the policy's weights; the sampling noise is fixed as well. All
    ranks share the work.

    Returns: the means of `score` with entropy (nats per response token, at the evaluation temperature),
    and the trajectories in the order of the prompts."""
    starts = [((i,), member) for i, member in product(range(config.eval_size), range(samples))]
    synchronize(engine, policy)
    with progress(
        total=len(starts), desc=f"eval {config.eval_split}", unit="traj", leave=False
    ) as bar:
        played = collect_all(
            engine,
            policy,
            chat,
            config,
            starts,
            group_size=samples,
            split=config.eval_split,
            noise_seed=(SEED_EVAL,),
            temperature=config.eval_temperature,
            on_done=lambda: bar.update(world_size()),
        )
    without_errors(played, config)  # a few count as failures
    _, entropy = score_tokens(
        policy, split_by_context(played, config), config, config.eval_temperature or 1.0
    )
    return score(played) | {"entropy": entropy.mean().item()}, played


def scored_envs(config: Config) -> list[str]:
    """The environments that are scored: those of `eval_env`, else of the last stage of training."""
    return list(mixture_at(config.eval_env or config.env, None))


def evaluate_all(
    config: Config, engine, chat: Chat, policy: Policy, samples: int = 1
) -> dict[str, tuple[dict, list]]:
    """`evaluate` in each of them, by name."""
    return {
        env: evaluate(replace(config, env=env), engine, chat, policy, samples)
        for env in scored_envs(config)
    }


# ---------- reports


def table(rows: dict[str, tuple[dict[str, float], list[Trajectory]]]) -> str:
    """Markdown: one line per policy or player; success and pass@k in %, success with its 95 % interval."""
    passes = list(
        dict.fromkeys(key for metrics, _ in rows.values() for key in metrics if "pass@" in key)
    )
    head = [
        "",
        "success % [95 %]",
        *passes,
        "reward",
        "turns",
        "actions",
        "valid",
        "effective",
        "entropy",
        "tokens",
    ]
    lines = [head, ["---"] * len(head)]
    for name, (metrics, played) in rows.items():
        low, high = success_interval(played)
        cells = [f"{100 * metrics['success']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"]
        cells += [f"{100 * metrics[key]:.1f}" if key in metrics else "-" for key in passes]
        known = (
            metrics
            if metrics["response_length"]
            else {k: v for k, v in metrics.items() if k != "response_length"}
        )
        cells += [f"{known[key]:.2f}" if key in known else "-" for key in COLUMNS]
        lines.append([name, *cells])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    padded = (
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def differences(rows: dict[str, tuple[dict, list[Trajectory]]], reference: str) -> str:
    """A line for each row of success minus that of the first row whose name begins with `reference`, paired by prompt,
    in % with its bootstrap interval; the last takes models as seeds of one method. Raises: UserError without a row."""
    if not (found := [name for name in rows if name.startswith(reference)]):
        raise UserError(
            f"--against wants the first words of {' or '.join(map(repr, rows))}, got {reference!r}"
        )
    reference = found[0]
    paired = {
        name: played
        for name, (_, played) in rows.items()
        if played[0].env == rows[reference][1][0].env
    }
    wins = {name: sorted(wins_of(played).items()) for name, played in paired.items()}
    if len({tuple(prompt for prompt, _ in found) for found in wins.values()}) > 1:
        raise UserError("rows of different prompts cannot be paired; leave out --against")
    rates = {
        name: np.array([np.mean(won) for _, won in found]) for name, found in wins.items()
    }  # (n,) each
    sets = {name: [name] for name in rates if name != reference}
    models = [name for name in sets if "entropy" in rows[name][0]]
    sets |= {f"all {len(models)} models, as seeds": models} if len(models) > 1 else {}
    lines = [f"success - {reference}, paired by prompt, % [95 % bootstrap]:"]
    for label, names in sets.items():
        mean, low, high = paired_bootstrap(
            np.stack([rates[name] for name in names]), rates[reference][None]
        )
        lines.append(f"  {label}: {100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    return "\n".join(lines)


def trajectory_record(trajectory: Trajectory, tokenizer=None) -> dict:
    """A trajectory as plain data: every turn with the reward that its own actions earned, and the sampled tokens one by
    one with their surprise -log p under the sampler, nats. A token that is no whole character becomes U+FFFD.

    Args: tokenizer: of the policy; players that answer in text have none, their tokens are pieces of it."""
    decode = tokenizer.decode if tokenizer else lambda ids, **_: ids[0]
    turns = [
        {
            "observation": t.observation,
            "response": t.text,
            **t.info,
            "reward": t.reward,
            "tokens": [decode([i], clean_up_tokenization_spaces=False) for i in t.response_ids],
            "surprise": [round(-lp, 4) for lp in t.rollout_logprobs],
        }
        for t in trajectory.turns
    ]
    keys = ("env", "seed", "member", "status", "success", "score", "system")
    return {key: getattr(trajectory, key) for key in keys} | {"turns": turns}


def write_jsonl(
    path: str | Path, rows: dict[str, tuple[dict, list[Trajectory]]], tokenizer=None, mode="w"
) -> None:
    """A line per trajectory, with the name of its row and what only the model can tell, the mean entropy of the row."""
    with Path(path).open(mode, encoding="utf-8") as file:
        for name, (metrics, played) in rows.items():
            head = {"policy": name, "entropy": metrics.get("entropy")}
            file.writelines(
                json.dumps(head | trajectory_record(t, tokenizer)) + "\n" for t in played
            )


def policy_of(run: str | Path) -> Path:
    """The policy of a run: the last one when it is over, before that the one of its best evaluation."""
    for name in ("policy", "best"):
        if (folder := Path(run, name)).is_dir():
            return folder
    raise UserError(
        f"{run} holds no policy/ or best/, which train.py writes at the end and at the best evaluation"
    )


def scored(
    config: Config, models: list[str], options: dict
) -> Iterator[tuple[str, str, tuple[dict, list], object]]:
    """Score models, what a server has, and players, one after the other. Yields: environment, name of the row, metrics
    and trajectories, tokenizer or None."""
    samples, envs = options["samples"], scored_envs(config)
    for name in models:
        device, _ = set_up(config)  # again, for an engine takes the process group with it
        model, tokenizer = load_model(name, device=device)
        chat = Chat(tokenizer)
        engine = make_engine(config, model, chat)
        for env, result in evaluate_all(config, engine, chat, Policy(model), samples).items():
            yield env, name, result, tokenizer
        tear_down(engine)
    for name, env in product(filter(None, options["api_model"].split(",")), envs):
        played = play_served(replace(config, env=env), options["api_base"], name, samples)
        yield env, f"{name} (API)", (score(played), played), None
    for env in envs if options["player"] else ():
        for name, played in reference_rows(
            replace(config, env=env), options["player"].split(","), samples
        ).items():
            yield env, name, (score(played), played), None


def main(argv: list[str]) -> None:
    runs = list(takewhile(lambda arg: Path(arg).is_dir(), argv))
    config, options, sources = load_config(
        argv[len(runs) :], extra=OPTIONS, base=load_saved(runs[0]) if runs else None
    )
    if options["player"] and (unknown := {*options["player"].split(",")} - {*PLAYERS}):
        raise UserError(f"player must be one of {', '.join(PLAYERS)}, got {unknown.pop()!r}")
    if options["samples"] < 1 or bool(options["api_base"]) != bool(options["api_model"]):
        raise UserError(
            f"samples must be 1 or more, and api_base and api_model given together; got {argv}"
        )
    key = "eval_env" if config.eval_env else "env"
    if runs and ".py" in getattr(config, key) and sources[key] == "default":
        raise UserError(
            f"{runs[0]} names code to run; if you trust it, add --{key}={getattr(config, key)}"
        )
    for path in (options[key] for key in ("json", "jsonl")):
        if not Path(path).parent.is_dir():
            raise UserError(f"{path} cannot be written: there is no folder {Path(path).parent}")
    if sources["num_samples"] == "command line":
        raise UserError(
            "num_samples is a setting of train.py; here --samples=N plays every prompt N times"
        )
    named = sources["model"] == "command line"
    if options["repeat"] and (
        named or options["player"] or options["api_model"] or options["samples"] > 1
    ):
        raise UserError(
            "repeat plays a record again and nothing else: without model, player, api_model and samples"
        )
    named = named or not (runs or options["player"] or options["api_model"])
    models = (
        config.model.split(",")
        if named
        else [str(policy_of(run)) for run in runs if not options["repeat"]]
    )
    set_up(config)
    is_first, began, rows, scores = rank() == 0, time.process_time(), {}, {}
    results = scored(config, models, options)
    for env, name, row, tokenizer in (
        repeat(config, options["repeat"]) if options["repeat"] else results
    ):
        title = name if len(scored_envs(config)) == 1 else f"{env}: {name}"
        title += f" ({len(rows) + 1})" * (title in rows)  # a record of two evaluations, say
        rows[title] = row
        if options["jsonl"] and is_first:
            write_jsonl(options["jsonl"], {name: row}, tokenizer, "w" if len(rows) == 1 else "a")
    print(table(rows))
    num_prompts = len({t.seed for _, played in rows.values() for t in played})
    print(
        f"{', '.join(scored_envs(config))}, {num_prompts} {config.eval_split} prompts, T={config.eval_temperature}, "
        f"{time.process_time() - began:.1f} CPU-s"
    )
    for name, (metrics, played) in rows.items():
        wins = [int(t.success) for t in played]
        scores[name] = metrics | {
            "n": len(wins),
            "interval": success_interval(played),
            "successes": wins,
        }
    if options["json"] and is_first:
        Path(options["json"]).write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    if options["against"]:  # the last, for a wrong name must lose nothing
        print(differences(rows, options["against"]))


if __name__ == "__main__":
    run_main(main)
