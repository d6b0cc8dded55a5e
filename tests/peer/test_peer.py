"""The service used by a program in another language."""

import json
import re
import urllib.request
import uuid

import grpc
import pytest
from conftest import DEADLINE_SECS, ROOT, Stream, detection_pb, running_server, session_pb
from google.protobuf import json_format, struct_pb2
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from unstuck.v1.event_pb2 import OPERATION_OTHER, OUTCOME_OK, ROLE_AGENT, Delta, Event, ToolCall, Turn, Usage
from unstuck.v1.verdict_pb2 import ACTION_TERMINATE, ACTION_UNSPECIFIED, ACTION_WARN, TREND_LEVEL_BLIP


def call(session_id, *, event_id="", result="not decided", **arguments):
    """A call that is neither a read, a run nor a poll: only `exact_repeat` matches it."""
    arguments = arguments or {"args_json": '{"key": "colour", "scope": "team"}'}
    tool_call = ToolCall(
        tool="lookup_setting", operation=OPERATION_OTHER, target="colour",
        outcome=OUTCOME_OK, result=result, **arguments,
    )
    usage = Usage(input_tokens=100, output_tokens=10, cost_usd=0.25)
    return Event(session_id=session_id, event_id=event_id, usage=usage, tool_call=tool_call)


def similar_turn(session_id, word):
    """Turns that differ in one word: 14 of 16 words are equal, which is more than .85."""
    text = f"first I will check whether the {word} setting of this team can really be found"
    return Event(session_id=session_id, turn=Turn(role=ROLE_AGENT, text=text))


def record(detection, event):
    return detection.RecordEvent(detection_pb.RecordEventRequest(event=event), timeout=DEADLINE_SECS).result


def loop(detection, session_id):
    """Makes the session loop; returns the verdict."""
    return [record(detection, call(session_id)) for _ in range(3)][-1].verdict


def terminate(sessions, session_id, reason="it repeats the same calls"):
    request = session_pb.TerminateSessionRequest(session_id=session_id, reason=reason)
    return sessions.TerminateSession(request, timeout=DEADLINE_SECS).verdict


def get(sessions, session_id):
    return sessions.GetSession(session_pb.GetSessionRequest(session_id=session_id), timeout=DEADLINE_SECS).session


def http_get(server, path):
    with urllib.request.urlopen(f"http://{server.http}{path}", timeout=DEADLINE_SECS) as response:
        return response.status, response.read().decode()


# Events


def test_the_third_equal_call_gets_a_warning(detection, session_id):
    results = [record(detection, call(session_id, event_id=f"call-{n}")) for n in range(3)]
    assert [(r.event_index, r.action) for r in results] == [(0, ACTION_UNSPECIFIED), (1, ACTION_UNSPECIFIED), (2, ACTION_WARN)]
    assert not results[1].HasField("verdict")
    verdict = results[2].verdict
    assert (verdict.session_id, verdict.event_index, verdict.action) == (session_id, 2, ACTION_WARN)
    assert (verdict.detector, verdict.confidence, verdict.trend.level) == ("exact_repeat", 1, TREND_LEVEL_BLIP)
    assert verdict.verdict_id and verdict.loop_id and verdict.pattern and verdict.reason and verdict.correction
    assert [(m.tool, m.target, m.event_id) for m in verdict.members] == [("lookup_setting", "colour", "call-2")]
    assert (verdict.evidence.count, verdict.evidence.period) == (3, 1)
    assert list(verdict.evidence.event_indexes) == [0, 1, 2]
    assert (verdict.wasted.events, verdict.wasted.tokens, verdict.wasted.cost_usd) == (3, 330, 0.75)


def test_arguments_are_equal_in_any_order_and_form(detection, session_id):
    structure = struct_pb2.Struct()
    structure.update({"scope": "team", "key": "colour"})
    record(detection, call(session_id, args_json='{"key": "colour", "scope": "team"}'))
    record(detection, call(session_id, args_json='{ "scope":"team","key":"colour" }'))
    assert record(detection, call(session_id, args=structure)).action == ACTION_WARN


def test_a_call_with_another_result_is_not_a_repeat(detection, session_id):
    results = [record(detection, call(session_id, result=result)) for result in ("red", "green", "blue", "grey")]
    assert [r.action for r in results] == [ACTION_UNSPECIFIED] * 4


