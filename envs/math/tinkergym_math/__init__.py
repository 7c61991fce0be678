"""Arithmetic from a data set with train and test splits."""
