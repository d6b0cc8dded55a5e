-- Schema version 3 of unstuck.db: ratings of verdicts, what was sent after a termination,
-- and indexes for combined filters. docs/store.md describes it for people who query it.

-- What was sent after a termination, as of its last record of kind 5.
ALTER TABLE tombstones ADD COLUMN disobeyed_events INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tombstones ADD COLUMN disobeyed_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tombstones ADD COLUMN disobeyed_usd    REAL    NOT NULL DEFAULT 0;
CREATE INDEX tombstones_disobeyed ON tombstones (verdict_id) WHERE disobeyed_events > 0;

-- What operators said of verdicts. The newest rating of a verdict counts; earlier ones stay
-- for a while, because a refused rating is undone. Ratings outlive their records in the log.
CREATE TABLE ratings (
    tenant     TEXT    NOT NULL,       -- 'default' without tenants
    verdict_id BLOB    NOT NULL,       -- the verdict that was rated
    rating_id  BLOB    NOT NULL,       -- the verdict id of the record of kind 6
    session    TEXT    NOT NULL,
    detector   TEXT    NOT NULL,       -- the detector of the rated verdict
    rating     INTEGER NOT NULL,       -- 1 right, 2 false alarm
    operator   TEXT    NOT NULL,
    reason     TEXT    NOT NULL,       -- may be empty
    time_ms    INTEGER NOT NULL,       -- milliseconds since 1970
    PRIMARY KEY (tenant, verdict_id, rating_id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX ratings_by_time ON ratings (tenant, rating_id);

-- Facts about the database. `data_since_ms`: there are no data from before this time;
-- `last_run_ms`: the service ran at this time; `sessions_removed_ms`: saved sessions were
-- removed because the files were too large.
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX records_by_detector_time ON records (tenant, detector, time_ms, verdict_id);
CREATE INDEX records_by_action ON records (tenant, action, verdict_id);

DROP VIEW operator_actions;
CREATE VIEW operator_actions AS
SELECT
    record,
    strftime('%Y-%m-%dT%H:%M:%SZ', time_ms / 1000, 'unixepoch') AS time,
    operator,
    CASE kind WHEN 1 THEN 'terminate' WHEN 2 THEN 'reset' WHEN 3 THEN 'snooze'
        WHEN 4 THEN 'withdrawn' WHEN 6 THEN 'rate' ELSE '' END AS action,
    tenant, session, agent, reason
FROM records WHERE detector = 'operator';

-- For people: the rating of each rated verdict.
CREATE VIEW rated_verdicts AS
SELECT
    lower(substr(hex(verdict_id), 1, 8) || '-' || substr(hex(verdict_id), 9, 4) || '-' ||
          substr(hex(verdict_id), 13, 4) || '-' || substr(hex(verdict_id), 17, 4) || '-' ||
          substr(hex(verdict_id), 21, 12)) AS verdict_id,
    strftime('%Y-%m-%dT%H:%M:%SZ', time_ms / 1000, 'unixepoch') AS time,
    tenant, session, detector,
    CASE rating WHEN 1 THEN 'right' WHEN 2 THEN 'false_alarm' ELSE '' END AS rating,
    operator, reason
FROM ratings AS newest
WHERE rating_id = (SELECT max(rating_id) FROM ratings
                   WHERE tenant = newest.tenant AND verdict_id = newest.verdict_id);
