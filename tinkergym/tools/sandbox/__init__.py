"""Python that policies write, in a process of its own with few rights; README.md states the threat model."""
