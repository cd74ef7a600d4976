"""Start, measure and stop a real vLLM. Knows no study, no search and no table."""
