-- The first schema: who may call, which machines, what data, which jobs, and what they measured.

CREATE TABLE pools (
    pool TEXT PRIMARY KEY,
    made_by TEXT NOT NULL,
    created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
    token_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('read', 'train', 'admin')),
    pools TEXT NOT NULL, -- JSON list; [] = all
    sha256 TEXT NOT NULL UNIQUE,
    prefix TEXT NOT NULL,
    created_at REAL NOT NULL,
    last_used_at REAL,
    expires_at REAL,
    revoked_at REAL
) STRICT, WITHOUT ROWID;

CREATE TABLE invites (
    invite_id TEXT PRIMARY KEY,
    pool TEXT NOT NULL REFERENCES pools,
    sha256 TEXT NOT NULL UNIQUE,
    made_by TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    used_at REAL,
    credential_sha256 TEXT,
    fellow_id TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE fellows (
    fellow_id TEXT PRIMARY KEY,
    pool TEXT NOT NULL REFERENCES pools,
    credential_sha256 TEXT NOT NULL UNIQUE,
    hostname TEXT NOT NULL,
    version TEXT NOT NULL,
    joined_at REAL NOT NULL,
    removed_at REAL,
    reports_committed INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE speeds (
    fellow_id TEXT NOT NULL REFERENCES fellows,
    card_index INTEGER NOT NULL,
    number_format TEXT NOT NULL,
    tflops REAL NOT NULL,
    measured_at REAL NOT NULL,
    PRIMARY KEY (fellow_id, card_index, number_format)
) STRICT, WITHOUT ROWID;

CREATE TABLE buckets (
    pool TEXT NOT NULL REFERENCES pools,
    bucket TEXT NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (pool, bucket)
) STRICT, WITHOUT ROWID;

CREATE TABLE bucket_files (
    pool TEXT NOT NULL,
    bucket TEXT NOT NULL,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL, -- also names the file on disk
    size_bytes INTEGER NOT NULL,
    num_rows INTEGER NOT NULL,
    kinds TEXT NOT NULL, -- JSON {kind: rows}
    created_at REAL NOT NULL,
    PRIMARY KEY (pool, bucket, name),
    FOREIGN KEY (pool, bucket) REFERENCES buckets
) STRICT, WITHOUT ROWID;

CREATE TABLE token_files (
    cache_key TEXT PRIMARY KEY, -- SHA-256 over data, tokenizer, template, layout
    digest TEXT NOT NULL,
    told TEXT NOT NULL, -- JSON, what the tokenizer said of it
    created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE models (
    name TEXT PRIMARY KEY,
    revision TEXT NOT NULL,
    told TEXT NOT NULL, -- JSON: family, layers, parameters
    files TEXT NOT NULL, -- JSON {file: {sha256, size_bytes}}
    size_bytes INTEGER NOT NULL,
    created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE plans (
    plan_id TEXT NOT NULL,
    pool TEXT NOT NULL REFERENCES pools,
    plan TEXT NOT NULL, -- JSON, as the planner wrote it
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (plan_id, pool)
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, -- the order of submission
    job_id TEXT NOT NULL UNIQUE,
    pool TEXT NOT NULL REFERENCES pools,
    made_by TEXT NOT NULL,
    name TEXT NOT NULL,
    config TEXT NOT NULL, -- JSON, JobConfig
    state TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    plan_id TEXT,
    pinned INTEGER NOT NULL,
    plan TEXT, -- JSON, the plan it runs by
    model_id TEXT NOT NULL,
    revision TEXT,
    attempt INTEGER NOT NULL DEFAULT 0,
    steps INTEGER NOT NULL,
    step INTEGER NOT NULL DEFAULT 0,
    loss REAL,
    mean REAL NOT NULL DEFAULT 0, -- of the losses, exponential, biased
    mean_steps INTEGER NOT NULL DEFAULT 0, -- how many losses are in it
    counts TEXT NOT NULL DEFAULT '{}', -- JSON {name: count}
    error TEXT, -- untrusted: as the fellow told it
    error_is_echo INTEGER NOT NULL DEFAULT 0,
    adapter TEXT, -- JSON {file: {sha256, size_bytes}} once joined
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL
) STRICT;

CREATE INDEX jobs_by_pool ON jobs (pool, number);
CREATE INDEX jobs_by_state ON jobs (state, number);

CREATE TABLE stages (
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    attempt INTEGER NOT NULL,
    stage INTEGER NOT NULL,
    fellow_id TEXT NOT NULL REFERENCES fellows,
    hostname TEXT NOT NULL,
    work TEXT NOT NULL, -- JSON, StageOrder
    phase TEXT NOT NULL DEFAULT 'starting',
    public_key TEXT,
    endpoints TEXT,
    step INTEGER,
    loss REAL,
    weight_bytes INTEGER,
    adapter_sha256 TEXT, -- of the file received
    sent_bytes INTEGER,
    received_bytes INTEGER,
    PRIMARY KEY (job_id, attempt, stage)
) STRICT, WITHOUT ROWID;

CREATE INDEX stages_by_fellow ON stages (fellow_id, job_id);

CREATE TABLE peaks (
    job_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    stage INTEGER NOT NULL,
    card_index INTEGER NOT NULL,
    peak_bytes INTEGER NOT NULL,
    planned_bytes INTEGER NOT NULL,
    how TEXT NOT NULL,
    PRIMARY KEY (job_id, attempt, stage, card_index)
) STRICT, WITHOUT ROWID;

CREATE TABLE steps (
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    stage INTEGER NOT NULL,
    step INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    loss REAL NOT NULL,
    grad_norm REAL,
    learning_rate REAL NOT NULL,
    supervised_tokens INTEGER NOT NULL,
    step_s REAL NOT NULL,
    compute_s REAL NOT NULL,
    wait_s REAL NOT NULL,
    skipped INTEGER NOT NULL,
    PRIMARY KEY (job_id, stage, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE evaluations (
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    moment TEXT NOT NULL,
    step INTEGER NOT NULL,
    loss REAL NOT NULL,
    accuracy REAL NOT NULL,
    tokens INTEGER NOT NULL,
    sequences INTEGER NOT NULL,
    PRIMARY KEY (job_id, moment, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE requests (
    who TEXT NOT NULL,
    request_id TEXT NOT NULL,
    operation TEXT NOT NULL,
    arguments_sha256 TEXT NOT NULL,
    answer TEXT NOT NULL, -- JSON, without secrets
    created_at REAL NOT NULL,
    PRIMARY KEY (who, request_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX requests_by_age ON requests (created_at);
