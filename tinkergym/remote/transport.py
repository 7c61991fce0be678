"""HTTP: the only file that imports httpx. Bytes go in and out; failures become our own errors.

Connects scripts and notebooks to the gateway (`http://`, `https://`) and the service's environment workers to
a pool (`unix:///path/to/socket` or a port).
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from tinkergym.errors import (
    AuthenticationError,
    ConflictError,
    InternalServiceError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
    ServiceUnavailableError,
    ServiceUnreachableError,
    StorageFullError,
    TinkerGymError,
    TooManyRequestsError,
    from_wire,
)
from tinkergym.network.backoff import Backoff
from tinkergym.schema.versions import VERSION_HEADER, __version__

_TLS_SECONDS = 2.0
"""How long a server that did not respond to HTTP may take for a TLS handshake."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
KINDS: Mapping[int, type[TinkerGymError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    409: ConflictError,
    413: PayloadTooLargeError,
    422: InvalidRequestError,
    429: TooManyRequestsError,
    502: ServiceUnavailableError,
    503: ServiceUnavailableError,
    504: ServiceUnavailableError,
    507: StorageFullError,
}
"""For responses that are not in our error format, for example from a proxy."""


class Connection:
    """A pool of HTTP connections to one service. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        ca_file: str | None = None,
        timeout_seconds: float = 30.0,
        patience_seconds: float = 2.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Prepare to connect to `url`; nothing is sent yet.

        Args:
            url: `http://host:port`, `https://host[:port][/prefix]` or `unix:///path/to/socket`.
            token: Sent as `Authorization: Bearer`.
            ca_file: PEM file of trusted certificates; None trusts the system's (and `SSL_CERT_FILE`).
            timeout_seconds: Longest silence within one request, unless the call says otherwise.
            patience_seconds: How long an idempotent call is retried after connection failures.
            sleep: Waits between attempts.
        """
        self.url = url.rstrip("/")
        self._timeout = timeout_seconds
        self._backoff = Backoff(patience_seconds=patience_seconds, sleep=sleep)
        self._http = _open(self.url, token, ca_file, timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Requests in progress fail with ConflictError."""
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        idempotent: bool = True,
        timeout_seconds: float | None = None,
        patience_seconds: float | None = None,
    ) -> bytes:
        """Send a request and return the body of the response.

        Args:
            method: GET, POST, ...
            path: From the service's root, with a leading slash.
            params: Query parameters.
            body: JSON bytes.
            headers: Further headers.
            idempotent: Whether the request may be sent twice. Then it is retried when the connection breaks
                or the service is briefly unavailable. A request that was never sent is always retried.
            timeout_seconds: Longest silence; None uses the connection's.
            patience_seconds: How long to retry; None uses the connection's.

        Raises:
            ServiceUnreachableError: No service responds.
            ConflictError: `close` was called.
            TinkerGymError: The service's error, with its type.
        """
        backoff = self._backoff
        if patience_seconds is not None:
            backoff = replace(backoff, patience_seconds=patience_seconds)
        waits = backoff.waits()
        while True:
            try:
                with self.stream(
                    method, path, params=params, body=body, headers=headers, timeout_seconds=timeout_seconds
                ) as chunks:
                    return b"".join(chunks)
            except ServiceUnavailableError as error:
                never_sent = isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)
                if not (idempotent or never_sent) or _hopeless(error) or next(waits, None) is None:
                    raise

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> Iterator[Iterator[bytes]]:
        """Send a request once and yield the response's bytes as they arrive; otherwise as `call`."""
        silence = self._timeout if timeout_seconds is None else timeout_seconds
        sent_headers = dict(headers or {})
        if body is not None:
            sent_headers["Content-Type"] = "application/json"
        try:
            with self._http.stream(
                method,
                path,
                params=params,
                content=body,
                headers=sent_headers,
                # A machine that is away is noticed within ten seconds, however long a response may take.
                timeout=httpx.Timeout(silence, connect=min(silence, 10.0)),
            ) as response:
                if response.status_code >= 300:
                    raise self._refused(response, response.read())
                yield response.iter_bytes()
        except httpx.TimeoutException as error:
            raise ServiceUnavailableError(
                f"the service at {self.url} has not responded for {silence:g} s ({method} {path})",
                hint="it may be overloaded; try again",
            ) from error
        except (httpx.TransportError, httpx.StreamError, RuntimeError) as error:
            # httpx raises a bare RuntimeError when the client was closed by another thread.
            foreign = isinstance(error, RuntimeError) and not isinstance(error, httpx.StreamError)
            if foreign and not self._http.is_closed:
                raise
            if self._http.is_closed:
                raise ConflictError(
                    f"the connection to {self.url} was closed in this process", hint="make a new Client()"
                ) from None
            raise self._unreachable(error) from error

    def _refused(self, response: httpx.Response, body: bytes) -> TinkerGymError:
        # Proxies answer plain HTTP, where they expect TLS, with a redirect or a page of their own.
        target = response.headers.get("location", "")
        is_redirect = response.status_code < 400 and target.startswith("https:")
        is_foreign = response.status_code == 400 and not body.startswith(b"{")
        if urlsplit(self.url).scheme == "http" and (is_redirect or (is_foreign and _speaks_tls(self.url))):
            own = urlsplit(self.url)
            return _speaks(self.url, f"https://{urlsplit(target).netloc or own.netloc}{own.path}")
        return _refusal(response.status_code, body)

    def _unreachable(self, error: Exception) -> ServiceUnreachableError:
        certificate = _certificate_problem(error)
        if certificate:
            return ServiceUnreachableError(
                f"the service at {self.url} has an untrusted certificate: {certificate}",
                hint="name the authority's PEM file in SSL_CERT_FILE or Client(ca_file=...)",
            )
        if other := _other_scheme(self.url, error):
            return _speaks(self.url, f"{other}://{self.url.partition('://')[2]}")
        return ServiceUnreachableError(
            f"no service responds at {self.url}: {str(error) or type(error).__name__}",
            hint="start one here with `tinkergym serve`, or set TINKERGYM_URL and TINKERGYM_API_KEY",
        )


def lines_of_chunks(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines that each chunk completes, without their ends. A last one that broke off is dropped."""
    # Joined once per line: those with the logprobs of a prompt arrive in hundreds of chunks.
    pieces: list[bytes] = []
    for chunk in chunks:
        *lines, end = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*pieces, lines[0]])
            pieces.clear()
        pieces.append(end)
        yield lines


_WITHOUT_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Where no TLS is spoken, reading all authorities would take most of the time of a start."""


def _open(url: str, token: str, ca_file: str | None, timeout_seconds: float) -> httpx.Client:
    parts = urlsplit(url)
    socket_path = parts.path if parts.scheme == "unix" else None
    if parts.scheme not in {"http", "https", "unix"} or not (parts.hostname or socket_path):
        raise InvalidRequestError(
            f"{url!r} is not a valid service URL",
            hint="write it as http://HOST:PORT or https://HOST",
            field="url",
        )
    python = f"python/{sys.version_info.major}.{sys.version_info.minor}"
    headers = {"User-Agent": f"tinkergym {python}", VERSION_HEADER: __version__}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    # Sampling opens a stream per merged batch and must never wait for another's response: no limit.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=30.0)
    if socket_path:
        return httpx.Client(
            # HTTP wants a host's name; the socket alone says where the request goes.
            base_url="http://pool",
            headers=headers,
            timeout=timeout_seconds,
            transport=httpx.HTTPTransport(uds=socket_path, limits=limits, verify=_WITHOUT_AUTHORITIES),
        )
    local = parts.hostname in LOOPBACK
    return httpx.Client(
        base_url=url,
        headers=headers,
        timeout=timeout_seconds,
        verify=_WITHOUT_AUTHORITIES
        if (local, parts.scheme, ca_file) == (True, "http", None)
        else _trust(ca_file),
        limits=limits,
        # A proxy from the environment cannot reach this machine's loopback interface.
        trust_env=not local,
    )


def _trust(ca_file: str | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequestError(
            f"{ca_file} is not a readable PEM file: {error}",
            hint="name a file of certificates",
            field="ca_file",
        ) from None


def _refusal(status: int, body: bytes) -> TinkerGymError:
    try:
        payload: Any = json.loads(body)["error"]
        if isinstance(payload, dict) and "message" in payload:
            return from_wire(payload)
    except (ValueError, KeyError, TypeError):
        pass
    kind = KINDS.get(status, InternalServiceError if status >= 500 else TinkerGymError)
    text = body[:200].decode("utf-8", "replace").strip()
    return kind(
        f"HTTP status {status}" + (f": {text}" if text else ""),
        hint="the response is not in tinkergym's format; does the URL point to a tinkergym service?",
    )


def _hopeless(error: Exception) -> bool:
    """Whether retrying cannot help within seconds."""
    cause = error.__cause__
    wrong_scheme = isinstance(error, ServiceUnreachableError) and error.field == "url"
    return wrong_scheme or (cause is not None and bool(_certificate_problem(cause)))


def _speaks(url: str, right: str) -> ServiceUnreachableError:
    return ServiceUnreachableError(
        f"the service at {url} speaks {urlsplit(right).scheme.upper()}",
        hint=f"write its URL as {right}",
        field="url",
    )


def _other_scheme(url: str, error: Exception) -> str:
    """Return `http` or `https` if the service speaks that instead of the URL's scheme, else an empty text."""
    if url.startswith("https:"):
        return "http" if any(isinstance(one, ssl.SSLError) for one in _chain(error)) else ""
    # Without a response, a server that expects TLS looks like one that breaks down.
    if not url.startswith("http:") or not isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return ""
    return "https" if _speaks_tls(url) else ""


def _speaks_tls(url: str) -> bool:
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # Nothing is sent to it.
    try:
        with (
            socket.create_connection((str(parts.hostname), parts.port or 80), _TLS_SECONDS) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except OSError:
        return False


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _certificate_problem(error: BaseException) -> str:
    for one in _chain(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            return one.verify_message or str(one)
    return "the certificate cannot be verified" if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""
