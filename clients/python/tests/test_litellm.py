"""The real proxy of LiteLLM with the guardrail, between agents of four formats and a model on loopback."""

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid

import pytest
from conftest import PACKAGE, PATIENCE_SECS, running, wait_until
from fakes import FakeModels, environment

pytest.importorskip("litellm")

CONFIG = """
model_list:
  - {model_name: chat, litellm_params: {model: openai/fake, api_base: MODELS/v1, api_key: none}}
  - {model_name: claude, litellm_params: {model: anthropic/claude-sonnet-4-5, api_base: MODELS, api_key: none}}
  - {model_name: gemini, litellm_params: {model: gemini/gemini-2.5-pro, api_base: MODELS, api_key: none}}
guardrails:
  - {guardrail_name: unstuck, litellm_params: {guardrail: unstuck.litellm.Guard, mode: pre_call, default_on: true}}
"""
KEY = f"sk-{uuid.uuid4().hex}{uuid.uuid4().hex}"
# A deadline that a busy machine does not miss, and the proxy as its command line starts it.
PROXY = """
import unstuck
unstuck.Client.__init__.__kwdefaults__["deadline"] = 60
from litellm import run_server
run_server()
"""
READ = ("read_file", {"path": "a.txt"}, "fn main() {}")
FAIL = ("bash", {"command": "make test"}, "Output: 1 of 9 tests failed: totals\nExit Code: 1\n")


class Chat:
    """An agent in the format of Chat Completions."""

    url, model, format = "/v1/chat/completions", "chat", "chat"

    def __init__(self):
        self.history = [{"role": "system", "content": "You are a coder."}, {"role": "user", "content": "Fix it."}]

    def call(self, number, tool, args, result):
        function = {"name": tool, "arguments": json.dumps(args)}
        self.history += [
            {"role": "assistant", "content": None, "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
        ]

    def say(self, text):
        self.history += [{"role": "user", "content": text}]

    def body(self):
        return {"model": self.model, "messages": self.history}


class Anthropic(Chat):
    url, model, format = "/v1/messages", "claude", "anthropic"

    def __init__(self):
        self.history = [{"role": "user", "content": "Fix it."}]

    def call(self, number, tool, args, result):
        told = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": result}
        self.history += [
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": args}]},
            {"role": "user", "content": [told]},
        ]

    def body(self):
        return super().body() | {"max_tokens": 100}


class Responses(Chat):
    url, format = "/v1/responses", "responses"

    def __init__(self):
        self.history = [{"role": "user", "content": "Fix it."}]

    def call(self, number, tool, args, result):
        self.history += [
            {"type": "function_call", "call_id": f"call_{number}", "name": tool, "arguments": json.dumps(args)},
            {"type": "function_call_output", "call_id": f"call_{number}", "output": result},
        ]

    def body(self):
        return {"model": self.model, "input": self.history}


class Gemini(Chat):
    url, model, format = "/v1beta/models/gemini:generateContent", "gemini", "gemini"

    def __init__(self):
        self.history = [{"role": "user", "parts": [{"text": "Fix it."}]}]

    def call(self, number, tool, args, result):
        self.history += [
            {"role": "model", "parts": [{"functionCall": {"id": f"fc_{number}", "name": tool, "args": args}}]},
            {"role": "user", "parts": [{"functionResponse": {"id": f"fc_{number}", "name": tool, "response": {"output": result}}}]},
        ]

    def say(self, text):
        self.history += [{"role": "user", "parts": [{"text": text}]}]

    def body(self):
        return {"contents": self.history}


class Gateway:
    """The proxy, and what the model behind it was asked."""

    def __init__(self, folder, service, models):
        self.models = models
        config = folder / "config.yaml"
        config.write_text(CONFIG.replace("MODELS", models.url))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        env = environment(models, service) | {
            "PYTHONPATH": str(PACKAGE / "src"), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False",
            "LITELLM_MASTER_KEY": KEY,
        }
        command = [sys.executable, "-c", PROXY, "--config", config, "--host", "127.0.0.1", "--port", str(port)]
        self.output = folder / "output"
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
        wait_until(self.is_ready)

    def is_ready(self):
        assert self.process.poll() is None, self.output.read_text()
        try:
            return urllib.request.urlopen(f"{self.url}/health/readiness", timeout=PATIENCE_SECS).status == 200
        except OSError:
            return False

    def ask(self, agent, **headers):
        """The status of an answer, its body, and what the model was asked."""
        before = len(self.models.requests)
        request = urllib.request.Request(
            self.url + agent.url, json.dumps(agent.body()).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {KEY}", **{name.replace("_", "-"): value for name, value in headers.items()}},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECS) as answer:
                status, headers, body = answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, headers, body = error.code, error.headers, error.read().decode()
        asked = self.models.requests[before:]
        return status, headers, body, asked[0].body if asked else ""

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE_SECS)


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("gateway-service")) as service:
        yield service


