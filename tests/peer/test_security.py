"""TLS, tokens and tenants, used by a program in another language."""

import contextlib
import json
import ssl
import subprocess
import urllib.error
import urllib.request

import grpc
import pytest
import trustme
from conftest import BINARY, DEADLINE_SECS, detection_grpc, detection_pb, running_server, session_grpc, session_pb
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from unstuck.v1.event_pb2 import ROLE_AGENT, Event, Turn

CALLERS = {"broker": "acme", "operator": "acme", "viewer": "globex"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A server with TLS and a token for each caller."""
    cwd = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(cwd / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(cwd / "cert.pem")
    certificate.private_key_pem.write_to_path(cwd / "key.pem")
    made = {role: new_token(cwd, role, tenant) for role, tenant in CALLERS.items()}
    (cwd / "tokens.toml").write_text("\n".join(token["line"] for token in made.values()))
    (cwd / "unstuck.toml").write_text(
        "[auth]\ntokens = 'tokens.toml'\n[tls]\ncert = 'cert.pem'\nkey = 'key.pem'\n"
    )
    with running_server(cwd) as server:
        server.ca = (cwd / "ca.pem").read_bytes()
        server.tokens = {role: token["token"] for role, token in made.items()}
        yield server


def new_token(cwd, role, tenant):
    command = [BINARY, "token", "new", "--name", f"{role}-1", "--role", role, "--tenant", tenant]
    made = subprocess.run([*command, "--output", "json"], cwd=cwd, check=True, stdout=subprocess.PIPE)
    return json.loads(made.stdout)


@contextlib.contextmanager
def connected(server, role, ca=None):
    """A channel with gRPC's own call credentials, which need TLS."""
    tls = grpc.ssl_channel_credentials(ca or server.ca)
    token = grpc.access_token_call_credentials(server.tokens[role])
    credentials = grpc.composite_channel_credentials(tls, token)
    with grpc.secure_channel(server.grpc, credentials) as channel:
        yield detection_grpc.DetectionServiceStub(channel), session_grpc.SessionServiceStub(channel)


def event(session_id):
    return detection_pb.RecordEventRequest(
        event=Event(session_id=session_id, turn=Turn(role=ROLE_AGENT, text="I look at the settings."))
    )


def refused(call, request):
    with pytest.raises(grpc.RpcError) as error:
        call(request, timeout=DEADLINE_SECS)
    (detail,) = rpc_status.from_call(error.value).details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info) and info.domain == "unstuck.v1"
    return error.value.code(), info.reason


def test_roles_are_enforced_and_the_verdict_has_the_operators_name(secured):
    with connected(secured, "broker") as (detection, sessions):
        assert detection.RecordEvent(event("s"), timeout=DEADLINE_SECS).result.event_index == 0
        terminate = session_pb.TerminateSessionRequest(session_id="s", reason="enough")
        denied = (grpc.StatusCode.PERMISSION_DENIED, "ROLE_INSUFFICIENT")
        assert refused(sessions.TerminateSession, terminate) == denied
    with connected(secured, "operator") as (_, sessions):
        verdict = sessions.TerminateSession(terminate, timeout=DEADLINE_SECS).verdict
        assert verdict.operator == "operator-1"
    with connected(secured, "viewer") as (_, sessions):
        with pytest.raises(grpc.RpcError) as error:
            sessions.GetSession(session_pb.GetSessionRequest(session_id="s"), timeout=DEADLINE_SECS)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_call_without_a_token_is_rejected(secured):
    tls = grpc.ssl_channel_credentials(secured.ca)
    with grpc.secure_channel(secured.grpc, tls) as channel:
        sessions = session_grpc.SessionServiceStub(channel)
        code = refused(sessions.ListSessions, session_pb.ListSessionsRequest())
    assert code == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_REQUIRED")


def test_a_client_that_trusts_another_ca_cannot_connect(secured):
    other = trustme.CA().cert_pem.bytes()
    with connected(secured, "viewer", other) as (_, sessions), pytest.raises(grpc.RpcError) as error:
        sessions.ListSessions(session_pb.ListSessionsRequest(), timeout=DEADLINE_SECS)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE


def test_the_metrics_need_a_viewers_token(secured):
    trust = ssl.create_default_context(cadata=secured.ca.decode())

    def page(role):
        request = urllib.request.Request(f"https://{secured.http}/metrics")
        if role:
            request.add_header("Authorization", f"Bearer {secured.tokens[role]}")
        with urllib.request.urlopen(request, timeout=DEADLINE_SECS, context=trust) as response:
            return response.read().decode()

    assert "unstuck_build_info" in page("viewer")
    for role, code in ((None, 401), ("broker", 403)):
        with pytest.raises(urllib.error.HTTPError) as error:
            page(role)
        assert error.value.code == code
