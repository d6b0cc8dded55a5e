"""A model server on loopback that makes real agent programs do what a test needs.

It speaks four wire formats (Anthropic Messages, OpenAI Responses, OpenAI Chat
Completions, Gemini generateContent). A word of the prompt, `play:NAME`, chooses what
the model does; the step is the number of model turns that the request already has. So
the server keeps no state between requests, and a program may resume, retry or ask in
parallel as it likes. Each request is recorded as it came.

    python3 tests/agents/fake_models.py DIRECTORY    for trying a program by hand
"""

import json
import re
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

MODEL = "fake-model"
# A loop that nothing stops ends here, so that a test fails by its count of requests and
# not by its deadline.
TURNS_MAX = 12


def with_others(call):
    return [[("read", f"other{turn}.txt"), call] if turn % 2 else [call] for turn in range(TURNS_MAX)]


# A play is a list of turns and a turn a list of parts. The last turn is repeated. A part
# is ("say", TEXT) or a call, which is made of the tool that does this in the program that
# asks.
PLAYS = {
    "hello": [[("say", "done")]],
    "mixed": [
        [("say", "Let me look."), ("read", "a.txt")],
        [("run", "echo hi")],
        [("edit", "a.txt")],
        [("run", "exit 3")],
        [("read", "a.txt"), ("read", "b.txt")],
        [("say", "all done")],
    ],
    "reads": [[("read", f"other{number}.txt")] for number in range(TURNS_MAX)],
    "read-loop": [[("read", "a.txt")]],
    "fail-loop": [[("run", "sh ./check.sh")]],
    # The same loops for programs that end five equal calls in a row by themselves and
    # have no setting against it: every second turn reads another file first.
    "read-loop-with-others": with_others(("read", "a.txt")),
    "fail-loop-with-others": with_others(("run", "sh ./check.sh")),
    # The sub-agent of a program that has them loops; the main agent goes on.
    "delegate": [
        [("delegate", "play:read-loop look at the file")],
        [("run", "echo back")],
        [("say", "all done")],
    ],
    # For a recording: the same as read-loop, with words a person can follow, and an
    # agent that listens to a refusal.
    "invoice": [
        [("say", "Let me look at how amounts are rounded."), ("read", "src/money.rs")],
        [("say", "I need to check the rounding once more."), ("read", "src/money.rs")],
        [("say", "Let me look at the file again."), ("read", "src/money.rs")],
        [("say", "I should read it again to be sure."), ("read", "src/money.rs")],
        [("say", "One more look."), ("read", "src/money.rs")],
        [("edit", "src/money.rs")],
        [("say", "Fixed: amounts are now rounded once, at the end.")],
    ],
}
EDITS = {
    "a.txt": ("hello", "hello!"),
    "src/money.rs": ("(amount * 100.0) as i64", "(amount * 100.0).round() as i64"),
}


@dataclass
class ModelRequest:
    """One request for a model turn, as a program sent it."""

    format: str
    play: str
    step: int
    calls: list
    body: str
    tools: list
    arrived: float
    # When the answer was sent.
    answered: float = 0.0

    def says(self, text):
        """Whether the program shows this text to the model, in any part of the request."""
        return json.dumps(text)[1:-1] in self.body