def test_an_event_without_a_session_is_an_invalid_argument(detection):
    with pytest.raises(grpc.RpcError) as error:
        record(detection, call(""))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert bad_fields(error.value)[0].endswith("session_id")


def test_a_duplicate_gets_the_first_answer_and_is_not_counted(detection, session_id):
    first = [record(detection, call(session_id, event_id=f"call-{n}")) for n in range(3)]
    again = [record(detection, call(session_id, event_id=f"call-{n}")) for n in range(3)]
    assert [(r.duplicate, r.event_index) for r in again] == [(True, 0), (True, 1), (True, 2)]
    assert [r.action for r in again] == [r.action for r in first]
    assert again[2].verdict == first[2].verdict
    fresh = record(detection, call(session_id, event_id="call-3"))
    assert (fresh.duplicate, fresh.event_index) == (False, 3)


def test_similar_turns_get_a_warning_and_then_terminate_the_session(detection, sessions, session_id):
    words = ("colour", "font", "shape", "border", "margin", "shadow")
    results = [record(detection, similar_turn(session_id, word)) for word in words]
    assert [r.action for r in results[:4]] == [ACTION_UNSPECIFIED] * 3 + [ACTION_WARN]
    assert (results[3].verdict.detector, results[5].action) == ("similar_turns", ACTION_TERMINATE)
    later = [record(detection, event) for event in (call(session_id), similar_turn(session_id, "padding"))]
    assert {(r.action, r.verdict.verdict_id) for r in later} == {(ACTION_TERMINATE, results[5].verdict.verdict_id)}
    session = get(sessions, session_id)
    assert (session.status, session.events) == (session_pb.SESSION_STATUS_TERMINATED, 6)
    assert session.termination.verdict_id == results[5].verdict.verdict_id


# The event stream


def test_a_stream_answers_every_batch_in_order(detection, session_id):
    many = [f"{session_id}-{n}" for n in range(50)]
    requests = [detection_pb.StreamEventsRequest(sequence=n, events=map(call, many)) for n in (1, 2, 3)]
    responses = list(detection.StreamEvents(iter(requests), timeout=DEADLINE_SECS))
    assert [response.sequence for response in responses] == [1, 2, 3]
    for index, response in enumerate(responses):
        assert [(r.session_id, r.event_index) for r in response.results] == [(one, index) for one in many]
    assert {r.action for r in responses[1].results} == {ACTION_UNSPECIFIED}
    assert {r.verdict.detector for r in responses[2].results} == {"exact_repeat"}


def test_an_invalid_event_is_answered_in_its_own_result(detection, session_id):
    with Stream(detection.StreamEvents) as stream:
        events = [call(session_id), call(""), call(session_id)]
        good, bad, also_good = stream.ask(detection_pb.StreamEventsRequest(sequence=1, events=events)).results
        after = stream.ask(detection_pb.StreamEventsRequest(sequence=2, events=[call(session_id)]))
    assert (bad.error.code, bad.error.field, bad.event_index) == (3, "session_id", -1)
    assert bad.error.reason and bad.error.message
    assert not good.HasField("error") and not also_good.HasField("error")
    assert (good.event_index, also_good.event_index) == (0, 1)
    assert (after.sequence, after.results[0].event_index, after.results[0].action) == (2, 2, ACTION_WARN)


def test_an_operators_termination_is_pushed_to_an_open_event_stream(detection, sessions, session_id):
    with Stream(detection.StreamEvents) as stream:
        stream.ask(detection_pb.StreamEventsRequest(sequence=1, events=[call(session_id)]))
        verdict = terminate(sessions, session_id, reason="wrong repository")
        push = stream.receive()
    assert (verdict.detector, verdict.reason, verdict.event_index) == ("operator", "wrong repository", -1)
    assert push.sequence == 0
    assert [(r.session_id, r.action, r.verdict.verdict_id) for r in push.results] == [
        (session_id, ACTION_TERMINATE, verdict.verdict_id)
    ]


# The delta stream


def test_the_end_of_a_turn_is_answered(detection, session_id):
    pieces = [Delta(session_id=session_id, turn_id="t1", text=text) for text in ("Let me ", "look at the ")]
    last = Delta(session_id=session_id, turn_id="t1", text="settings.", end_of_turn=True)
    with Stream(detection.StreamDeltas) as stream:
        response = stream.ask(detection_pb.StreamDeltasRequest(deltas=[*pieces, last]))
    assert (response.session_id, response.turn_id, response.end_of_turn) == (session_id, "t1", True)
    assert (response.action, response.HasField("verdict"), response.HasField("error")) == (ACTION_UNSPECIFIED, False, False)


