"""What a gateway reads in the requests of four formats, and where it puts a correction."""

import pytest

from unstuck import _gateway
from unstuck._gateway import Call, Turn


def chat(*results, user=""):
    messages = [{"role": "system", "content": "You are a coder."}, {"role": "user", "content": "Fix it."}]
    for number, result in enumerate(results):
        call = {"id": f"call-{number}", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call-{number}", "content": result},
        ]
    return {"messages": [*messages, *([{"role": "user", "content": user}] if user else [])]}


def anthropic(*results, user=""):
    messages = [{"role": "user", "content": "<system-reminder>x</system-reminder>Fix it."}]
    for number, result in enumerate(results):
        use = {"type": "tool_use", "id": f"call-{number}", "name": "read", "input": {"path": "a"}}
        told = {"type": "tool_result", "tool_use_id": f"call-{number}", "content": [{"type": "text", "text": result}]}
        noise = {"type": "text", "text": "Todos were not updated."}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [told, noise]}]
    return {"messages": [*messages, *([{"role": "user", "content": user}] if user else [])]}


def responses(*results, user=""):
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Fix it."}]}]
    for number, result in enumerate(results):
        items += [
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": f"call-{number}", "name": "read", "arguments": '{"path": "a"}'},
            {"type": "function_call_output", "call_id": f"call-{number}", "output": result},
        ]
    return {"input": [*items, *([{"role": "user", "content": user}] if user else [])]}


def gemini(*results, user=""):
    contents = [{"role": "user", "parts": [{"text": "Fix it."}]}]
    for number, result in enumerate(results):
        call = {"functionCall": {"name": "read", "args": {"path": "a"}}, "thoughtSignature": f"signed-{number}"}
        answer = {"functionResponse": {"name": "read", "response": {"output": result}}}
        contents += [{"role": "model", "parts": [call]}, {"role": "user", "parts": [answer]}]
    return {"contents": [*contents, *([{"role": "user", "parts": [{"text": user}]}] if user else [])]}


FORMATS = pytest.mark.parametrize("made", [chat, anthropic, responses, gemini])


@FORMATS
def test_calls_have_their_results_and_an_id_of_their_own(made):
    history = _gateway.read(made("one", "two"))
    assert history.ends_with_result
    assert [type(entry) for entry in history.entries] == [Call, Call]
    assert [entry.tool for entry in history.entries] == ["read", "read"]
    assert ["one" in history.entries[0].text, "two" in history.entries[1].text] == [True, True]
    assert len({entry.id for entry in history.entries} | {entry.round for entry in history.entries}) == 2


@FORMATS
def test_ids_and_the_opening_stay_as_a_history_grows(made):
    short, long = _gateway.read(made("one")), _gateway.read(made("one", "two"))
    assert short.opening == long.opening and short.entries == long.entries[:1]


@FORMATS
def test_what_a_user_says_after_calls_is_a_turn(made):
    history = _gateway.read(made("one", user="Stop that."))
    assert not history.ends_with_result
    assert [(entry.role, entry.text) for entry in history.entries if isinstance(entry, Turn)] == [("user", "Stop that.")]


@pytest.mark.parametrize("text", [
    "<system-reminder>\nYou have 9 tokens left\n</system-reminder>", "<environment_context>\n<cwd>/</cwd>\n</environment_context>",
    "<task-notification>done</task-notification>", "System: Potential loop detected. Step back.", "[unstuck] Stop it.", " ",
])
@FORMATS
def test_what_a_harness_says_is_no_turn(made, text):
    assert not [entry for entry in _gateway.read(made("one", user=text)).entries if isinstance(entry, Turn)]


@FORMATS
def test_a_correction_is_after_the_last_result_and_the_given_request_stays(made):
    given, before = made("one", "two"), made("one", "two")
    corrected = _gateway.with_correction(given, "[unstuck] Stop it.")
    assert given == before and str(corrected).count("[unstuck] Stop it.") == 1
    last = next(reversed(corrected.values()))[-1]
    assert "[unstuck] Stop it." in str(last) and "two" in str(last)


def test_parallel_calls_of_one_answer_are_one_round():
    calls = [{"type": "tool_use", "id": id, "name": "read", "input": {}} for id in "ab"]
    results = [{"type": "tool_result", "tool_use_id": id, "content": id, "is_error": id == "b"} for id in "ab"]
    data = {"messages": [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]}
    assert [(entry.id, entry.round, entry.failed) for entry in _gateway.read(data).entries] == [("a", "a", False), ("b", "a", True)]


@pytest.mark.parametrize(("data", "session"), [
    ({"litellm_session_id": "one"}, "one"),
    ({"metadata": {"session_id": "two"}}, "two"),
    ({"metadata": {"user_id": '{"session_id": "three"}'}}, "three"),
    ({"metadata": {"user_id": "user_1_account__session_four"}}, "four"),
    ({"litellm_session_id": "made", "metadata": {"litellm_session_id_generated": True}}, ""),
    ({"metadata": {"user_id": "somebody"}}, ""),
    ({}, ""),
])
def test_the_session_that_a_request_names(data, session):
    assert _gateway.session_of(data) == session


@pytest.mark.parametrize("data", [
    {}, {"messages": None}, {"messages": "text"}, {"input": "text"}, {"contents": []}, {"messages": [{}]}, {"input": [{}]},
    {"contents": [{"parts": None}]}, {"messages": [{"role": "tool"}]},
])
def test_odd_requests_have_no_calls(data):
    assert not _gateway.read(data).entries