class FakeModels:
    """A server on a free port; `directory` is where its calls read and write."""

    def __init__(self, directory, port=0):
        self.directory = str(directory)
        self.requests = []
        self.others = []
        self.default_play = "hello"
        # How long the model thinks, for a recording.
        self.delay_secs = 0.0
        # What a test does before a turn is answered: {(play, step): function}.
        self.before = {}
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.server.models = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def turns(self, play):
        """The requests for turns of this play."""
        with self.lock:
            return [request for request in self.requests if request.play == play]

    def answer(self, handler, format, turns, body, tools):
        """Returns the number of this request, the text and the calls of the next turn.

        `turns` is [(role, content as JSON text)], the oldest first; `tools` is
        [(name, names of its arguments)].
        """
        arrived = time.monotonic()
        play, step = self.default_play, 0
        # A program may put texts of its own before the prompt, and a resumed one has
        # several prompts: the last one counts.
        for role, content in turns:
            if role == "user" and (found := re.findall(r"play:([\w-]+)", content)):
                play, step = found[-1], 0
            elif role == "model":
                step += 1
        text, calls = "", []
        # A request without tools is for a title or a summary.
        if tools:
            script = PLAYS[play]
            turn = script[min(step, len(script) - 1)] if step < TURNS_MAX else [("say", "done")]
            for kind, argument in turn:
                if kind == "say":
                    text += argument
                else:
                    calls.append(self.call(kind, argument, dict(tools)))
            if act := self.before.pop((play, step), None):
                act()
            time.sleep(self.delay_secs)
        names = [name for name, _ in tools]
        handler.turn = ModelRequest(format, play if tools else "", step, calls, body, names, arrived)
        with self.lock:
            self.requests.append(handler.turn)
            return len(self.requests), text or ("" if calls else "done"), calls

    def call(self, kind, argument, tools):
        """The call by which the program that has these tools does it."""

        def tool(*names):
            return next((name for name in names if name in tools), None)

        path = f"{self.directory}/{argument}"
        paths = {"file_path": path, "filePath": path, "path": path, "files": [{"path": path}]}
        if kind == "read" and (name := tool("Read", "read_file", "read", "view", "read_files")):
            arguments = paths
        elif kind == "edit" and (name := tool("Edit", "replace", "edit", "str_replace", "editor")):
            old, new = EDITS[argument]
            arguments = paths | {
                "old_string": old, "new_string": new, "oldString": old, "newString": new,
                "old_str": old, "new_str": new, "old_text": old, "new_text": new,
                "oldText": old, "newText": new, "instruction": "change it",
                "command": "str_replace", "edits": [{"oldText": old, "newText": new}],
            }
        elif kind == "delegate" and (name := tool("Agent", "Task", "task", "agent")):
            arguments = {"description": "look at it", "prompt": argument, "subagent_type": "general-purpose"}
        else:
            if kind == "edit":
                argument = "sed -i 's/{}/{}/' {}".format(*EDITS[argument], argument)
            elif kind != "run":
                argument = f"cat {argument}"
            name = tool("Bash", "bash", "run_shell_command", "exec_command", "shell_command", "shell", "execute_command", "run_commands")
            arguments = {
                "command": argument, "cmd": argument, "commands": [argument],
                "description": "run it", "is_background": False, "requires_approval": False,
            }
            if name == "shell":
                arguments["command"] = ["bash", "-c", argument]
        assert name, f"no tool of {sorted(tools)} can {kind}"
        known = tools[name]
        return name, {key: value for key, value in arguments.items() if not known or key in known}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    turn = None

    def log_message(self, *_):
        pass

    def send(self, body, content_type="application/json", status=200):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.turn:
            self.turn.answered = time.monotonic()
            self.turn = None
        self.wfile.write(body)

    def send_events(self, events, named):
        lines = []
        for event in events:
            if named:
                lines.append(f"event: {event['type']}\n")
            lines.append(f"data: {json.dumps(event)}\n\n")
        if not named:
            lines.append("data: [DONE]\n\n")
        self.send("".join(lines).encode(), "text/event-stream")

    def body(self):
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def do_HEAD(self):
        self.send(b"")

    def do_GET(self):
        path = urlsplit(self.path).path
        self.server.models.others.append(f"GET {path}")
        if path.endswith("/models"):
            return self.send({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "tests"}]})
        self.send({}, status=404)

    def do_POST(self):
        path = urlsplit(self.path).path
        body = self.body()
        for end, respond in ROUTES.items():
            if path.endswith(end):
                text = body.decode()
                return respond(self, path, json.loads(text), text)
        self.server.models.others.append(f"POST {path}")
        self.send({"input_tokens": 10, "totalTokens": 10} if "ount" in path else {})


def arguments_of(schema):
    return set((schema or {}).get("properties") or {})


def usage(number):
    """Grows a little, as it does in a real run."""
    return 1000 + number, 50, 200


