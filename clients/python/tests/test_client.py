"""The client against the real service."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import trustme
from conftest import BINARY, PATIENCE_SECS, running, wait_until

from unstuck import Action, Client, Guard, Refused, Stopped, Usage, Verdict, guarded

READ = ("read_file", {"path": "src/main.rs"}, "fn main() {}")


def test_the_third_equal_call_is_a_warning_and_the_fifth_is_refused(client, session):
    actions = []
    for _ in range(5):
        refusal = client.check(session, *READ[:2])
        verdict = client.record(session, *READ, refused=refusal is not None)
        actions.append((refusal and refusal.action.name, verdict and verdict.action.name))
    assert actions == [(None, None), (None, None), (None, "WARN"), (None, "BLOCK"), ("BLOCK", None)]


def test_a_verdict_says_what_happened_and_compares_with_actions(client, session):
    verdict = [client.record(session, *READ) for _ in range(3)][-1]
    assert (verdict.detector, verdict.session) == ("read_loop", session)
    assert verdict.pattern == "read src/main.rs 3 times, nothing changed"
    assert verdict.correction in verdict.text and verdict.text.startswith("[unstuck] ")
    assert [(member.tool, member.target) for member in verdict.members] == [("read_file", "src/main.rs")]
    assert verdict >= "WARN" and verdict < "BLOCK" and verdict == Action.WARN and verdict > Verdict(Action.ALERT)


async def test_the_same_calls_with_asyncio(client, session):
    assert await client.acheck(session, *READ[:2]) is None
    verdicts = [await client.arecord(session, *READ) for _ in range(4)]
    assert [verdict and verdict.action.name for verdict in verdicts] == [None, None, "WARN", "BLOCK"]
    assert (await client.acheck(session, *READ[:2])) == "BLOCK"
    assert await client.aturn(session, "user", "go on, please") is None
    assert await client.acheck(session, *READ[:2]) is None


def test_failures_usage_rounds_and_ids_arrive(client, service, session):
    for _ in range(2):
        client.record(session, "fetch", {"url": "x"}, error=OSError("no route"), usage=Usage(10, 2, 0.5), call_id="one")
    client.record(session, "fetch", {"url": "y"}, "ok", round="r", agent="helper", state_hash="h", content_hash="c")
    found = service.get(session)
    assert [entry.outcome for entry in found.timeline] == [2, 1], "one id counts once"
    assert (found.session.usage.input_tokens, found.session.usage.cost_usd) == (10, 0.5)
    assert found.timeline[1].agent_id == "helper"


def test_a_session_is_opened_and_ended(client, service):
    with client.session(labels={"team": "tests"}) as opened:
        opened.record(*READ)
        found = service.get(opened.id).session
        assert found.labels["team"] == "tests" and found.status == 1
    assert service.get(opened.id).session.status == 4


async def test_a_session_with_async_with(client, service):
    async with client.session() as opened:
        await opened.arecord(*READ)
    assert service.get(opened.id).session.status == 4


async def test_turns_and_compactions_are_recorded(client, service):
    async with client.session() as opened:
        opened.turn("agent", "I look at it.")
        opened.compacted(context_tokens=100)
        await opened.aturn("agent", "I look again.")
        await opened.acompacted()
        assert [entry.kind for entry in service.get(opened.id).timeline] == [2, 4, 2, 4]


def test_long_ids_are_told_apart(client, service, session):
    for end in ("a", "b", "b"):
        client.record(session, "get", {"n": end}, "x", call_id="i" * 200 + end, round="r" * 200 + end)
    assert len(service.get(session).timeline) == 2 and client.stats.refused == 0


def test_a_text_that_repeats_itself_is_found_while_it_is_written(client, session):
    def written():
        return client.delta(session, "I will now look at the settings again. " * 20, turn="t")

    assert wait_until(written).action >= Action.WARN
    client.delta(session, "", turn="t", end=True)


def test_an_operators_termination_is_pushed(client, service, session):
    pushed = []
    client.on_push(pushed.append)
    client.record(session, *READ)
    service.terminate(session)
    verdict = wait_until(lambda: [found for found in pushed if found.session == session])[0]
    assert (verdict.action, verdict.reason) == (Action.TERMINATE, "enough of it")
    assert client.stopped(session) == "TERMINATE" and client.check(session, "other", {}) == "TERMINATE"


def test_a_listener_may_use_the_client(client, service, session):
    answers = []

    @client.on_push
    def tell(verdict):
        answers.append(client.record(f"{session}-other", "told", {}, "x"))

    client.record(session, *READ)
    service.terminate(session)
    # It is in the thread that receives the answers, so it cannot wait for one.
    assert wait_until(lambda: answers) == [None]
    wait_until(lambda: client.stats.pending == 0)
    assert service.get(f"{session}-other").session.events == 1


def test_a_guard_stops_by_what_holds_already(client, session):
    first = Guard(client, session)
    while first.stopped is None:
        first.after("run", {"command": "make test"}, error="exit 1")
    # Another guard of the session, such as that of a process that was started again.
    second = Guard(client, session)
    assert second.before("other", {"n": 1}) is None and second.stopped is None
    assert second.before("run", {"command": "make test"}) == "ESCALATE" and second.stopped == "ESCALATE"
    # From then on no call is made.
    assert second.before("other", {"n": 2}) == "ESCALATE"
    hands_over = Guard(client, session, stop_at="TERMINATE")
    assert hands_over.before("run", {"command": "make test"}) is not None and hands_over.stopped is None


def test_a_tool_that_returns_nothing_has_an_empty_result(client, session):
    guard = Guard(client, session)
    texts = [guard.after("press", {"key": "enter"}) for _ in range(3)]
    assert texts[:2] == ["", ""] and texts[2].startswith("[unstuck] ")


def test_a_guarded_function_is_corrected_refused_and_stopped(client, session):
    made = []

    @guarded(client=client, session=session)
    def read_file(path, encoding="utf-8"):
        made.append(path)
        return "fn main() {}"

    answers = [read_file("src/main.rs") for _ in range(6)]
    assert answers[:2] == ["fn main() {}"] * 2 and "[unstuck] Stop reading" in answers[2]
    assert answers[4].startswith("[unstuck]") and len(made) == 4
    with pytest.raises(Stopped) as stopped:
        read_file("src/main.rs")
    assert stopped.value.verdict == "ESCALATE"


async def test_a_guarded_coroutine_in_a_session_raises_what_it_raises(client, service):
    @guarded(correct=False)
    async def fetch(url):
        raise OSError("no route to host")

    refusals = 0
    async with client.session() as opened:
        for _ in range(12):
            try:
                await fetch("http://a")
            except OSError:
                pass
            except Refused:
                refusals += 1
            except Stopped:
                break
        outcomes = [entry.outcome for entry in service.get(opened.id).timeline]
    assert 2 in outcomes and refusals and 3 in outcomes


def test_what_waits_is_sent_in_batches_and_nothing_is_lost(client, service, session):
    threads = [
        threading.Thread(target=lambda n=n: [client.record(session, "t", {"n": n, "i": i}, f"{n} {i}") for i in range(50)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert service.get(session).session.events == 400 and client.stats.answered == 400


def test_nothing_raises_whatever_is_passed(client, session):
    class Odd:
        def __str__(self):
            raise RuntimeError("no text")

    client.record(session, "t", {"a": Odd()}, "x")
    client.record(session, "t", {"a": "\ud800"}, "\udfff" * 100_000)
    client.record(session, "t", {"a": "b" * 3_000_000}, "c" * 3_000_000)
    client.record(None, "t")
    client.record("with white space", "t", {})
    client.turn(session, "nobody", "text")
    client.delta(session, "text", channel="none")
    client.check(7, None)
    assert client.stats.errors >= 4 and client.stats.refused >= 1
    assert client.record(session, "t", {}, "still there") is None and client.stats.pending == 0


def test_an_agent_survives_a_killed_service_and_nothing_counts_twice(own_service, session):
    with Client(own_service.target, deadline=PATIENCE_SECS) as client:
        for number in range(20):
            client.record(session, "step", {"n": number}, f"result {number}")
        own_service.signal(signal.SIGSTOP)
        client._deadline = 0.05
        for number in range(20, 30):
            assert client.record(session, "step", {"n": number}, f"result {number}") is None
        own_service.signal(signal.SIGCONT)
        own_service.stop(signal.SIGTERM)
        for number in range(30, 40):
            assert client.record(session, "step", {"n": number}, f"result {number}") is None
        own_service.start()
        wait_until(lambda: client.stats.pending == 0)
        assert own_service.get(session).session.events == 40
        assert client.stats.dropped == 0 and client.stats.reconnects >= 1


def test_a_kill_in_mid_run_does_not_count_an_event_twice(own_service, session):
    with Client(own_service.target, deadline=PATIENCE_SECS) as client:
        for number in range(10):
            client.record(session, "step", {"n": number}, "same", call_id=f"call-{number}")
        own_service.stop(signal.SIGKILL)
        for number in range(10, 20):
            client.record(session, "step", {"n": number}, "same", call_id=f"call-{number}")
        own_service.start()
        wait_until(lambda: client.stats.pending == 0)
        assert client.stats.answered == 20
        # What a killed process had not saved is gone; nothing is there twice.
        assert 10 <= own_service.get(session).session.events <= 20


def test_a_hung_service_costs_three_deadlines_and_then_nothing(own_service, session):
    with Client(own_service.target, deadline=PATIENCE_SECS) as client:
        client.record(session, *READ)
        own_service.signal(signal.SIGSTOP)
        client._deadline = 0.1
        for number in range(50):
            client.record(session, "step", {"n": number}, f"result {number}")
            client.check(session, "other", {})
        # Only three of them waited: later ones do not even begin to.
        assert client._missed_in_a_row == 3 and client.stats.missed == 50
        # The pause is over, but the service has not answered: still nobody waits.
        client._pause_until = 0.0
        assert not client._may_wait()
        own_service.signal(signal.SIGCONT)
        wait_until(lambda: client.stats.pending == 0)
        client._deadline = PATIENCE_SECS
        client.record(session, "other", {"n": 1}, "x")
        wait_until(client._may_wait)
        client.record(session, "other", {"n": 2}, "y")
        assert client._missed_in_a_row == 0 and own_service.get(session).session.events == 53


def test_a_service_that_is_not_there_costs_one_deadline_at_most(session):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with Client(f"127.0.0.1:{nobody.getsockname()[1]}", deadline=PATIENCE_SECS) as client:
            wait_until(lambda: client.record(session, *READ) is None and client._events.down)
            assert all(client.record(session, *READ) is None for _ in range(100))
            assert client.check(session, *READ[:2]) is None and client._missed_in_a_row == 0


def test_a_full_buffer_drops_the_oldest_and_counts(session):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with Client(f"127.0.0.1:{silent.getsockname()[1]}", deadline=0.01, buffer=10, max_batch=1) as client:
            for number in range(25):
                client.record(session, "t", {"n": number}, call_id=f"{number}")
            waiting = [item.message.event_id for item in client._events._waiting]
            assert len(waiting) <= 10 and waiting[-1] == "24"
            assert client.stats.dropped + client.stats.pending == 25 and client.stats.dropped


def test_what_a_hung_service_has_not_answered_is_bounded_too(own_service, session):
    with Client(own_service.target, deadline=PATIENCE_SECS, buffer=10) as client:
        client.record(session, *READ)
        own_service.signal(signal.SIGSTOP)
        client._deadline = 0.01
        for number in range(30):
            client.record(session, "step", {"n": number}, f"result {number}", call_id=f"call-{number}")
        assert client.stats.pending <= 10 and client.stats.dropped + client.stats.pending == 30
        own_service.signal(signal.SIGCONT)
        wait_until(lambda: client.stats.pending == 0)
        assert own_service.get(session).session.events == 31 - client.stats.dropped


def test_a_client_that_only_asks_waits_again_after_the_pause(client, session):
    client._missed_in_a_row, client._paused_at, client._pause_until = 3, time.monotonic(), time.monotonic() + 5
    assert not client._may_wait()
    client._pause_until = 0.0
    # Nothing is unanswered, so one call finds out; if it waits in vain, the next pause begins.
    assert client._may_wait()
    client._miss()
    assert not client._may_wait()


def test_a_verdict_that_came_too_late_is_given_with_the_next_call(client, session):
    for _ in range(3):
        client.record(session, *READ)
    client._missed_in_a_row, client._pause_until = 3, time.monotonic() + PATIENCE_SECS
    assert client.record(session, *READ) is None, "nobody waited for the BLOCK"
    wait_until(lambda: client.stats.pending == 0)
    client._missed_in_a_row = 0
    assert client.record(session, "other", {"n": 1}, "x") == "BLOCK"
    assert client.record(session, "other", {"n": 2}, "y") is None


def test_a_child_process_has_a_stream_of_its_own(service, session):
    code = f"""
