-- Measured speeds with blocks of several sizes (JSON list of {"layer_params", "tflops"}), and the
-- seconds that a block takes whatever it computes.

ALTER TABLE speeds ADD COLUMN block_s REAL;
ALTER TABLE speeds ADD COLUMN sizes TEXT NOT NULL DEFAULT '[]';
