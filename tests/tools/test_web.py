"""Tests of tools/web.py and tools/chat_server.py with hostile and dead servers."""

from configurator import UserError

import json
import socket
import threading
from contextlib import contextmanager
from http.client import IncompleteRead

import pytest

from tools import chat_server
from tools.web import exchange

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def server_of(answer, *, pauses=False):
    """Run a server that sends `answer`. If `pauses` is True, the server pauses after each byte.

    Yields: the address of the server, and the list of requests that the server got.
    """
    requests = []
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    requests.append(receive(connection))
                    send(connection)

        def receive(connection):
            request = connection.recv(65536)
            while request.startswith(b"POST") and not request.endswith(b"}"):
                request += connection.recv(65536)
            return request

        def send(connection):
            try:
                if not pauses:
                    connection.sendall(answer)
                    return
                for byte in answer:
                    connection.sendall(bytes([byte]))
                    stopped.wait(0.05)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", requests
        stopped.set()
        listener.shutdown(socket.SHUT_RDWR)


def http(body, status="200 OK", header="X: y"):
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{header}\r\n\r\n"
    return head.encode() + body


def completion(text, count):
    usage = {"completion_tokens": count}
    return json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode()


def reply_to(url, monkeypatch, time_limit_s=20.0):
    monkeypatch.setattr(chat_server, "PAUSE_S", 0.0)
    monkeypatch.setattr(chat_server, "ATTEMPTS", 2)
    monkeypatch.setattr(chat_server, "TIMEOUT_S", time_limit_s)
    return chat_server.request_reply(url, {"max_tokens": 12}, on_fault=lambda _: None)


@pytest.mark.parametrize(
    "count", [200_000_000, 1e30, 10**30, -1, True, "7", None, 7.0, float("nan"), 13]
)
def test_a_wrong_count_of_tokens(count, monkeypatch):
    with server_of(http(completion("hi", count))) as (url, requests):
        reply = reply_to(url, monkeypatch)
    assert reply.error == (
        f"{url}/chat/completions: ValueError: completion_tokens is {count!r}, "
        "expected a number up to max_tokens, 12"
    )
    assert len(requests) == 2


@pytest.mark.parametrize(
    "answer, said",
    [
        (http(b"[" * 500_000), "RecursionError: maximum recursion depth exceeded"),
        (http(b"\xff\xfe\x00"), "UnicodeDecodeError: "),
        (http(b"null"), "TypeError: "),
        (http(completion(None, 7)), "TypeError: the content is None, expected a text"),
        (http(b" " * 2_000_000), "ValueError: the reply has more than 1,048,576 bytes"),
        (CHUNKED + b"-1\r\n" + b" " * 2_000_000, "ValueError: the reply has more than 1,048,576"),
        (http(b"", header="X: " + 70_000 * "y"), "LineTooLong: "),
        (b"SSH-2.0-OpenSSH\r\n", "BadStatusLine: SSH-2.0-OpenSSH"),
        (http(b"\x1b[2J", "503 Busy"), r"HTTP status 503: \x1b[2J"),
    ],
)
def test_a_bad_reply_is_an_error_of_one_trajectory(answer, said, monkeypatch):
    with server_of(answer) as (url, requests):
        reply = reply_to(url, monkeypatch)
    assert reply.text == "" and reply.error.startswith(f"{url}/chat/completions: {said}")
    assert len(reply.error) < 700 and len(requests) == 2


def test_a_redirect_does_not_take_the_key_along(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with server_of(http(completion("hi", 1))) as (other_url, stolen):
        redirect = http(b"over there", "307 Temporary Redirect", f"Location: {other_url}/x")
        with server_of(redirect) as (url, requests):
            reply = reply_to(url, monkeypatch)
    assert reply.error == f"{url}/chat/completions: HTTP status 307: over there"
    assert len(requests) == 1 and b"Bearer secret" in requests[0] and stolen == []


def test_a_reply_that_drips_ends_at_the_time_limit(monkeypatch):
    with server_of(http(completion("hi", 1)), pauses=True) as (url, _):
        reply = reply_to(url, monkeypatch, time_limit_s=0.3)
    wanted = f"{url}/chat/completions: TimeoutError: no complete reply within 0.3 s"
    assert reply.error == wanted


def test_a_good_reply(monkeypatch):
    with server_of(http(completion("hi", 3))) as (url, _):
        assert reply_to(url, monkeypatch).response_ids == ["hi", "", ""]
        assert exchange("GET", url, headers={}, time_limit_s=5)[0] == 200


def test_a_body_that_ends_too_early_is_an_error():
    with server_of(http(b"0123456789")[:-4]) as (url, _):
        with pytest.raises(IncompleteRead, match="6 bytes read, 4 more expected"):
            exchange("GET", url, headers={}, time_limit_s=5)


def free_address():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}/v1"


def test_a_dead_server_is_reported_before_the_games(capsys):
    url = free_address()
    with pytest.raises(UserError, match="cannot be reached .+Connection refused"):
        chat_server.check_server(url)
    assert capsys.readouterr().err == f"api_base={url!r}: requesting its list of models\n"


@pytest.mark.parametrize("url", ["http://", "http://x:99999", "http://[::1", "http:///v1"])
def test_an_address_without_a_host(url):
    with pytest.raises(UserError, match="cannot be reached"):
        chat_server.check_server(url)


def test_a_server_without_a_list_of_models_is_good_enough():
    with server_of(http(b"", "404 Not Found")) as (url, requests):
        chat_server.check_server(url)
    assert requests[0].startswith(b"GET /v1/models HTTP/1.1\r\n")


@pytest.mark.parametrize("key", ["a\nX-Header: b", "gr\u00fcn"])
def test_a_key_that_no_header_can_hold(key, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UserError) as error:
        chat_server.check_server(free_address())
    assert str(error.value) == "OPENAI_API_KEY must be printable ASCII text without line breaks"
