-- Where each step went, by mark: JSON, {} when the fellow did not tell.
ALTER TABLE steps ADD COLUMN marks TEXT NOT NULL DEFAULT '{}';
