-- A judgements database as the first release made it.
CREATE TABLE attempts (
  input_hash TEXT NOT NULL,
  sample INTEGER NOT NULL,
  benchmark TEXT NOT NULL,
  instruction_id TEXT NOT NULL,
  turn INTEGER NOT NULL,
  model_a TEXT NOT NULL,
  model_b TEXT,
  orientation TEXT,
  protocol TEXT,
  template_hash TEXT,
  answer_a TEXT,
  answer_b TEXT,
  number INTEGER,
  reason TEXT NOT NULL,
  detail TEXT,
  output TEXT,
  finish_reason TEXT,
  input_tokens INTEGER,
  output_tokens INTEGER,
  cost_usd FLOAT,
  created_at TEXT NOT NULL,
  run_id TEXT NOT NULL
);
CREATE TABLE claims (
  input_hash TEXT NOT NULL,
  sample INTEGER NOT NULL,
  owner TEXT NOT NULL,
  expires_at FLOAT NOT NULL,
  PRIMARY KEY (input_hash, sample)
);
CREATE TABLE meta (
  "key" TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY ("key")
);
CREATE TABLE responses (
  input_hash TEXT NOT NULL,
  sample INTEGER NOT NULL,
  input_text TEXT NOT NULL,
  output TEXT NOT NULL,
  reasoning TEXT,
  finish_reason TEXT,
  top_logprobs TEXT,
  origin TEXT NOT NULL,
  served_model TEXT,
  fingerprint TEXT,
  backend_version TEXT,
  input_tokens INTEGER,
  cached_tokens INTEGER,
  output_tokens INTEGER,
  reasoning_tokens INTEGER,
  cost_usd FLOAT,
  latency_s FLOAT,
  created_at TEXT NOT NULL,
  created_by TEXT NOT NULL,
  run_id TEXT NOT NULL,
  PRIMARY KEY (input_hash, sample)
);
CREATE TABLE subjects (
  subject_key TEXT NOT NULL,
  input_hash TEXT NOT NULL,
  sample INTEGER NOT NULL,
  benchmark TEXT NOT NULL,
  instruction_id TEXT NOT NULL,
  turn INTEGER NOT NULL,
  model_a TEXT NOT NULL,
  model_b TEXT,
  orientation TEXT,
  protocol TEXT,
  template_hash TEXT,
  answer_a TEXT,
  answer_b TEXT,
  run_id TEXT NOT NULL,
  PRIMARY KEY (subject_key)
);
CREATE TABLE superseded (
  input_hash TEXT NOT NULL,
  sample INTEGER NOT NULL,
  input_text TEXT NOT NULL,
  output TEXT NOT NULL,
  reasoning TEXT,
  finish_reason TEXT,
  top_logprobs TEXT,
  origin TEXT NOT NULL,
  served_model TEXT,
  fingerprint TEXT,
  backend_version TEXT,
  input_tokens INTEGER,
  cached_tokens INTEGER,
  output_tokens INTEGER,
  reasoning_tokens INTEGER,
  cost_usd FLOAT,
  latency_s FLOAT,
  created_at TEXT NOT NULL,
  created_by TEXT NOT NULL,
  run_id TEXT NOT NULL,
  superseded_at TEXT NOT NULL
);
CREATE TABLE tombstones (
  scope TEXT NOT NULL,
  "key" TEXT NOT NULL,
  deleted_at TEXT NOT NULL,
  PRIMARY KEY (scope, "key")
);
CREATE INDEX subjects_by_answer ON subjects (input_hash, sample);
CREATE VIEW judgements AS SELECT s.benchmark AS benchmark, s.instruction_id AS instruction_id, s.turn AS turn, s.model_a AS model_a, s.model_b AS model_b, s.orientation AS orientation, s.protocol AS protocol, s.template_hash AS template_hash, s.answer_a AS answer_a, s.answer_b AS answer_b, (SELECT value FROM meta WHERE key = 'model') AS judge, r.input_hash AS input_hash, r.sample AS sample, r.input_text AS input_text, r.output AS output, r.reasoning AS reasoning, r.finish_reason AS finish_reason, r.top_logprobs AS top_logprobs, r.origin AS origin, r.served_model AS served_model, r.fingerprint AS fingerprint, r.backend_version AS backend_version, r.input_tokens AS input_tokens, r.cached_tokens AS cached_tokens, r.output_tokens AS output_tokens, r.reasoning_tokens AS reasoning_tokens, r.cost_usd AS cost_usd, r.latency_s AS latency_s, r.created_at AS created_at, r.created_by AS created_by, s.run_id AS subject_run_id, r.run_id AS run_id, s.subject_key AS subject_key FROM subjects AS s JOIN responses AS r ON r.input_hash = s.input_hash AND r.sample = s.sample;
PRAGMA user_version=1;
