"""Evaluation of a policy: episodes, records, scores with intervals, comparisons and baselines."""
