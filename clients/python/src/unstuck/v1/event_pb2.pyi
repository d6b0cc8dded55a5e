from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_UNSPECIFIED: _ClassVar[Operation]
    OPERATION_READ: _ClassVar[Operation]
    OPERATION_WRITE: _ClassVar[Operation]
    OPERATION_EDIT: _ClassVar[Operation]
    OPERATION_EXECUTE: _ClassVar[Operation]
    OPERATION_SEARCH: _ClassVar[Operation]
    OPERATION_OTHER: _ClassVar[Operation]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_OK: _ClassVar[Outcome]
    OUTCOME_ERROR: _ClassVar[Outcome]
    OUTCOME_BLOCKED: _ClassVar[Outcome]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_AGENT: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_SYSTEM: _ClassVar[Role]

class MarkerKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MARKER_KIND_UNSPECIFIED: _ClassVar[MarkerKind]
    MARKER_KIND_COMPACTION: _ClassVar[MarkerKind]
    MARKER_KIND_NEW_RUN: _ClassVar[MarkerKind]

class Channel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_UNSPECIFIED: _ClassVar[Channel]
    CHANNEL_VISIBLE: _ClassVar[Channel]
    CHANNEL_REASONING: _ClassVar[Channel]
OPERATION_UNSPECIFIED: Operation
OPERATION_READ: Operation
OPERATION_WRITE: Operation
OPERATION_EDIT: Operation
OPERATION_EXECUTE: Operation
OPERATION_SEARCH: Operation
OPERATION_OTHER: Operation
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_OK: Outcome
OUTCOME_ERROR: Outcome
OUTCOME_BLOCKED: Outcome
ROLE_UNSPECIFIED: Role
ROLE_AGENT: Role
ROLE_USER: Role
ROLE_SYSTEM: Role
MARKER_KIND_UNSPECIFIED: MarkerKind
MARKER_KIND_COMPACTION: MarkerKind
MARKER_KIND_NEW_RUN: MarkerKind
CHANNEL_UNSPECIFIED: Channel
CHANNEL_VISIBLE: Channel
CHANNEL_REASONING: Channel

class Event(_message.Message):
    __slots__ = ("session_id", "event_id", "time", "agent_id", "round_id", "state_hash", "usage", "tool_call", "turn", "marker")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    event_id: str
    time: _timestamp_pb2.Timestamp
    agent_id: str
    round_id: str
    state_hash: str
    usage: Usage
    tool_call: ToolCall
    turn: Turn
    marker: Marker
    def __init__(self, session_id: _Optional[str] = ..., event_id: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., agent_id: _Optional[str] = ..., round_id: _Optional[str] = ..., state_hash: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., tool_call: _Optional[_Union[ToolCall, _Mapping]] = ..., turn: _Optional[_Union[Turn, _Mapping]] = ..., marker: _Optional[_Union[Marker, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "output_tokens", "cost_usd", "cached_input_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    CACHED_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    output_tokens: int
    cost_usd: float
    cached_input_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cost_usd: _Optional[float] = ..., cached_input_tokens: _Optional[int] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("tool", "operation", "target", "args_json", "args", "args_hash", "outcome", "error", "result", "result_hash", "content_hash")
    TOOL_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    ARGS_HASH_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RESULT_HASH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    tool: str
    operation: Operation
    target: str
    args_json: str
    args: _struct_pb2.Struct
    args_hash: str
    outcome: Outcome
    error: str
    result: str
    result_hash: str
    content_hash: str
    def __init__(self, tool: _Optional[str] = ..., operation: _Optional[_Union[Operation, str]] = ..., target: _Optional[str] = ..., args_json: _Optional[str] = ..., args: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., args_hash: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., error: _Optional[str] = ..., result: _Optional[str] = ..., result_hash: _Optional[str] = ..., content_hash: _Optional[str] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("turn_id", "role", "text")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    role: Role
    text: str
    def __init__(self, turn_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., text: _Optional[str] = ...) -> None: ...

class Marker(_message.Message):
    __slots__ = ("kind", "context_tokens")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    kind: MarkerKind
    context_tokens: int
    def __init__(self, kind: _Optional[_Union[MarkerKind, str]] = ..., context_tokens: _Optional[int] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("session_id", "agent_id", "turn_id", "channel", "text", "end_of_turn")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    END_OF_TURN_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    agent_id: str
    turn_id: str
    channel: Channel
    text: str
    end_of_turn: bool
    def __init__(self, session_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., turn_id: _Optional[str] = ..., channel: _Optional[_Union[Channel, str]] = ..., text: _Optional[str] = ..., end_of_turn: bool = ...) -> None: ...
