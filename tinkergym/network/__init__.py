"""Asking others over a network: models behind a URL."""
