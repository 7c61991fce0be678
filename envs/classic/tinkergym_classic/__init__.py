"""Gymnasium's toy-text environments and CartPole as text."""
