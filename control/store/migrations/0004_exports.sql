-- Whole checkpoints that fellows make of jobs' results: one of a job at a time.

CREATE TABLE exports (
    job_id TEXT PRIMARY KEY REFERENCES jobs (job_id),
    export_id TEXT NOT NULL UNIQUE,
    dtype TEXT, -- null: each tensor as it is
    state TEXT NOT NULL, -- waiting, running, done, failed
    reason TEXT NOT NULL,
    error TEXT, -- as the fellow told it, cleaned
    fellow_id TEXT,
    asked_at REAL NOT NULL,
    ended_at REAL,
    base_license TEXT,
    files TEXT NOT NULL -- JSON: {name: {sha256, size_bytes}}, of what is whole here
) STRICT, WITHOUT ROWID;
