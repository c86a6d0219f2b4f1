"""Score a model behind an OpenAI-compatible server on the fixed prompts.

    python -m tools.api_models config/frozenlake_ppo.py \
        --api_base=http://localhost:8000/v1 --api_model=NAME          # several: NAME,OTHER

Runs, --player, --samples, --against, --json and --jsonl work as in eval.py. The environment
variable OPENAI_API_KEY holds the key of the server. `max_running` threads play the trajectories;
environments have no time limit in them. The server limits the context, not max_context_tokens.
"""

from configurator import Config, UserError, printable, run_main

from support.arguments import Job, read_api_models, scored_envs

if __name__ == "__main__":
    run_main(read_api_models)  # answers mistakes before the slow imports

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPException
from itertools import product
from urllib.parse import urlsplit

import numpy as np
from tqdm import tqdm

from eval import SEED_EVAL, model_rows, player_rows, progress_bar, report_rows
from rollout import Conversation, Reply, Trajectory, make_episode, play
from support.scores import Row, Scores, score
from support.web import exchange

ATTEMPTS = 5  # attempts of a request
PAUSE_S = 1.0  # the pauses between attempts are 1, 3, 7 and 15 times this
TIMEOUT_S = 120.0  # time limit of one attempt
PROBE_S = 5.0  # time limit of the first request, which only tests the connection


def main(argv: list[str]) -> None:
    job = read_api_models(argv)
    check_server(job.options["api_base"])
    report_rows(job, model_rows(job), api_rows(job), player_rows(job))


def api_rows(job: Job) -> Iterator[Row]:
    """Score the models of the server, one after the other."""
    names = filter(None, job.options["api_model"].split(","))
    for name, env in product(names, scored_envs(job.config)):
        trajectories = play_fixed_prompts(
            replace(job.config, env=env), job.options["api_base"], name, job.options["samples"]
        )
        yield Row(env, f"{name} (API)", Scores(score(trajectories), trajectories))


def play_fixed_prompts(config: Config, url: str, name: str, samples: int = 1) -> list[Trajectory]:
    """Play the fixed prompts with the model that the server calls `name`.

    An error of the server counts as a failure of its trajectory.
    Raises: UserError if every trajectory ended in an error."""
    player = APIPlayer(url, name)

    def play_one(start: tuple[int, int]) -> Trajectory:
        index, member = start
        conversation = Conversation(make_episode(config), (index,), member=member)
        conversation.reset(config.eval_split)
        return play(conversation, player)

    starts = list(product(range(config.eval_size), range(samples)))
    with ThreadPoolExecutor(config.max_running) as pool:
        played = pool.map(play_one, starts)
        bar = progress_bar(iterable=played, total=len(starts), desc=name, unit="traj", leave=False)
        trajectories = list(bar)
    errors = [trajectory.error for trajectory in trajectories if trajectory.error]
    if errors:
        sentence = (
            f"{len(errors)} of {len(trajectories)} trajectories of {name} ended in an error, "
            f"the first by {errors[0]}"
        )
        if len(errors) == len(trajectories):
            raise UserError(sentence)
        print(f"{sentence}; they count as failures", flush=True)
    return trajectories


class APIPlayer:
    """Answers a conversation with a model behind a server."""

    def __init__(self, url: str, name: str):
        self.url = url
        self.name = name
        self.has_reported = False  # whether a fault of the server was printed

    def __call__(self, conversation: Conversation) -> Reply:
        config = conversation.config
        trajectory = conversation.trajectory
        path = (SEED_EVAL, *trajectory.seed, trajectory.member, len(trajectory.turns))
        seed = int(np.random.SeedSequence(path).generate_state(1)[0] >> 1)
        body = {
            "model": self.name,
            "messages": messages_of(conversation),
            "seed": seed,
            "max_tokens": config.max_response_tokens,
            "temperature": config.eval_temperature,
        }
        return request_reply(self.url, body, self.report_fault)

    def report_fault(self, sentence: str) -> None:
        """Print the first fault. A hostile server could fill the screen with all of them."""
        if not self.has_reported:
            self.has_reported = True
            tqdm.write(sentence, file=sys.stderr)


