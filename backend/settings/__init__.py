"""Sections of the operator's settings, and parts of `ServiceConfig` by subject."""
