"""Playing episodes: executors, the player, and the worker that leases episodes from a service."""
