"""What a gateway sees of an agent: the calls and results in the history of a model's request.

Chat Completions and Anthropic have `messages`, Responses has `input`, Gemini has `contents`.
"""

from __future__ import annotations

import collections
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

__all__ = ["Call", "History", "Turn", "read", "session_of", "with_correction"]

# What a harness writes in the user's name; it must not count as something that a user said.
HARNESS = re.compile(
    r"<(system-reminder|task-notification|total_tokens|hook_context)>.*?</\1>"
    r"|^System: Potential loop detected.*|^\[unstuck\] .*",
    re.S | re.M,
)
WRAPPED = re.compile(r"\s*<([\w-]+)[^>]*>.*</\1>\s*", re.S)
SESSION_ID = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True)
class Call:
    """A call with its result."""

    id: str
    round: str
    tool: str
    args: object
    text: str
    failed: bool | None
    """None: the format does not tell."""


@dataclass(frozen=True)
class Turn:
    """A message."""

    id: str
    role: str
    text: str


@dataclass(frozen=True)
class History:
    """The calls and messages of a request, in their order."""

    entries: list[Call | Turn]
    opening: list[str]
    """What the history begins with."""
    ends_with_result: bool


class _Made(NamedTuple):
    id: str
    tool: str
    args: object


class _Result(NamedTuple):
    id: str
    text: str
    failed: bool | None


class _Text(NamedTuple):
    role: str
    text: str


class _Answer(NamedTuple):
    """The beginning of a message of the model: its calls are one round."""


def read(data: dict[str, Any]) -> History:
    """The history in a request. What is in no known form is left out."""
    entries: list[Call | Turn] = []
    opening: list[str] = []
    made: dict[str, tuple[_Made, str]] = {}
    before, round, ends_with_result = "", "", False
    for piece in _pieces(data):
        if isinstance(piece, _Answer):
            round = ""
            continue
        if len(opening) < 2:
            opening.append(json.dumps(piece, default=str))
        ends_with_result = isinstance(piece, _Result)
        if isinstance(piece, _Made):
            round = round or piece.id
            made[piece.id] = (piece, round)
        elif isinstance(piece, _Result):
            call, of = made.get(piece.id, (None, ""))
            if call is not None:
                entries.append(Call(call.id, of, call.tool, call.args, piece.text, piece.failed))
                before = call.id
        elif before and piece.role in ("user", "assistant", "model"):
            # Known by the call before it, because earlier messages may be dropped from a history.
            id = hashlib.sha256(f"{before}\0{piece.role}\0{piece.text}".encode()).hexdigest()[:32]
            entries.append(Turn(id, "user" if piece.role == "user" else "agent", piece.text))
    return History(entries, opening, ends_with_result)


def _pieces(data: dict[str, Any]) -> Iterator[_Answer | _Made | _Result | _Text]:
    if isinstance(data.get("contents"), list):
        return _of_gemini(data["contents"])
    if isinstance(data.get("input"), list):
        return _of_responses(data["input"])
    messages = data.get("messages")
    return _of_messages(messages if isinstance(messages, list) else [])


def _of_messages(messages: list[Any]) -> Iterator[_Answer | _Made | _Result | _Text]:
    """Chat Completions and Anthropic."""
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            yield _Result(str(message.get("tool_call_id")), _plain(content), None)
            continue
        if role == "assistant":
            yield _Answer()
        blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        has_results = any(block.get("type") == "tool_result" for block in blocks)
        # Beside results it is the harness that speaks.
        if not has_results:
            yield from _said(role, _plain(content))
        for block in blocks:
            if block.get("type") == "tool_use":
                yield _Made(str(block.get("id")), str(block.get("name")), block.get("input"))
            elif block.get("type") == "tool_result":
                yield _Result(str(block.get("tool_use_id")), _plain(block.get("content")), bool(block.get("is_error")))
        for call in message.get("tool_calls") or []:
            function = call.get("function") or {}
            yield _Made(str(call.get("id")), str(function.get("name")), function.get("arguments"))


