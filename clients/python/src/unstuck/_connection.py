"""The connection of a client: address, certificates, token, stubs."""

from __future__ import annotations

import os
import threading
from typing import Any

import grpc

from unstuck.v1 import detection_service_pb2_grpc as detection_grpc
from unstuck.v1 import session_service_pb2_grpc as session_grpc

DEFAULT_TARGET = "127.0.0.1:50551"
# The stream's own pauses decide when to connect again, not the channel's.
OPTIONS = [
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 50),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]


class Connection:
    """Opens the channel when it is first used. Arguments that are absent come from variables."""

    def __init__(
        self, target: str | None, token: str | None, ca: bytes | None, certificate: bytes | None, key: bytes | None
    ) -> None:
        address = target or os.environ.get("UNSTUCK_SERVER") or DEFAULT_TARGET
        self._tls = address.startswith("https://") or ca is not None or certificate is not None
        self._target = address.removeprefix("https://").removeprefix("http://").rstrip("/")
        if self._tls:
            ca = _given_or_of_file(ca, "UNSTUCK_CA")
            certificate = _given_or_of_file(certificate, "UNSTUCK_CERT")
            key = _given_or_of_file(key, "UNSTUCK_KEY")
        self._pem = (ca, certificate, key)
        token = token or os.environ.get("UNSTUCK_TOKEN") or _of_file("UNSTUCK_TOKEN_FILE").decode().strip()
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        """What each call carries."""
        self._closed = False
        self.reset()

    def reset(self) -> None:
        """Begins anew, as in a child process: the parent's channel is the parent's."""
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    @property
    def detection(self) -> Any:
        """The stub of DetectionService."""
        self._open()
        return self._detection

    @property
    def sessions(self) -> Any:
        """The stub of SessionService."""
        self._open()
        return self._sessions

    def _open(self) -> None:
        with self._lock:
            if self._channel is not None:
                return
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._tls:
                ca, certificate, key = self._pem
                credentials = grpc.ssl_channel_credentials(ca, key, certificate)
                self._channel = grpc.secure_channel(self._target, credentials, OPTIONS)
            else:
                self._channel = grpc.insecure_channel(self._target, OPTIONS)
            self._detection = detection_grpc.DetectionServiceStub(self._channel)
            self._sessions = session_grpc.SessionServiceStub(self._channel)

    def close(self) -> None:
        """Ends all calls; none can be made any more."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _given_or_of_file(given: bytes | None, variable: str) -> bytes | None:
    return given if given is not None else _of_file(variable) or None


def _of_file(variable: str) -> bytes:
    """What is in the file that a variable names. Nothing if there is none: no method raises."""
    try:
        with open(os.environ[variable], "rb") as file:
            return file.read()
    except (KeyError, OSError, ValueError):
        return b""