@pytest.fixture(scope="module")
def gateway(own_service, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gateway")
    with FakeModels(folder) as models:
        gateway = Gateway(folder, own_service, models)
        yield gateway
        gateway.close()


@pytest.mark.parametrize("kind", [Chat, Anthropic, Responses, Gemini])
def test_a_loop_is_corrected_and_then_refused_but_its_user_may_speak(gateway, own_service, session, kind):
    agent = kind()
    requests, statuses = [], []
    for number in range(6):
        if number:
            agent.call(f"{session}-{number}", *FAIL)
        status, headers, body, asked = gateway.ask(agent, x_litellm_session_id=session)
        statuses.append(status)
        requests.append(asked)
    assert "[unstuck]" not in requests[2] and "[unstuck] " in requests[3], requests[3][-500:]
    assert statuses == [200, 200, 200, 200, 429, 429] and not requests[4]
    assert "failed 4 runs" in body, body
    # LiteLLM drops the headers of an error in this format.
    assert kind is Anthropic or headers["x-should-retry"] == "false"
    # The same request again, as a client does that does not know the header.
    assert gateway.ask(agent, x_litellm_session_id=session)[0] == 429
    agent.say("Leave the tests, and tell me what you see.")
    status, _, _, asked = gateway.ask(agent, x_litellm_session_id=session)
    assert status == 200 and "[unstuck]" not in asked
    found = own_service.get(session).session
    assert found.events == 5 + 1, "each call counts once, and what the user said"
    assert found.labels["source"] == "gateway" and found.labels["model"]
    # What the user said has ended the loop.
    agent.call(f"{session}-other", "read_file", {"path": "b.txt"}, "other")
    assert gateway.ask(agent, x_litellm_session_id=session)[0] == 200


def test_an_agent_without_a_session_is_known_by_its_history(gateway, own_service, session):
    agent, other = Chat(), Chat()
    asked = []
    for number in range(1, 4):
        for one, name in ((agent, "one"), (other, "two")):
            one.call(f"{session}-{name}-{number}", *READ)
            asked.append(gateway.ask(one)[3])
    assert ["[unstuck]" in body for body in asked] == [False] * 4 + [True] * 2, "two runs of one prompt are two sessions"
    # The beginning of the history is dropped.
    del agent.history[2:4]
    agent.call(f"{session}-one-4", *READ)
    assert "[unstuck]" in gateway.ask(agent)[3]


def test_reads_that_differ_pass(gateway, session):
    agent = Anthropic()
    for number in range(8):
        agent.call(f"{session}-{number}", "read_file", {"path": f"{number}.txt"}, f"text {number}")
        status, _, _, asked = gateway.ask(agent, x_litellm_session_id=session)
        assert status == 200 and "[unstuck]" not in asked


def test_requests_pass_while_the_service_is_away(gateway, own_service, session):
    own_service.stop(signal.SIGKILL)
    agent = Chat()
    for number in range(8):
        agent.call(f"{session}-{number}", *READ)
        assert gateway.ask(agent, x_litellm_session_id=session)[0] == 200
    own_service.start()
    # What was sent meanwhile arrives, and each call counts once.
    wait_until(lambda: seen(own_service, session) == 8)
    assert gateway.ask(agent, x_litellm_session_id=session)[0] == 200 and seen(own_service, session) == 8


def seen(service, session):
    try:
        return service.get(session).session.events
    except Exception:
        return 0
