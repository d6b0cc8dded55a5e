from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from unstuck.v1 import event_pb2 as _event_pb2
from unstuck.v1 import verdict_pb2 as _verdict_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckCallRequest(_message.Message):
    __slots__ = ("session_id", "agent_id", "tool", "args_json", "args", "args_hash")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    ARGS_HASH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    agent_id: str
    tool: str
    args_json: str
    args: _struct_pb2.Struct
    args_hash: str
    def __init__(self, session_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., tool: _Optional[str] = ..., args_json: _Optional[str] = ..., args: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., args_hash: _Optional[str] = ...) -> None: ...

class CheckCallResponse(_message.Message):
    __slots__ = ("action", "verdict", "standing")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    action: _verdict_pb2.Action
    verdict: _verdict_pb2.Verdict
    standing: _verdict_pb2.Standing
    def __init__(self, action: _Optional[_Union[_verdict_pb2.Action, str]] = ..., verdict: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ..., standing: _Optional[_Union[_verdict_pb2.Standing, _Mapping]] = ...) -> None: ...

class RecordEventRequest(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: _event_pb2.Event
    def __init__(self, event: _Optional[_Union[_event_pb2.Event, _Mapping]] = ...) -> None: ...

class RecordEventResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: EventResult
    def __init__(self, result: _Optional[_Union[EventResult, _Mapping]] = ...) -> None: ...

class StreamEventsRequest(_message.Message):
    __slots__ = ("sequence", "events")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    events: _containers.RepeatedCompositeFieldContainer[_event_pb2.Event]
    def __init__(self, sequence: _Optional[int] = ..., events: _Optional[_Iterable[_Union[_event_pb2.Event, _Mapping]]] = ...) -> None: ...

class StreamEventsResponse(_message.Message):
    __slots__ = ("sequence", "results")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    results: _containers.RepeatedCompositeFieldContainer[EventResult]
    def __init__(self, sequence: _Optional[int] = ..., results: _Optional[_Iterable[_Union[EventResult, _Mapping]]] = ...) -> None: ...

class EventResult(_message.Message):
    __slots__ = ("session_id", "event_id", "event_index", "duplicate", "action", "verdict", "error", "standing", "state_lost")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    STATE_LOST_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    event_id: str
    event_index: int
    duplicate: bool
    action: _verdict_pb2.Action
    verdict: _verdict_pb2.Verdict
    error: Error
    standing: _verdict_pb2.Standing
    state_lost: bool
    def __init__(self, session_id: _Optional[str] = ..., event_id: _Optional[str] = ..., event_index: _Optional[int] = ..., duplicate: bool = ..., action: _Optional[_Union[_verdict_pb2.Action, str]] = ..., verdict: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., standing: _Optional[_Union[_verdict_pb2.Standing, _Mapping]] = ..., state_lost: bool = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "reason", "field", "message", "retry_after")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    field: str
    message: str
    retry_after: _duration_pb2.Duration
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., field: _Optional[str] = ..., message: _Optional[str] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StreamDeltasRequest(_message.Message):
    __slots__ = ("deltas",)
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[_event_pb2.Delta]
    def __init__(self, deltas: _Optional[_Iterable[_Union[_event_pb2.Delta, _Mapping]]] = ...) -> None: ...

class StreamDeltasResponse(_message.Message):
    __slots__ = ("session_id", "agent_id", "turn_id", "action", "verdict", "end_of_turn", "error", "coalesced", "standing", "state_lost")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    END_OF_TURN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COALESCED_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    STATE_LOST_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    agent_id: str
    turn_id: str
    action: _verdict_pb2.Action
    verdict: _verdict_pb2.Verdict
    end_of_turn: bool
    error: Error
    coalesced: int
    standing: _verdict_pb2.Standing
    state_lost: bool
    def __init__(self, session_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., turn_id: _Optional[str] = ..., action: _Optional[_Union[_verdict_pb2.Action, str]] = ..., verdict: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ..., end_of_turn: bool = ..., error: _Optional[_Union[Error, _Mapping]] = ..., coalesced: _Optional[int] = ..., standing: _Optional[_Union[_verdict_pb2.Standing, _Mapping]] = ..., state_lost: bool = ...) -> None: ...
