-- Needs: PostgreSQL 13 or newer with pgvector 0.7 or newer (halfvec), and whiten.
--
--   whiten embed BUNDLE --input sentences.txt --out vectors.jsonl
--   whiten embed BUNDLE "a query" --out query.jsonl
--   psql DATABASE -v dim=384 -f examples/pgvector.sql
--
-- vector has four bytes a number, halfvec two: it rounds to 11 significant bits. pgvector has no type of one byte.

\set ON_ERROR_STOP on
\timing off
CREATE EXTENSION IF NOT EXISTS vector;

-- Temporary tables: they hide yours of the same names, which stay as they are, and are gone when psql ends.
CREATE TEMPORARY TABLE lines (id bigserial PRIMARY KEY, line jsonb);
CREATE TEMPORARY TABLE queries (line jsonb);
\copy lines (line) from 'vectors.jsonl' with (format csv, delimiter e'\x01', quote e'\x02')
\copy queries (line) from 'query.jsonl' with (format csv, delimiter e'\x01', quote e'\x02')

CREATE TEMPORARY TABLE floats (id bigint PRIMARY KEY, text text, embedding vector(:dim));
CREATE TEMPORARY TABLE halves (id bigint PRIMARY KEY, text text, embedding halfvec(:dim));
INSERT INTO floats SELECT id, line->>'text', (line->>'embedding')::vector FROM lines;
INSERT INTO halves SELECT id, line->>'text', (line->>'embedding')::halfvec FROM lines;

CREATE INDEX ON floats USING hnsw (embedding vector_cosine_ops);
CREATE INDEX ON halves USING hnsw (embedding halfvec_cosine_ops);
ANALYZE floats, halves;

SELECT name, pg_size_pretty(pg_table_size(name)) AS table_size, pg_size_pretty(pg_indexes_size(name)) AS index_size
FROM (VALUES ('floats'::regclass), ('halves'::regclass)) AS stores (name);

\timing on
\echo vector
SELECT round((1 - (embedding <=> (SELECT (line->>'embedding')::vector FROM queries)))::numeric, 3) AS cosine, text
FROM floats ORDER BY embedding <=> (SELECT (line->>'embedding')::vector FROM queries) LIMIT 3;

\echo halfvec
SELECT round((1 - (embedding <=> (SELECT (line->>'embedding')::halfvec FROM queries)))::numeric, 3) AS cosine, text
FROM halves ORDER BY embedding <=> (SELECT (line->>'embedding')::halfvec FROM queries) LIMIT 3;