def messages_of(conversation: Conversation) -> list[dict[str, str]]:
    """The dialogue so far; with context_turns, only the turns that the policy would see."""
    trajectory = conversation.trajectory
    context_turns = conversation.config.context_turns
    first = max(0, len(trajectory.turns) + 1 - context_turns) if context_turns else 0
    messages = [{"role": "system", "content": trajectory.system}]
    for turn in trajectory.turns[first:]:
        messages.append({"role": "user", "content": turn.observation})
        messages.append({"role": "assistant", "content": turn.text})
    messages.append({"role": "user", "content": conversation.user})
    return messages


def request_reply(url: str, body: dict, on_fault: Callable[[str], None]) -> Reply:
    """Request a chat completion from an OpenAI-compatible server.

    It tries again after errors that may be temporary: no connection, timeouts, 5xx, 408, 429 and
    malformed replies. It calls `on_fault` with each such error in words.
    Returns: a reply with as many tokens as the server counted: the whole text, then empty ones. If
        all attempts fail, a reply with an error."""
    address = f"{url.rstrip('/')}/chat/completions"
    content = json.dumps(body).encode()
    fault = ""
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE_S * (2**attempt - 1))
        try:
            status, answer = exchange(
                "POST", address, body=content, headers=request_headers(), time_limit_s=TIMEOUT_S
            )
            if status == 200:
                return read_reply(answer, body["max_tokens"])
            fault = f"HTTP status {status}: {answer[:300].decode(errors='replace')}"
        except (
            OSError,
            HTTPException,
            ValueError,
            LookupError,
            TypeError,
            RecursionError,
        ) as error:
            status = None
            fault = f"{type(error).__name__}: {error}"
        fault = printable(" ".join(fault.split()))
        is_temporary = status is None or status >= 500 or status in (200, 408, 429)
        if not is_temporary:
            break
        on_fault(f"{address}: {fault}; each request is tried {ATTEMPTS} times")
    return Reply("", error=f"{address}: {fault}")


def request_headers() -> dict[str, str]:
    """Raises: UserError if the key cannot be in a header."""
    key = os.environ.get("OPENAI_API_KEY", "none")  # local servers need no key
    if not key.isascii() or not key.isprintable():
        raise UserError("OPENAI_API_KEY must be printable ASCII text without line breaks")
    return {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}


def read_reply(answer: bytes, max_tokens: int) -> Reply:
    """The reply in the body of a chat completion.

    Raises: LookupError, TypeError, ValueError or RecursionError if it is none."""
    completion = json.loads(answer)
    text = completion["choices"][0]["message"]["content"]
    num_tokens = completion["usage"]["completion_tokens"]
    if not isinstance(text, str):
        raise TypeError(f"the content is {text!r}, expected a text")
    if type(num_tokens) is not int or not 0 <= num_tokens <= max_tokens:
        raise ValueError(
            f"completion_tokens is {num_tokens!r}, expected a number up to max_tokens, {max_tokens}"
        )
    return Reply(text, response_ids=[text, *[""] * (num_tokens - 1)])


def check_server(url: str) -> None:
    """Ask a server for its models, so that a dead one is reported before the games.

    Raises: UserError if there is no connection. Any answer is good enough: some servers have no
        list of models, and a busy one may be slow.
    """
    print(f"api_base={url!r}: asking for its models", file=sys.stderr, flush=True)
    try:
        if not urlsplit(url).hostname:
            raise ValueError("it names no host")
        address = f"{url.rstrip('/')}/models"
        exchange("GET", address, headers=request_headers(), time_limit_s=PROBE_S)
    except UserError:
        raise
    except TimeoutError as error:
        if "no complete reply" not in str(error):
            raise UserError(f"api_base={url!r} cannot be reached ({error})") from error
        print(f"api_base={url!r}: {error}; going on", file=sys.stderr, flush=True)
    except (OSError, ValueError) as error:
        raise UserError(f"api_base={url!r} cannot be reached ({error})") from error
    except HTTPException as error:
        raise UserError(f"api_base={url!r} does not speak HTTP ({error!r})") from error


if __name__ == "__main__":
    run_main(main)