def _of_responses(items: list[Any]) -> Iterator[_Answer | _Made | _Result | _Text]:
    """The Responses API, whose items have no message around them."""
    answers = False
    for item in items:
        kind = item.get("type", "message")
        is_answer = kind in ("reasoning", "function_call", "custom_tool_call") or item.get("role") == "assistant"
        if is_answer and not answers:
            yield _Answer()
        answers = is_answer
        if kind in ("function_call", "custom_tool_call"):
            yield _Made(str(item.get("call_id")), str(item.get("name")), item.get("arguments", item.get("input")))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            yield _Result(str(item.get("call_id")), _plain(item.get("output")), None)
        elif kind == "message":
            yield from _said(item.get("role"), _plain(item.get("content")))


def _of_gemini(contents: list[Any]) -> Iterator[_Answer | _Made | _Result | _Text]:
    """Gemini, whose calls need not have an id: then a signature and the order tell them apart."""
    unanswered: dict[str, list[str]] = collections.defaultdict(list)
    anchor, number = "", 0
    for content in contents:
        role = content.get("role") or "user"
        if role == "model":
            yield _Answer()
        for part in content.get("parts") or []:
            if call := part.get("functionCall") or part.get("function_call"):
                if signature := part.get("thoughtSignature") or part.get("thought_signature"):
                    anchor, number = hashlib.sha256(str(signature).encode()).hexdigest()[:32], 0
                number += 1
                name, id = str(call.get("name")), str(call.get("id") or f"{anchor}-{number}")
                unanswered[name].append(id)
                yield _Made(id, name, call.get("args"))
            elif answer := part.get("functionResponse") or part.get("function_response"):
                told, waiting = answer.get("response") or {}, unanswered[str(answer.get("name"))]
                failed = True if isinstance(told, dict) and "error" in told else None
                first = waiting.pop(0) if waiting else ""
                yield _Result(str(answer.get("id") or first), _plain(told), failed)
            elif isinstance(part.get("text"), str) and not part.get("thought"):
                yield from _said(role, part["text"])


def _said(role: Any, text: str) -> Iterator[_Text]:
    text = HARNESS.sub("", text).strip()
    if text and not (role == "user" and WRAPPED.fullmatch(text)):
        yield _Text(str(role), text)


def _plain(content: Any) -> str:
    """The text of a content: a text, a list of blocks, or any other JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [block.get("text") for block in content if isinstance(block, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return "" if content is None else json.dumps(content, sort_keys=True, default=str)


def with_correction(data: dict[str, Any], text: str) -> dict[str, Any]:
    """The request with a text after its last result. The given one stays as it is."""
    name = next(name for name in ("contents", "input", "messages") if isinstance(data.get(name), list))
    messages = list(data[name])
    last = messages[-1] = dict(messages[-1])
    if name == "contents":
        # A text beside the results would be refused by some models.
        last["parts"] = parts = list(last["parts"])
        kind = next(key for key in ("functionResponse", "function_response") if key in parts[-1])
        answer = dict(parts[-1][kind])
        answer["response"] = {**answer.get("response", {}), "note": text}
        parts[-1] = {**parts[-1], kind: answer}
    else:
        field = "output" if name == "input" else "content"
        kind = "input_text" if name == "input" else "text"
        content = last.get(field)
        last[field] = (
            [*content, {"type": kind, "text": text}] if isinstance(content, list) else f"{content or ''}\n\n{text}"
        )
    return {**data, name: messages}


def session_of(data: dict[str, Any]) -> str:
    """The session that a request names. Empty: none."""
    found = [data.get("litellm_session_id")]
    for name in ("metadata", "litellm_metadata"):
        metadata = data.get(name)
        if isinstance(metadata, dict):
            if metadata.get("litellm_session_id_generated"):
                # A new one for each request.
                return ""
            found += [metadata.get("session_id"), _of_user_id(metadata.get("user_id"))]
    given = next((id for id in found if id and isinstance(id, str)), "")
    return given if not given or SESSION_ID.fullmatch(given) else hashlib.sha256(given.encode()).hexdigest()[:32]


def _of_user_id(user: Any) -> str | None:
    """The session in Claude Code's `metadata.user_id`: JSON, or a text that ends with it."""
    if not isinstance(user, str):
        return None
    try:
        told = json.loads(user)
        return cast("str | None", told.get("session_id")) if isinstance(told, dict) else None
    except ValueError:
        return user.rpartition("_session_")[2] if "_session_" in user else None
