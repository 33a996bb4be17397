-- Saved states of running jobs, what a job went on from, and which Swarm wrote this file.

CREATE TABLE snapshots (
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    stage INTEGER NOT NULL,
    num_stages INTEGER NOT NULL,
    first_layer INTEGER NOT NULL,
    last_layer INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    received_at REAL NOT NULL,
    PRIMARY KEY (job_id, attempt, step, stage)
) STRICT, WITHOUT ROWID;

-- A step that counts: every stage's file arrived and checked out. Written once, with the last file.
CREATE TABLE saved_steps (
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    saved_at REAL NOT NULL,
    PRIMARY KEY (job_id, attempt, step)
) STRICT, WITHOUT ROWID;

ALTER TABLE jobs ADD COLUMN saved_step INTEGER; -- the newest that counts, of a file that is there
ALTER TABLE jobs ADD COLUMN saved_at REAL;
ALTER TABLE jobs ADD COLUMN saving_paused TEXT NOT NULL DEFAULT ''; -- why nothing is saved now
ALTER TABLE jobs ADD COLUMN resumes TEXT NOT NULL DEFAULT '[]'; -- JSON list, one for each
ALTER TABLE jobs ADD COLUMN loss_of TEXT; -- JSON while a job looks for a place to go on

-- Which stage was the last one at a step: it may have another number in a later attempt.
CREATE INDEX steps_by_step ON steps (job_id, step, attempt, stage);

CREATE TABLE about (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
