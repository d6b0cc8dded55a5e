from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from unstuck.v1 import event_pb2 as _event_pb2
from unstuck.v1 import verdict_pb2 as _verdict_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_STATUS_UNSPECIFIED: _ClassVar[SessionStatus]
    SESSION_STATUS_ACTIVE: _ClassVar[SessionStatus]
    SESSION_STATUS_LOOPING: _ClassVar[SessionStatus]
    SESSION_STATUS_TERMINATED: _ClassVar[SessionStatus]
    SESSION_STATUS_ENDED: _ClassVar[SessionStatus]
    SESSION_STATUS_QUARANTINED: _ClassVar[SessionStatus]

class TimelineKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIMELINE_KIND_UNSPECIFIED: _ClassVar[TimelineKind]
    TIMELINE_KIND_TOOL_CALL: _ClassVar[TimelineKind]
    TIMELINE_KIND_AGENT_TURN: _ClassVar[TimelineKind]
    TIMELINE_KIND_USER_TURN: _ClassVar[TimelineKind]
    TIMELINE_KIND_COMPACTION: _ClassVar[TimelineKind]
    TIMELINE_KIND_NEW_RUN: _ClassVar[TimelineKind]
SESSION_STATUS_UNSPECIFIED: SessionStatus
SESSION_STATUS_ACTIVE: SessionStatus
SESSION_STATUS_LOOPING: SessionStatus
SESSION_STATUS_TERMINATED: SessionStatus
SESSION_STATUS_ENDED: SessionStatus
SESSION_STATUS_QUARANTINED: SessionStatus
TIMELINE_KIND_UNSPECIFIED: TimelineKind
TIMELINE_KIND_TOOL_CALL: TimelineKind
TIMELINE_KIND_AGENT_TURN: TimelineKind
TIMELINE_KIND_USER_TURN: TimelineKind
TIMELINE_KIND_COMPACTION: TimelineKind
TIMELINE_KIND_NEW_RUN: TimelineKind

class Session(_message.Message):
    __slots__ = ("session_id", "status", "profile", "labels", "create_time", "last_event_time", "events", "turns", "usage", "agents", "trends", "last_verdicts", "wasted", "abstentions", "termination", "snoozed_until", "trend_samples", "standing", "disobeyed", "replica")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    TRENDS_FIELD_NUMBER: _ClassVar[int]
    LAST_VERDICTS_FIELD_NUMBER: _ClassVar[int]
    WASTED_FIELD_NUMBER: _ClassVar[int]
    ABSTENTIONS_FIELD_NUMBER: _ClassVar[int]
    TERMINATION_FIELD_NUMBER: _ClassVar[int]
    SNOOZED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    TREND_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    DISOBEYED_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    status: SessionStatus
    profile: str
    labels: _containers.ScalarMap[str, str]
    create_time: _timestamp_pb2.Timestamp
    last_event_time: _timestamp_pb2.Timestamp
    events: int
    turns: int
    usage: _event_pb2.Usage
    agents: int
    trends: _containers.RepeatedCompositeFieldContainer[DetectorTrend]
    last_verdicts: _containers.RepeatedCompositeFieldContainer[_verdict_pb2.Verdict]
    wasted: _verdict_pb2.Wasted
    abstentions: _containers.RepeatedCompositeFieldContainer[Abstention]
    termination: _verdict_pb2.Verdict
    snoozed_until: _timestamp_pb2.Timestamp
    trend_samples: _containers.RepeatedScalarFieldContainer[float]
    standing: _verdict_pb2.Standing
    disobeyed: _verdict_pb2.Wasted
    replica: str
    def __init__(self, session_id: _Optional[str] = ..., status: _Optional[_Union[SessionStatus, str]] = ..., profile: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., last_event_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., events: _Optional[int] = ..., turns: _Optional[int] = ..., usage: _Optional[_Union[_event_pb2.Usage, _Mapping]] = ..., agents: _Optional[int] = ..., trends: _Optional[_Iterable[_Union[DetectorTrend, _Mapping]]] = ..., last_verdicts: _Optional[_Iterable[_Union[_verdict_pb2.Verdict, _Mapping]]] = ..., wasted: _Optional[_Union[_verdict_pb2.Wasted, _Mapping]] = ..., abstentions: _Optional[_Iterable[_Union[Abstention, _Mapping]]] = ..., termination: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ..., snoozed_until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., trend_samples: _Optional[_Iterable[float]] = ..., standing: _Optional[_Union[_verdict_pb2.Standing, _Mapping]] = ..., disobeyed: _Optional[_Union[_verdict_pb2.Wasted, _Mapping]] = ..., replica: _Optional[str] = ...) -> None: ...

