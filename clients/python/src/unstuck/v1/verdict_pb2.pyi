from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Rating(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RATING_UNSPECIFIED: _ClassVar[Rating]
    RATING_RIGHT: _ClassVar[Rating]
    RATING_FALSE_ALARM: _ClassVar[Rating]

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNSPECIFIED: _ClassVar[Action]
    ACTION_ALERT: _ClassVar[Action]
    ACTION_WARN: _ClassVar[Action]
    ACTION_THROTTLE: _ClassVar[Action]
    ACTION_CHECKPOINT: _ClassVar[Action]
    ACTION_ASK: _ClassVar[Action]
    ACTION_BLOCK: _ClassVar[Action]
    ACTION_BREAK: _ClassVar[Action]
    ACTION_ESCALATE: _ClassVar[Action]
    ACTION_TERMINATE: _ClassVar[Action]

class TrendLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TREND_LEVEL_UNSPECIFIED: _ClassVar[TrendLevel]
    TREND_LEVEL_BLIP: _ClassVar[TrendLevel]
    TREND_LEVEL_TREND: _ClassVar[TrendLevel]
    TREND_LEVEL_CHRONIC: _ClassVar[TrendLevel]
RATING_UNSPECIFIED: Rating
RATING_RIGHT: Rating
RATING_FALSE_ALARM: Rating
ACTION_UNSPECIFIED: Action
ACTION_ALERT: Action
ACTION_WARN: Action
ACTION_THROTTLE: Action
ACTION_CHECKPOINT: Action
ACTION_ASK: Action
ACTION_BLOCK: Action
ACTION_BREAK: Action
ACTION_ESCALATE: Action
ACTION_TERMINATE: Action
TREND_LEVEL_UNSPECIFIED: TrendLevel
TREND_LEVEL_BLIP: TrendLevel
TREND_LEVEL_TREND: TrendLevel
TREND_LEVEL_CHRONIC: TrendLevel

class Verdict(_message.Message):
    __slots__ = ("verdict_id", "session_id", "agent_id", "time", "event_index", "action", "detector", "also", "pattern", "reason", "confidence", "correction", "loop_id", "members", "trend", "evidence", "wasted", "retry_after", "durable", "shadow", "operator", "feedback")
    VERDICT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    EVENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    CORRECTION_FIELD_NUMBER: _ClassVar[int]
    LOOP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TREND_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    WASTED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    verdict_id: str
    session_id: str
    agent_id: str
    time: _timestamp_pb2.Timestamp
    event_index: int
    action: Action
    detector: str
    also: _containers.RepeatedScalarFieldContainer[str]
    pattern: str
    reason: str
    confidence: float
    correction: str
    loop_id: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    trend: Trend
    evidence: Evidence
    wasted: Wasted
    retry_after: _duration_pb2.Duration
    durable: bool
    shadow: bool
    operator: str
    feedback: Feedback
    def __init__(self, verdict_id: _Optional[str] = ..., session_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., event_index: _Optional[int] = ..., action: _Optional[_Union[Action, str]] = ..., detector: _Optional[str] = ..., also: _Optional[_Iterable[str]] = ..., pattern: _Optional[str] = ..., reason: _Optional[str] = ..., confidence: _Optional[float] = ..., correction: _Optional[str] = ..., loop_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., trend: _Optional[_Union[Trend, _Mapping]] = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ..., wasted: _Optional[_Union[Wasted, _Mapping]] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., durable: bool = ..., shadow: bool = ..., operator: _Optional[str] = ..., feedback: _Optional[_Union[Feedback, _Mapping]] = ...) -> None: ...

class Feedback(_message.Message):
    __slots__ = ("rating", "operator", "reason", "time")
    RATING_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    rating: Rating
    operator: str
    reason: str
    time: _timestamp_pb2.Timestamp
    def __init__(self, rating: _Optional[_Union[Rating, str]] = ..., operator: _Optional[str] = ..., reason: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("tool", "target", "event_id", "call_key", "args")
    TOOL_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_KEY_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    tool: str
    target: str
    event_id: str
    call_key: str
    args: str
    def __init__(self, tool: _Optional[str] = ..., target: _Optional[str] = ..., event_id: _Optional[str] = ..., call_key: _Optional[str] = ..., args: _Optional[str] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("action", "verdict_id", "since", "blocked")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    action: Action
    verdict_id: str
    since: _timestamp_pb2.Timestamp
    blocked: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, action: _Optional[_Union[Action, str]] = ..., verdict_id: _Optional[str] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., blocked: _Optional[_Iterable[str]] = ...) -> None: ...

class Trend(_message.Message):
    __slots__ = ("ema", "level")
    EMA_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    ema: float
    level: TrendLevel
    def __init__(self, ema: _Optional[float] = ..., level: _Optional[_Union[TrendLevel, str]] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("count", "period", "similarity", "event_indexes", "excerpt")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    EVENT_INDEXES_FIELD_NUMBER: _ClassVar[int]
    EXCERPT_FIELD_NUMBER: _ClassVar[int]
    count: int
    period: int
    similarity: float
    event_indexes: _containers.RepeatedScalarFieldContainer[int]
    excerpt: str
    def __init__(self, count: _Optional[int] = ..., period: _Optional[int] = ..., similarity: _Optional[float] = ..., event_indexes: _Optional[_Iterable[int]] = ..., excerpt: _Optional[str] = ...) -> None: ...

class Wasted(_message.Message):
    __slots__ = ("events", "tokens", "cost_usd", "cached_tokens")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    events: int
    tokens: int
    cost_usd: float
    cached_tokens: int
    def __init__(self, events: _Optional[int] = ..., tokens: _Optional[int] = ..., cost_usd: _Optional[float] = ..., cached_tokens: _Optional[int] = ...) -> None: ...
