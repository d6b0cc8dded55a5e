-- Schema version 2 of unstuck.db: live sessions, so that they survive a restart.
-- docs/store.md describes it for people who query it.

-- A head is saved while the service runs, what the detectors saw (`recent`) only when it
-- stops. They are not part of the audit log; if the files are too large, they go after the
-- records of the log and before tombstones.
CREATE TABLE sessions (
    tenant       TEXT    NOT NULL,     -- 'default' without tenants
    session      TEXT    NOT NULL,
    profile      TEXT    NOT NULL,
    labels       TEXT    NOT NULL,     -- a JSON object
    last_seen_ms INTEGER NOT NULL,     -- the arrival of the latest input
    head         BLOB    NOT NULL,     -- counts, reported loops, event ids as signatures
    recent       BLOB,                 -- what the detectors saw, encrypted with store.key_file
    UNIQUE (tenant, session)
) STRICT;
CREATE INDEX sessions_by_time ON sessions (last_seen_ms);