def anthropic(handler, _path, request, body):
    turns = [("model" if message["role"] == "assistant" else "user", json.dumps(message["content"])) for message in request["messages"]]
    tools = [(tool["name"], arguments_of(tool.get("input_schema"))) for tool in request.get("tools", [])]
    number, text, calls = handler.server.models.answer(handler, "anthropic", turns, body, tools)
    new, out, cached = usage(number)
    used = {"input_tokens": new, "output_tokens": out, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
    blocks = [{"type": "text", "text": text}] if text else []
    for index, (name, arguments) in enumerate(calls):
        blocks.append({"type": "tool_use", "id": f"toolu_{number:04}{index}", "name": name, "input": arguments})
    stop = "tool_use" if calls else "end_turn"
    message = {"id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": request["model"], "stop_sequence": None}
    if not request.get("stream"):
        return handler.send(message | {"content": blocks, "stop_reason": stop, "usage": used})
    events = [{"type": "message_start", "message": message | {"content": [], "stop_reason": None, "usage": used}}]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            empty, delta = block | {"text": ""}, {"type": "text_delta", "text": text}
        else:
            empty, delta = block | {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    events += [
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": out}},
        {"type": "message_stop"},
    ]
    handler.send_events(events, named=True)


def responses(handler, _path, request, body):
    items = request["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    turns, in_model_turn = [], False
    for item in items:
        if item.get("role") == "user":
            turns.append(("user", json.dumps(item.get("content"))))
        # One turn of the model may be several items: text, then calls.
        is_model = item.get("role") == "assistant" or item.get("type", "").endswith("_call")
        if is_model and not in_model_turn:
            turns.append(("model", ""))
        in_model_turn = is_model
    tools = [(tool["name"], arguments_of(tool.get("parameters"))) for tool in request.get("tools", []) if "name" in tool]
    number, text, calls = handler.server.models.answer(handler, "responses", turns, body, tools)
    new, out, cached = usage(number)
    output = []
    if text:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output.append({"type": "message", "id": f"m_{number}", "role": "assistant", "status": "completed", "content": content})
    for index, (name, arguments) in enumerate(calls):
        output.append({
            "type": "function_call", "id": f"fc_{number}_{index}", "call_id": f"call_{number}_{index}",
            "name": name, "arguments": json.dumps(arguments), "status": "completed",
        })
    response = {
        "id": f"r{number}", "object": "response", "created_at": 1, "model": request["model"], "status": "completed",
        "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": {
            "input_tokens": new + cached, "input_tokens_details": {"cached_tokens": cached}, "output_tokens": out,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": new + cached + out,
        },
    }
    if not request.get("stream"):
        return handler.send(response)
    events = [{"type": "response.created", "response": response | {"status": "in_progress", "output": []}}]
    for index, item in enumerate(output):
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            empty = item | {"content": []}
            middle = {"type": "response.output_text.delta", "content_index": 0, "delta": text}
        else:
            empty = item | {"arguments": ""}
            middle = {"type": "response.function_call_arguments.done", "arguments": item["arguments"]}
        events += [
            {"type": "response.output_item.added", "output_index": index, "item": empty},
            middle | place,
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]
    events.append({"type": "response.completed", "response": response})
    handler.send_events([event | {"sequence_number": index} for index, event in enumerate(events)], named=True)


def chat(handler, _path, request, body):
    turns = [("model" if message["role"] == "assistant" else message["role"], json.dumps(message.get("content"))) for message in request["messages"]]
    tools = [(tool["function"]["name"], arguments_of(tool["function"].get("parameters"))) for tool in request.get("tools", [])]
    number, text, calls = handler.server.models.answer(handler, "chat", turns, body, tools)
    new, out, cached = usage(number)
    used = {"prompt_tokens": new + cached, "completion_tokens": out, "total_tokens": new + cached + out, "prompt_tokens_details": {"cached_tokens": cached}}
    made = []
    for index, (name, arguments) in enumerate(calls):
        made.append({"index": index, "id": f"call_{number}_{index}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}})
    message = {"role": "assistant", "content": text or None} | ({"tool_calls": made} if made else {})
    finish = "tool_calls" if made else "stop"
    response = {"id": f"c{number}", "created": 1, "model": request["model"]}
    if not request.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return handler.send(response | {"object": "chat.completion", "choices": [choice], "usage": used})
    response["object"] = "chat.completion.chunk"
    handler.send_events(
        [
            response | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            response | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": used},
        ],
        named=False,
    )


def gemini(handler, path, request, body):
    turns = [(content.get("role", "user"), json.dumps(content["parts"])) for content in request["contents"]]
    tools = [
        (function["name"], arguments_of(function.get("parametersJsonSchema") or function.get("parameters")))
        for tool in request.get("tools") or []
        for function in tool.get("functionDeclarations", [])
    ]
    number, text, calls = handler.server.models.answer(handler, "gemini", turns, body, tools)
    new, out, cached = usage(number)
    parts = [{"text": text}] if text else []
    for index, (name, arguments) in enumerate(calls):
        parts.append({"functionCall": {"id": f"fc_{number}_{index}", "name": name, "args": arguments}})
    response = {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": new + cached, "candidatesTokenCount": out,
            "totalTokenCount": new + cached + out, "cachedContentTokenCount": cached,
        },
        "modelVersion": MODEL,
    }
    if "stream" in path:
        return handler.send(f"data: {json.dumps(response)}\r\n\r\n".encode(), "text/event-stream")
    handler.send(response)


ROUTES = {
    "/messages": anthropic,
    "/responses": responses,
    "/chat/completions": chat,
    ":generateContent": gemini,
    ":streamGenerateContent": gemini,
}


if __name__ == "__main__":
    with FakeModels(sys.argv[1]) as models:
        print(models.url, flush=True)
        threading.Event().wait()
