"""Journeys share a service: a package, so that pytest stops it behind the last of them."""
