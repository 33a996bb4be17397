-- Measured links, one direction a row. The taker "leader" is the leader itself, and so is the sender.
CREATE TABLE link_figures (
    sender TEXT NOT NULL,
    taker TEXT NOT NULL,
    bytes_s REAL NOT NULL,
    latency_s REAL NOT NULL,
    path TEXT NOT NULL,
    measured_at REAL NOT NULL,
    PRIMARY KEY (sender, taker)
) STRICT, WITHOUT ROWID;