def test_an_invalid_delta_is_answered_and_the_stream_continues(detection, session_id):
    with Stream(detection.StreamDeltas) as stream:
        bad = stream.ask(detection_pb.StreamDeltasRequest(deltas=[Delta(text="whose?")]))
        good = stream.ask(detection_pb.StreamDeltasRequest(deltas=[Delta(session_id=session_id, end_of_turn=True)]))
    assert (bad.error.code, bad.error.field) == (3, "session_id")
    assert good.end_of_turn and not good.HasField("error")


def test_an_operators_termination_is_pushed_to_an_open_delta_stream(detection, sessions, session_id):
    with Stream(detection.StreamDeltas) as stream:
        delta = Delta(session_id=session_id, text="Let me look.", end_of_turn=True)
        stream.ask(detection_pb.StreamDeltasRequest(deltas=[delta]))
        verdict = terminate(sessions, session_id)
        push = stream.receive()
    assert (push.session_id, push.action, push.verdict.verdict_id) == (session_id, ACTION_TERMINATE, verdict.verdict_id)


# Sessions


def test_an_opened_session_has_its_profile_and_labels(detection, sessions, session_id):
    request = session_pb.OpenSessionRequest(session_id=session_id, profile="strict", labels={"team": "billing"})
    opened = sessions.OpenSession(request, timeout=DEADLINE_SECS).session
    assert (opened.session_id, opened.profile, dict(opened.labels)) == (session_id, "strict", {"team": "billing"})
    record(detection, call(session_id))
    session = get(sessions, session_id)
    assert (session.status, session.events, session.usage.input_tokens) == (session_pb.SESSION_STATUS_ACTIVE, 1, 100)
    assert (session.profile, dict(session.labels)) == ("strict", {"team": "billing"})


def test_a_looping_session_shows_its_verdict(detection, sessions, session_id):
    verdict = loop(detection, session_id)
    session = get(sessions, session_id)
    assert session.status == session_pb.SESSION_STATUS_LOOPING
    assert [v.verdict_id for v in session.last_verdicts] == [verdict.verdict_id]
    assert "exact_repeat" in [trend.detector for trend in session.trends]
    assert session.wasted.events == 3


def test_sessions_are_listed_by_label_in_pages(sessions, session_id):
    labels = {"run": str(uuid.uuid4())}
    ids = [f"{session_id}-{n}" for n in range(5)]
    for one in reversed(ids):
        sessions.OpenSession(session_pb.OpenSessionRequest(session_id=one, labels=labels), timeout=DEADLINE_SECS)
    pages, token = [], ""
    while token or not pages:
        request = session_pb.ListSessionsRequest(page_size=2, page_token=token, labels=labels)
        page = sessions.ListSessions(request, timeout=DEADLINE_SECS)
        pages.append([session.session_id for session in page.sessions])
        token = page.next_page_token
    assert pages == [ids[:2], ids[2:4], ids[4:]]


def test_a_reset_session_starts_from_zero(detection, sessions, session_id):
    record(detection, call(session_id))
    terminate(sessions, session_id)
    assert record(detection, call(session_id)).action == ACTION_TERMINATE
    request = session_pb.ResetSessionRequest(session_id=session_id, reason="the repository was repaired")
    verdict = sessions.ResetSession(request, timeout=DEADLINE_SECS).verdict
    assert (verdict.detector, verdict.reason) == ("operator", "the repository was repaired")
    result = record(detection, call(session_id))
    assert (result.action, result.event_index) == (ACTION_UNSPECIFIED, 0)


def test_an_ended_session_keeps_its_summary(detection, sessions, session_id):
    loop(detection, session_id)
    request = session_pb.EndSessionRequest(session_id=session_id)
    summary = sessions.EndSession(request, timeout=DEADLINE_SECS).session
    assert (summary.session_id, summary.events, summary.wasted.events) == (session_id, 3, 3)
    assert get(sessions, session_id).status == session_pb.SESSION_STATUS_ENDED
    assert record(detection, call(session_id)).event_index == 0


def test_an_unknown_session_is_not_found(sessions, session_id):
    with pytest.raises(grpc.RpcError) as error:
        get(sessions, session_id)
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("rpc", ["ResetSession", "TerminateSession"])
def test_an_operator_action_needs_a_reason(sessions, session_id, rpc):
    request = getattr(session_pb, f"{rpc}Request")(session_id=session_id)
    with pytest.raises(grpc.RpcError) as error:
        getattr(sessions, rpc)(request, timeout=DEADLINE_SECS)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert bad_fields(error.value) == ["reason"]


