"""A contextual bandit with words for arms."""
