"""Calls of tools in text: what a call is, and the formats in which models write it."""
