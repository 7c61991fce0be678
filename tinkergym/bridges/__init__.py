"""Bridges to other libraries: their games as our environments, and our environments for their trainers."""
