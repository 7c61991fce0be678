"""Drawn geometry: questions about a picture."""
