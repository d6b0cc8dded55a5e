"""Notifications received by independent code: the standard library's HTTP server,
with the signature checked by the official library of Standard Webhooks.
"""

import http.server
import json
import queue
import threading

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from conftest import DEADLINE_SECS, running_server, session_pb

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


def test_a_notification_is_signed_as_the_official_library_expects(tmp_path, receiver):
    url, got = receiver
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
