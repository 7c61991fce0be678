"""Datasets of conversations and preferences, rendered to token ids in the client."""
