-- What was measured of a card beside the work of a stage; and links, one direction a row, where
-- "leader" is the leader itself.
ALTER TABLE speeds ADD COLUMN cold_tflops REAL;
ALTER TABLE speeds ADD COLUMN matmul_tflops REAL;
ALTER TABLE speeds ADD COLUMN attention_tflops REAL;
ALTER TABLE speeds ADD COLUMN memory_bytes_s REAL;

CREATE TABLE link_figures (
    sender TEXT NOT NULL,
    taker TEXT NOT NULL,
    bytes_s REAL NOT NULL,
    latency_s REAL NOT NULL,
    path TEXT NOT NULL,
    measured_at REAL NOT NULL,
    PRIMARY KEY (sender, taker)
) STRICT, WITHOUT ROWID;
