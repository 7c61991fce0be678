"""Environments over WebSocket: a server that runs them, and its client."""
