"""Batch inference: completions of a dataset's rows, each once, whatever is killed meanwhile."""