def test_a_snoozed_session_gets_shadow_verdicts_and_the_audit_log_has_the_operator(detection, sessions, session_id):
    sessions.OpenSession(session_pb.OpenSessionRequest(session_id=session_id), timeout=DEADLINE_SECS)
    request = session_pb.SnoozeSessionRequest(session_id=session_id, reason="looking at it")
    request.duration.FromSeconds(60)
    sessions.SnoozeSession(request, timeout=DEADLINE_SECS, metadata=[("unstuck-operator", "ann")])
    verdict = loop(detection, session_id)
    assert verdict.shadow
    log = sessions.ListVerdicts(session_pb.ListVerdictsRequest(session_id=session_id), timeout=DEADLINE_SECS)
    assert [(v.detector, v.operator) for v in log.verdicts] == [("operator", "ann"), (verdict.detector, "")]


def test_a_watcher_gets_the_same_verdict_as_the_broker(detection, sessions, session_id):
    watch = sessions.WatchVerdicts(session_pb.WatchVerdictsRequest(session_id=session_id), timeout=DEADLINE_SECS)
    watch.initial_metadata()  # sent when the watch is active: no later verdict is missed
    verdict = loop(detection, session_id)
    watched = next(watch).verdict
    # The broker did not wait for the disk, the watcher did.
    assert (verdict.durable, watched.durable) == (False, True)
    watched.durable = False
    assert watched == verdict
    watch.cancel()


def bad_fields(error):
    """The fields that a google.rpc.BadRequest in the error's details names."""
    bad_request = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad_request) for detail in rpc_status.from_call(error).details)
    return [violation.field for violation in bad_request.field_violations]


# Health, reflection, metrics


@pytest.mark.parametrize("service", ["", "unstuck.v1.DetectionService"])
def test_health_is_serving(server, service):
    request = health_pb2.HealthCheckRequest(service=service)
    response = health_pb2_grpc.HealthStub(server.channel).Check(request, timeout=DEADLINE_SECS)
    assert response.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_both_services(server):
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    (response,) = stub.ServerReflectionInfo(requests, timeout=DEADLINE_SECS)
    names = {service.name for service in response.list_services_response.service}
    assert names >= {"unstuck.v1.DetectionService", "unstuck.v1.SessionService"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_the_probes_are_ok(server, path):
    assert http_get(server, path)[0] == 200


def test_a_verdict_raises_its_series_from_zero_to_one(tmp_path, session_id):
    with running_server(tmp_path) as server:
        before = verdicts_total(server, detector="exact_repeat", action="warn")
        loop(server.detection, session_id)
        after = verdicts_total(server, detector="exact_repeat", action="warn")
    assert (before, after) == (0, 1)


def verdicts_total(server, **labels):
    series = re.findall(r"^unstuck_verdicts_total\{(.*)\} (\S+)$", http_get(server, "/metrics")[1], re.MULTILINE)
    values = [float(value) for names, value in series if dict(re.findall(r'(\w+)="([^"]*)"', names)) == labels]
    assert len(values) == 1, series
    return values[0]


# The examples


@pytest.mark.parametrize(
    ("trace", "first_verdict", "last_verdict"),
    [
        ("healthy", None, None),
        ("read-loop", (13, "ACTION_WARN"), None),
        ("similar-turns", (9, "ACTION_WARN"), (13, "ACTION_TERMINATE")),
    ],
)
def test_a_trace_gets_its_verdicts(detection, trace, first_verdict, last_verdict):
    events = [json_format.Parse(line, Event()) for line in (ROOT / f"examples/{trace}.ndjson").open()]
    request = detection_pb.StreamEventsRequest(sequence=1, events=events)
    (response,) = detection.StreamEvents(iter([request]), timeout=DEADLINE_SECS)
    assert [r.event_index for r in response.results] == list(range(len(events)))
    found = [json_format.MessageToDict(r) for r in response.results if r.HasField("verdict")]
    verdicts = [(one.get("eventIndex", 0), one.get("action")) for one in found]
    assert verdicts[:1] == ([first_verdict] if first_verdict else []), json.dumps(found, indent=2)
    assert last_verdict is None or verdicts[-1] == last_verdict
