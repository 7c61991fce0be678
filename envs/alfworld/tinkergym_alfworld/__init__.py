"""Household tasks in text: ALFWorld's official games, and small ones made from its domain and grammar."""
