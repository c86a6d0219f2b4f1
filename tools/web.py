"""One HTTP request to an untrusted server, with a limit on time and bytes.

Redirects are not followed, because a redirect could send the API key of the server to another host.
An https request uses the proxy in HTTPS_PROXY, unless NO_PROXY lists the server.
"""

import http.client
import socket
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

CONNECT_S = 5.0  # time limit for connecting to one IP address of the server
MAX_BYTES = 2**20  # largest body of a reply


def exchange(
    method: str,
    url: str,
    *,
    body: bytes | None = None,
    headers: dict[str, str],
    time_limit_s: float,
) -> tuple[int, bytes]:
    """Send a request, and return the status code and the body of the reply.

    Args: time_limit_s: the limit on the whole exchange after connecting, not on each read.
    Raises: OSError (TimeoutError included), HTTPException or ValueError if no complete reply comes.
    """
    connection = _connection(url)
    connection.connect()
    sock = connection.sock
    sock.settimeout(time_limit_s)
    deadline = time.monotonic() + time_limit_s
    timer = threading.Timer(time_limit_s, _shut_down, [sock])
    timer.daemon = True
    timer.start()
    try:
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, _read(response)
    finally:
        timer.cancel()
        connection.close()
        # A reply that the timer cut off may look complete. So after the deadline, every reply
        # counts as incomplete.
        if time.monotonic() >= deadline:
            raise TimeoutError(f"no complete reply within {time_limit_s:g} s")


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=CONNECT_S)
    proxy = getproxies().get("https")
    if not proxy or proxy_bypass(parts.hostname):
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=CONNECT_S)
    proxy_parts = urlsplit(proxy)
    connection = http.client.HTTPSConnection(
        proxy_parts.hostname, proxy_parts.port, timeout=CONNECT_S
    )
    connection.set_tunnel(parts.hostname, parts.port)
    return connection


def _shut_down(sock: socket.socket) -> None:
    """Shut a socket down, so that a pending read in another thread ends."""
    with suppress(OSError):  # the server may have closed the connection
        sock.shutdown(socket.SHUT_RDWR)


def _read(response: http.client.HTTPResponse) -> bytes:
    """Return the body of a reply.

    Raises: ValueError if the body has more than MAX_BYTES, IncompleteRead if it is shorter than
        Content-Length.
    """
    # The value of the header Content-Length, or None if the reply is chunked or lacks the header.
    expected = response.length
    parts = []
    num_bytes = 0
    while num_bytes <= MAX_BYTES:
        # If a server gives -1 as the size of a chunk, read(65536) would read without a limit. In
        # this case, read1 reads at most one buffer.
        part = response.read1(65536)
        if not part:
            body = b"".join(parts)
            if expected not in (None, num_bytes):
                raise http.client.IncompleteRead(body, expected - num_bytes)
            return body
        parts.append(part)
        num_bytes += len(part)
    raise ValueError(f"the reply has more than {MAX_BYTES:,} bytes")
