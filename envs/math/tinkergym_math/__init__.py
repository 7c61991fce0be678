"""Arithmetic from a dataset with training and test splits."""
