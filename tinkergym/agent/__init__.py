"""The renderer, the agent loop (one seat of an episode) and the coordinator (several): no input or output."""