import os, unstuck
client = unstuck.Client({service.target!r}, deadline={PATIENCE_SECS})
client.record({session!r}, "parent", {{}}, "x")
child = os.fork()
client.record({session!r}, "child" if not child else "parent", {{"n": 2}}, "y")
answered = client.stats.answered
client.close()
if not child:
    os._exit(0 if answered == 1 else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert answered == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECS)
    assert sorted(entry.tool for entry in service.get(session).timeline) == ["child", "parent", "parent"]


def test_a_pool_of_forked_processes_is_guarded(service, session):
    code = f"""
import multiprocessing, unstuck
client = unstuck.Client({service.target!r}, deadline={PATIENCE_SECS})
client.record({session!r}, "parent", {{}}, "x")
def work(n):
    client.record({session!r}, "child", {{"n": n}}, str(n))
    return client.stats.errors
with multiprocessing.get_context("fork").Pool(4) as pool:
    assert pool.map(work, range(20)) == [0] * 20
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECS)
    assert service.get(session).session.events == 21


def test_a_process_ends_without_a_close(service, session):
    code = f"import unstuck; unstuck.Client({service.target!r}).record({session!r}, 't', {{}}, 'x')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECS)


def test_what_waits_at_the_end_of_a_process_is_sent(service, session):
    code = f"""
