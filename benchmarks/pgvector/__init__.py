"""Measure what PostgreSQL with pgvector finds and how fast, beside FAISS and usearch with the same bytes."""
