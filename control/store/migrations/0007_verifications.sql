-- Split runs held against one process: the newest of a job, and the jobs that were their probes.

ALTER TABLE jobs ADD COLUMN probe_of TEXT REFERENCES jobs (job_id);

CREATE TABLE verifications (
    job_id TEXT PRIMARY KEY REFERENCES jobs (job_id),
    verify_id TEXT NOT NULL UNIQUE,
    probe_job_id TEXT NOT NULL REFERENCES jobs (job_id),
    state TEXT NOT NULL, -- probing, waiting, comparing, done, failed
    reason TEXT NOT NULL,
    error TEXT, -- as the fellow told it, cleaned
    differs TEXT NOT NULL, -- JSON: what the probe does otherwise than the job
    fellow_id TEXT, -- who trains in one process
    work TEXT, -- JSON: the order of the one process
    told TEXT NOT NULL, -- JSON: what it found; {} before
    asked_at REAL NOT NULL,
    ended_at REAL
) STRICT, WITHOUT ROWID;