import unstuck
client = unstuck.Client({service.target!r}, deadline={PATIENCE_SECS})
client.record({session!r}, "first", {{}}, "x")
client._deadline = 0.0
client.record({session!r}, "last", {{}}, "x")
client._deadline = {PATIENCE_SECS}
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECS)
    assert [entry.tool for entry in service.get(session).timeline] == ["first", "last"]


def test_the_token_may_be_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("of-the-file\n")
    monkeypatch.setenv("UNSTUCK_TOKEN_FILE", str(tmp_path / "token"))
    assert Client()._connection.metadata == (("authorization", "Bearer of-the-file"),)
    monkeypatch.setenv("UNSTUCK_TOKEN", "of-the-variable")
    assert Client()._connection.metadata == (("authorization", "Bearer of-the-variable"),)
    assert Client(token="given")._connection.metadata == (("authorization", "Bearer given"),)
    monkeypatch.delenv("UNSTUCK_TOKEN")
    monkeypatch.setenv("UNSTUCK_TOKEN_FILE", "/nowhere")
    assert Client()._connection.metadata == ()


def test_tls_and_tokens(tmp_path, session, monkeypatch):
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    command = [BINARY, "token", "new", "--name", "a", "--role", "broker", "--tenant", "t", "--output", "json"]
    made = json.loads(subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.PIPE).stdout)
    (tmp_path / "tokens.toml").write_text(made["line"])
    config = "[auth]\ntokens = 'tokens.toml'\n[tls]\ncert = 'cert.pem'\nkey = 'key.pem'\n"
    ca = authority.cert_pem.bytes()
    with running(tmp_path, config) as secured:
        with Client(f"https://{secured.target}", made["token"], ca=ca, deadline=PATIENCE_SECS) as client:
            assert [client.record(session, *READ) for _ in range(3)][-1] == "WARN"
        (tmp_path / "ca.pem").write_bytes(ca)
        monkeypatch.setenv("UNSTUCK_CA", str(tmp_path / "ca.pem"))
        with Client(f"https://{secured.target}", made["token"], deadline=PATIENCE_SECS) as client:
            assert client.record(f"{session}-2", *READ) is None and client.stats.answered == 1
        with Client(secured.target, "wrong", ca=ca, deadline=0.5) as client:
            assert client.record(session, *READ) is None
            wait_until(lambda: client.stats.reconnects)
            assert client.stats.answered == 0


