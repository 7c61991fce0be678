"""Images as files: read from observations, checked, and identified by the hash of their bytes."""