class DetectorTrend(_message.Message):
    __slots__ = ("agent_id", "detector", "trend")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    TREND_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    detector: str
    trend: _verdict_pb2.Trend
    def __init__(self, agent_id: _Optional[str] = ..., detector: _Optional[str] = ..., trend: _Optional[_Union[_verdict_pb2.Trend, _Mapping]] = ...) -> None: ...

class Abstention(_message.Message):
    __slots__ = ("detector", "field", "events")
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    detector: str
    field: str
    events: int
    def __init__(self, detector: _Optional[str] = ..., field: _Optional[str] = ..., events: _Optional[int] = ...) -> None: ...

class TimelineEntry(_message.Message):
    __slots__ = ("event_index", "time", "agent_id", "kind", "tool", "target", "operation", "outcome", "same", "loop_id", "trends")
    EVENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SAME_FIELD_NUMBER: _ClassVar[int]
    LOOP_ID_FIELD_NUMBER: _ClassVar[int]
    TRENDS_FIELD_NUMBER: _ClassVar[int]
    event_index: int
    time: _timestamp_pb2.Timestamp
    agent_id: str
    kind: TimelineKind
    tool: str
    target: str
    operation: _event_pb2.Operation
    outcome: _event_pb2.Outcome
    same: int
    loop_id: str
    trends: _containers.RepeatedCompositeFieldContainer[TrendSample]
    def __init__(self, event_index: _Optional[int] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., agent_id: _Optional[str] = ..., kind: _Optional[_Union[TimelineKind, str]] = ..., tool: _Optional[str] = ..., target: _Optional[str] = ..., operation: _Optional[_Union[_event_pb2.Operation, str]] = ..., outcome: _Optional[_Union[_event_pb2.Outcome, str]] = ..., same: _Optional[int] = ..., loop_id: _Optional[str] = ..., trends: _Optional[_Iterable[_Union[TrendSample, _Mapping]]] = ...) -> None: ...

