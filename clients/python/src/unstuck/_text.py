"""What is sent: arguments as JSON, texts within the bounds of the service."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# The service reads the first and last 32 KiB of a text.
TEXT_END = 32 * 1024
# Of the id of an event or a round.
ID_BYTES_MAX = 128
ARGS_BYTES_MAX = 128 * 1024
# Arguments that only explain a call, as Member.call_key in verdict.proto lists them.
EXPLAINING = frozenset(
    "description explanation justification max_output_chars max_output_length max_output_tokens reason "
    "reasoning thought thoughts timeout timeout_ms timeout_seconds yield_time_ms".split()
)


def clean(text: object) -> str:
    """Text that can be sent: valid Unicode, without the middle of a long one."""
    text = text if isinstance(text, str) else _plain(text)
    if len(text) > 2 * TEXT_END:
        text = text[:TEXT_END] + text[-TEXT_END:]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _plain(value: object) -> str:
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, (dict, list, tuple)):
        return to_json(value)
    return str(value)


def bounded_id(given: str) -> str:
    """An id that the service accepts: of a longer one its hash."""
    if len(given.encode("utf-8", "replace")) <= ID_BYTES_MAX:
        return given
    return hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()


def to_json(args: object) -> str:
    """Arguments as JSON. A text is taken as JSON already."""
    if isinstance(args, str):
        return args
    return json.dumps(args, ensure_ascii=False, default=str)


def set_arguments(message: Any, args: object) -> None:
    """Sets the arguments of a call. None: they are unknown."""
    if args is None:
        return
    text = to_json(args)
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    if len(text) > ARGS_BYTES_MAX:
        message.args_hash = hashlib.sha256(text.encode()).hexdigest()
    else:
        message.args_json = text


def call_key(tool: str, args: object) -> str:
    """The key by which `Standing.blocked` names a call. Empty: it has none."""
    try:
        parsed = json.loads(args) if isinstance(args, str) else args
        if not isinstance(parsed, dict):
            return ""
        told = {name: value for name, value in parsed.items() if name not in EXPLAINING}
        # RFC 8785 for integers and text; a call with fractions is known only to CheckCall.
        canonical = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
        return hashlib.sha256(f"{tool}\0{canonical}".encode("utf-8", "replace")).hexdigest()[:32]
    except (TypeError, ValueError):
        return ""
