"""Gymnasium's toy-text environments and CartPole, in words."""
