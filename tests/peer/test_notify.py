"""Notifications received by independent code: the standard library's HTTP server,
with the signature checked by the official library of Standard Webhooks.
"""

import http.server
import json
import queue
import threading
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from conftest import DEADLINE_SECS, detection_pb, running_server, session_pb
from unstuck.v1.event_pb2 import Event, ToolCall

SECRET = "whsec_dGhlIHNlY3JldCBvZiB0aGUgdGVzdHM="


@pytest.fixture
def receiver():
    """A receiver that records its requests, with its address."""
    got = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            got.put((dict(self.headers), body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield "http://%s:%s/hook" % server.server_address, got
        server.shutdown()


def configure(tmp_path, url):
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "unstuck.toml").write_text(
        f"""[[notify]]
        name = "peer"
        url = "{url}"
        secret = {{ file = "secret" }}
        allow_http = true
        allow_private = true
        """
    )


def test_a_session_that_goes_on_after_its_termination_is_notified(tmp_path, receiver):
    url, got = receiver
    configure(tmp_path, url)
    with running_server(tmp_path) as server:
        request = session_pb.TerminateSessionRequest(session_id="s", reason="it hangs")
        server.sessions.TerminateSession(request, timeout=DEADLINE_SECS)
        assert json.loads(got.get(timeout=DEADLINE_SECS)[1])["type"] == "session.terminated"
        # What was under way for two seconds is no disobedience.
        event = Event(session_id="s", tool_call=ToolCall(tool="get_order", args_json="{}"))
        deadline = time.monotonic() + DEADLINE_SECS
        while got.empty() and time.monotonic() < deadline:
            server.detection.RecordEvent(detection_pb.RecordEventRequest(event=event), timeout=DEADLINE_SECS)
        headers, body = got.get(timeout=DEADLINE_SECS)
    event = Webhook(SECRET).verify(body, headers)
    assert event["type"] == "session.disobeyed"
    assert event["data"]["verdict"]["pattern"].startswith("went on after termination: 1 event, ")


def test_a_notification_is_signed_as_the_official_library_expects(tmp_path, receiver):
    url, got = receiver
    configure(tmp_path, url)
    with running_server(tmp_path) as server:
        request = session_pb.TerminateSessionRequest(session_id="s", reason="it hangs")
        verdict = server.sessions.TerminateSession(request, timeout=DEADLINE_SECS).verdict
        headers, body = got.get(timeout=DEADLINE_SECS)
    event = Webhook(SECRET).verify(body, headers)
    assert event["id"] == verdict.verdict_id == headers["webhook-id"]
    assert event["type"] == "session.terminated"
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body.replace(b"terminated", b"warned"), headers)
    assert json.loads(body)["data"]["verdict"]["reason"] == "it hangs"
