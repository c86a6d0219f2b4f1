"""Requests chat completions from an untrusted OpenAI-compatible server.

This module must not import torch, so that an unreachable server is reported within seconds.
"""

from configurator import UserError

import json
import os
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from http.client import HTTPException
from urllib.parse import urlsplit

from rollout import Reply
from tools.web import exchange
from utils.text import printable

ATTEMPTS = 5
PAUSE_S = 1.0  # pause after the first attempt; the next pauses are 3, 7 and 15 times as long
TIMEOUT_S = 120.0  # of one attempt
PROBE_S = 5.0  # time limit of the request for the list of models


# A script reads its command line before the slow imports and again in main(), and each reading
# calls check_server. Because of the cache, the second call sends no request.
@lru_cache
def check_server(url: str) -> None:
    """Ask a server for its models, to report a wrong address or key before the slow imports.

    HTTP statuses other than 401 are accepted, because some servers list no models. A server that
    connects but sends no complete answer in time is accepted, too, because it may be busy.
    Raises: UserError if the server cannot be reached, refuses the key or does not speak HTTP.
    """
    print(f"api_base={url!r}: requesting its list of models", file=sys.stderr, flush=True)
    try:
        if not urlsplit(url).hostname:
            raise ValueError("it names no host")
        address = f"{url.rstrip('/')}/models"
        status, answer = exchange("GET", address, headers=request_headers(), time_limit_s=PROBE_S)
        check_key(address, status, answer)
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


def request_reply(url: str, body: dict, on_fault: Callable[[str], None]) -> Reply:
    """Request a chat completion from an OpenAI-compatible server.

    After a temporary error, the function calls `on_fault` and repeats the request, up to ATTEMPTS
    requests in all. Temporary errors are a missing connection, a timeout, a malformed reply, and
    the HTTP statuses 408, 429 and 5xx. If no request succeeds, `Reply.error` says why.

    The server sends the reply's text and token count, but not the tokens. So `Reply.response_ids`
    is the list [text, "", ...], whose length is the token count (at least one).

    Raises: UserError if the server refuses the key."""
    address = f"{url.rstrip('/')}/chat/completions"
    content = json.dumps(body).encode()
    fault = ""
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE_S * (2**attempt - 1))
        try:
            status, answer = exchange(
                "POST", address, body=content, headers=request_headers(), time_limit_s=TIMEOUT_S
            )
            check_key(address, status, answer)
            if status == 200:
                return read_reply(answer, body["max_tokens"])
            fault = describe_answer(status, answer)
        except UserError:
            raise
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
    """Return the headers of a request, including the API key.

    Raises: UserError if a header cannot hold the key."""
    key = os.environ.get("OPENAI_API_KEY", "none")  # local servers need no key
    if not key.isascii() or not key.isprintable():
        raise UserError("OPENAI_API_KEY must be printable ASCII text without line breaks")
    return {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}


def check_key(address: str, status: int, answer: bytes) -> None:
    """Raises: UserError if the status is 401, because then the key is missing or wrong."""
    if status == 401:
        state = "holds another key" if "OPENAI_API_KEY" in os.environ else "is not set"
        raise UserError(
            f"{address} needs a key, and the environment variable OPENAI_API_KEY {state} "
            f"({describe_answer(status, answer)})"
        )


def describe_answer(status: int, answer: bytes) -> str:
    return f"HTTP status {status}: {answer[:300].decode(errors='replace')}"


def read_reply(answer: bytes, max_tokens: int) -> Reply:
    """Read the body of a server's answer, and return it as a reply.

    Raises: LookupError, TypeError, ValueError or RecursionError if the body is no chat completion,
        or if the completion has more than `max_tokens` tokens."""
    completion = json.loads(answer)
    choice = completion["choices"][0]
    text = choice["message"]["content"]
    num_tokens = completion["usage"]["completion_tokens"]
    if not isinstance(text, str):
        raise TypeError(f"the content is {text!r}, expected a text")
    if type(num_tokens) is not int or not 0 <= num_tokens <= max_tokens:
        raise ValueError(
            f"completion_tokens is {num_tokens!r}, expected a number up to max_tokens, {max_tokens}"
        )
    cut_by = None
    # finish_reason is "length" if the reply reached max_tokens, or if the context of the server was
    # full.
    if choice.get("finish_reason") == "length":
        has_whole_budget = num_tokens == max_tokens
        cut_by = "max_response_tokens" if has_whole_budget else "max_context_tokens"
    return Reply(text, response_ids=[text, *[""] * (num_tokens - 1)], cut_by=cut_by)
