"""Whose a request is, as its session says. Engines share no cache between owners."""

from __future__ import annotations


def split_session(session_id: str) -> tuple[str, str]:
    """Split `owner/session`; without a slash there is no owner, with nothing after it no session."""
    owner, slash, session = session_id.partition("/")
    return (owner, session) if slash else ("", session_id)
