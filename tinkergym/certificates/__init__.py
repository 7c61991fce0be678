"""Certificates of runs: the checks of recorded facts, bundles, signatures, and their verification."""

from tinkergym.certificates.verification import Verification, verify

__all__ = ["Verification", "verify"]
