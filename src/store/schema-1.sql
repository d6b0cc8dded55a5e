-- Schema version 1 of unstuck.db. docs/store.md describes it for people who query it.
-- A later version adds a file schema-2.sql, which is applied to databases of version 1.

-- The audit log: one row per verdict and operator action, linked by hashes. The columns
-- between `kind` and `body` repeat fields of `body` so that they can be filtered by.
CREATE TABLE records (
    record        INTEGER PRIMARY KEY, -- position in the log, from 1, without gaps
    verdict_id    BLOB    NOT NULL,    -- 16 bytes; sorts by the time of issue
    kind          INTEGER NOT NULL,    -- 0 verdict, 1 termination, 2 reset, 3 snooze, 4 withdrawal
    tenant        TEXT    NOT NULL,    -- 'default' without tenants
    session       TEXT    NOT NULL,
    agent         TEXT    NOT NULL,    -- empty: the main agent
    time_ms       INTEGER NOT NULL,    -- milliseconds since 1970
    detector      TEXT    NOT NULL,    -- 'operator': an operator acted
    action        INTEGER NOT NULL,    -- 0 none, 1 alert … 9 terminate
    shadow        INTEGER NOT NULL,
    operator      TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    profile       TEXT    NOT NULL,
    wasted_events INTEGER NOT NULL,
    wasted_tokens INTEGER NOT NULL,
    wasted_usd    REAL    NOT NULL,
    labels        TEXT    NOT NULL,    -- a JSON object
    body          BLOB    NOT NULL,    -- the whole verdict, as protobuf
    hash          BLOB    NOT NULL,    -- 32 bytes; covers this record and all before it
    withdrawn     INTEGER NOT NULL DEFAULT 0 -- 1: refused after all, see the later withdrawal
) STRICT;
CREATE UNIQUE INDEX records_by_id ON records (verdict_id);
CREATE INDEX records_by_tenant ON records (tenant, verdict_id);
CREATE INDEX records_by_session ON records (tenant, session, verdict_id);
CREATE INDEX records_by_detector ON records (tenant, detector, verdict_id);
CREATE INDEX records_by_time ON records (tenant, time_ms, verdict_id);

CREATE TABLE record_labels (
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    verdict_id BLOB NOT NULL,
    PRIMARY KEY (tenant, name, value, verdict_id)
) STRICT, WITHOUT ROWID;

-- Terminations in force. They outlive their records in the log.
CREATE TABLE tombstones (
    verdict_id BLOB PRIMARY KEY,
    tenant     TEXT NOT NULL,
    session    TEXT NOT NULL,
    agent      TEXT NOT NULL,          -- empty: the whole session
    body       BLOB NOT NULL,
    lifted_by  BLOB                    -- the verdict id of the reset, if there was one
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_by_session ON tombstones (tenant, session);
CREATE INDEX tombstones_lifted ON tombstones (lifted_by) WHERE lifted_by IS NOT NULL;

-- The newest snooze of each session, and earlier ones until they are removed.
CREATE TABLE snoozes (
    verdict_id BLOB PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    until_ms   INTEGER NOT NULL,
    lifted_by  BLOB
) STRICT, WITHOUT ROWID;
CREATE INDEX snoozes_by_session ON snoozes (tenant, session);

-- One row: what must agree with the other tables.
CREATE TABLE chain (
    one            INTEGER PRIMARY KEY CHECK (one = 1),
    removed        INTEGER NOT NULL,   -- records before the first one in `records`
    removed_hash   BLOB    NOT NULL,   -- the hash of the last of them
    removed_id     BLOB    NOT NULL,   -- the greatest verdict id among them
    tombstone_sum  BLOB    NOT NULL    -- 16 bytes; the sum of the hashes of all tombstones in force
) STRICT;

-- For people: names instead of numbers, ids as the API prints them.
CREATE VIEW verdicts AS
SELECT
    record,
    lower(substr(hex(verdict_id), 1, 8) || '-' || substr(hex(verdict_id), 9, 4) || '-' ||
          substr(hex(verdict_id), 13, 4) || '-' || substr(hex(verdict_id), 17, 4) || '-' ||
          substr(hex(verdict_id), 21, 12)) AS verdict_id,
    strftime('%Y-%m-%dT%H:%M:%SZ', time_ms / 1000, 'unixepoch') AS time,
    tenant, session, agent, detector,
    CASE action WHEN 1 THEN 'alert' WHEN 2 THEN 'warn' WHEN 3 THEN 'throttle'
        WHEN 4 THEN 'checkpoint' WHEN 5 THEN 'ask' WHEN 6 THEN 'block' WHEN 7 THEN 'break'
        WHEN 8 THEN 'escalate' WHEN 9 THEN 'terminate' ELSE '' END AS action,
    shadow, reason, profile, wasted_events, wasted_tokens, wasted_usd, labels
FROM records WHERE kind < 4 AND NOT withdrawn;

CREATE VIEW operator_actions AS
SELECT
    record,
    strftime('%Y-%m-%dT%H:%M:%SZ', time_ms / 1000, 'unixepoch') AS time,
    operator,
    CASE kind WHEN 1 THEN 'terminate' WHEN 2 THEN 'reset' WHEN 3 THEN 'snooze'
        WHEN 4 THEN 'withdrawn' ELSE '' END AS action,
    tenant, session, agent, reason
FROM records WHERE detector = 'operator';
