"""Images as files: read from what an environment shows, checked, and known by the hash of their bytes."""
