"""Asking others over a network: models behind a URL, and how long to wait before another try."""