def test_nothing_of_the_agent_is_logged(client, session, caplog):
    caplog.set_level("DEBUG")
    for _ in range(4):
        client.record(session, "secret_tool", {"secret": 1}, "secret")
    client.turn(session, "nobody", "secret")
    client.record("with secret", "t", {"a": "secret"})
    assert "secret" not in caplog.text


async def test_async_with_closes_a_client(service, session):
    async with Client(service.target, deadline=PATIENCE_SECS) as client:
        await client.arecord(session, *READ)
    assert await client.arecord(session, *READ) is None and client.stats.dropped == 1


def test_a_close_does_not_wait_for_a_service_that_does_not_answer(own_service, session):
    client = Client(own_service.target, deadline=PATIENCE_SECS)
    client.record(session, *READ)
    own_service.signal(signal.SIGSTOP)
    client._deadline = 0.01
    for number in range(5):
        client.record(session, "step", {"n": number}, "x")
    # After three missed deadlines nothing waits, so this would be as long as the test may last.
    client._deadline = PATIENCE_SECS
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < PATIENCE_SECS
    assert client.stats.dropped == 5 and client.stats.pending == 0


def test_closed_means_closed(service, session):
    client = Client(service.target)
    client.record(session, *READ)
    client.close()
    client.close()
    assert client.record(session, *READ) is None and client.check(session, *READ[:2]) is None
    assert client.stats.dropped == 1
