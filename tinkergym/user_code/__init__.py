"""What users' code returns and raises: numbers, coroutines, and errors as text."""
