"""Score models behind an OpenAI-compatible server on the fixed evaluation prompts.

    python -m tools.api_models config/frozenlake_ppo.py --api_base=URL --api_model=NAME,OTHER

URL is the address of the server, such as http://localhost:8000/v1. The environment variable
OPENAI_API_KEY holds the server's key. The command also takes folders of runs, and the options
--player, --samples, --against, --json and --jsonl of eval.py. max_context_tokens has no effect on
the models behind the server, because the server limits their context. Up to `max_running` games are
played at once, in threads.
"""

from configurator import Config, UserError

from mixtures import scored_envs
from support.arguments import SCORING_OPTIONS, Job, read_scoring
from support.terminal import run_main
from tools.chat_server import check_server, request_reply


def read_api_models(argv: list[str]) -> Job:
    """Read the command line, and check the server."""
    options = {**SCORING_OPTIONS, "api_base": "", "api_model": ""}
    job = read_scoring(argv, options, "tools.api_models", default_model=False)
    url = job.options["api_base"]
    if not url or not job.options["api_model"]:
        given = " ".join(argv) or "nothing"
        raise UserError(f"give both --api_base=URL and --api_model=NAME; got {given}")
    if not url.startswith(("http://", "https://")):
        raise UserError(f"api_base must begin with http:// or https://, got {url!r}")
    check_server(url)
    return job


if __name__ == "__main__":
    run_main(read_api_models)  # reports wrong arguments or a dead server before the slow imports

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
from tqdm import tqdm

from eval import SEED_EVAL, model_rows, player_rows, report_rows
from rollout import Reply, Rollout, Trajectory, make_episode, play, visible_turns
from support.log import progress_bar
from support.no_effect import SCORING
from support.scores import Row, Scores, score
from utils.quotes import split_unquoted, unquote
from utils.threads import map_in_threads

SETTINGS_READ = SCORING


def main(argv: list[str]) -> None:
    job = read_api_models(argv)
    report_rows(job, SETTINGS_READ, model_rows(job), api_rows(job), player_rows(job))


def api_rows(job: Job) -> Iterator[Row]:
    """Play each environment with each model of --api_model; yield a row of scores for each pair."""
    names = filter(None, split_unquoted(job.options["api_model"], ","))
    for name, env in product(map(unquote, names), scored_envs(job.config)):
        trajectories = play_fixed_prompts(
            replace(job.config, env=env), job.options["api_base"], name, job.options["samples"]
        )
        yield Row(env, f"{name} (API)", Scores(score(trajectories), trajectories))


def play_fixed_prompts(config: Config, url: str, name: str, samples: int = 1) -> list[Trajectory]:
    """Play the fixed prompts with the server's model `name`.

    A trajectory that ends in an error counts as a failure.
    Raises: UserError if every trajectory ends in an error, or if the server refuses the key."""
    player = APIPlayer(url, name)

    def play_one(start: tuple[int, int]) -> Trajectory:
        index, member = start
        rollout = Rollout(make_episode(config), (index,), member=member)
        rollout.reset(config.eval_split)
        return play(rollout, player)

    starts = list(product(range(config.eval_size), range(samples)))
    played = map_in_threads(play_one, starts, config.max_running)
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
    """A player for `rollout.play` whose replies come from a model behind a server."""

    def __init__(self, url: str, name: str):
        self.url = url
        self.name = name
        self.has_reported = False

    def __call__(self, rollout: Rollout) -> Reply:
        config = rollout.config
        trajectory = rollout.trajectory
        path = (SEED_EVAL, *trajectory.seed, trajectory.member, len(trajectory.turns))
        seed = int(np.random.SeedSequence(path).generate_state(1)[0] >> 1)
        body = {
            "model": self.name,
            "messages": messages_of(rollout),
            "seed": seed,
            "max_tokens": config.max_response_tokens,
            "temperature": config.eval_temperature,
        }
        return request_reply(self.url, body, self.report_fault)

    def report_fault(self, sentence: str) -> None:
        """Print only the first error of the server."""
        if not self.has_reported:
            self.has_reported = True
            tqdm.write(sentence, file=sys.stderr)


def messages_of(rollout: Rollout) -> list[dict[str, str]]:
    """Return the dialogue so far, without the turns that `context_turns` hides."""
    trajectory = rollout.trajectory
    messages = [{"role": "system", "content": trajectory.system}]
    for turn in visible_turns(trajectory.turns, rollout.config.context_turns):
        messages.append({"role": "user", "content": turn.observation})
        messages.append({"role": "assistant", "content": turn.text})
    messages.append({"role": "user", "content": rollout.user})
    return messages


if __name__ == "__main__":
    run_main(main)