class TrendSample(_message.Message):
    __slots__ = ("detector", "ema", "found")
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    EMA_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    detector: str
    ema: float
    found: bool
    def __init__(self, detector: _Optional[str] = ..., ema: _Optional[float] = ..., found: bool = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("detector", "rule", "threshold", "would_not_fire_if")
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    WOULD_NOT_FIRE_IF_FIELD_NUMBER: _ClassVar[int]
    detector: str
    rule: str
    threshold: str
    would_not_fire_if: str
    def __init__(self, detector: _Optional[str] = ..., rule: _Optional[str] = ..., threshold: _Optional[str] = ..., would_not_fire_if: _Optional[str] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("session_id", "profile", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    profile: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, session_id: _Optional[str] = ..., profile: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session", "durable")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    session: Session
    durable: bool
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., durable: bool = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class EndSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ResetSessionRequest(_message.Message):
    __slots__ = ("session_id", "reason")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    reason: str
    def __init__(self, session_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ResetSessionResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: _verdict_pb2.Verdict
    def __init__(self, verdict: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ...) -> None: ...

class TerminateSessionRequest(_message.Message):
    __slots__ = ("session_id", "reason")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    reason: str
    def __init__(self, session_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class TerminateSessionResponse(_message.Message):
    __slots__ = ("verdict", "previous_status")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_STATUS_FIELD_NUMBER: _ClassVar[int]
    verdict: _verdict_pb2.Verdict
    previous_status: SessionStatus
    def __init__(self, verdict: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ..., previous_status: _Optional[_Union[SessionStatus, str]] = ...) -> None: ...

class SnoozeSessionRequest(_message.Message):
    __slots__ = ("session_id", "duration", "reason")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    duration: _duration_pb2.Duration
    reason: str
    def __init__(self, session_id: _Optional[str] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class SnoozeSessionResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: _verdict_pb2.Verdict
    def __init__(self, verdict: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ...) -> None: ...

class RateVerdictRequest(_message.Message):
    __slots__ = ("verdict_id", "rating", "reason")
    VERDICT_ID_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    verdict_id: str
    rating: _verdict_pb2.Rating
    reason: str
    def __init__(self, verdict_id: _Optional[str] = ..., rating: _Optional[_Union[_verdict_pb2.Rating, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class RateVerdictResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: _verdict_pb2.Verdict
    def __init__(self, verdict: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("session", "timeline", "explanations")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    EXPLANATIONS_FIELD_NUMBER: _ClassVar[int]
    session: Session
    timeline: _containers.RepeatedCompositeFieldContainer[TimelineEntry]
    explanations: _containers.RepeatedCompositeFieldContainer[Explanation]
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., timeline: _Optional[_Iterable[_Union[TimelineEntry, _Mapping]]] = ..., explanations: _Optional[_Iterable[_Union[Explanation, _Mapping]]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "status", "labels", "worst_first", "search", "detector", "min_action")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    WORST_FIRST_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    MIN_ACTION_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    status: SessionStatus
    labels: _containers.ScalarMap[str, str]
    worst_first: bool
    search: str
    detector: str
    min_action: _verdict_pb2.Action
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., status: _Optional[_Union[SessionStatus, str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., worst_first: bool = ..., search: _Optional[str] = ..., detector: _Optional[str] = ..., min_action: _Optional[_Union[_verdict_pb2.Action, str]] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_page_token", "data_since", "replicas", "counts")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DATA_SINCE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    next_page_token: str
    data_since: _timestamp_pb2.Timestamp
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    counts: _containers.ScalarMap[str, int]
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., data_since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("name", "address", "version", "sessions", "events_per_second", "health")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    version: str
    sessions: int
    events_per_second: int
    health: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., sessions: _Optional[int] = ..., events_per_second: _Optional[int] = ..., health: _Optional[str] = ...) -> None: ...

class WatchVerdictsRequest(_message.Message):
    __slots__ = ("session_id", "labels", "detector", "min_action", "after_verdict_id")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    MIN_ACTION_FIELD_NUMBER: _ClassVar[int]
    AFTER_VERDICT_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    labels: _containers.ScalarMap[str, str]
    detector: str
    min_action: _verdict_pb2.Action
    after_verdict_id: str
    def __init__(self, session_id: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., detector: _Optional[str] = ..., min_action: _Optional[_Union[_verdict_pb2.Action, str]] = ..., after_verdict_id: _Optional[str] = ...) -> None: ...

class WatchVerdictsResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: _verdict_pb2.Verdict
    def __init__(self, verdict: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ...) -> None: ...

class ListVerdictsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "session_id", "labels", "detector", "min_action", "start_time", "end_time", "newest_first", "rated_only")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DETECTOR_FIELD_NUMBER: _ClassVar[int]
    MIN_ACTION_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    RATED_ONLY_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    session_id: str
    labels: _containers.ScalarMap[str, str]
    detector: str
    min_action: _verdict_pb2.Action
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    newest_first: bool
    rated_only: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., session_id: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., detector: _Optional[str] = ..., min_action: _Optional[_Union[_verdict_pb2.Action, str]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., newest_first: bool = ..., rated_only: bool = ...) -> None: ...

class ListVerdictsResponse(_message.Message):
    __slots__ = ("verdicts", "next_page_token")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[_verdict_pb2.Verdict]
    next_page_token: str
    def __init__(self, verdicts: _Optional[_Iterable[_Union[_verdict_pb2.Verdict, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
