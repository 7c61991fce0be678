"""A contextual bandit whose arms are words."""
