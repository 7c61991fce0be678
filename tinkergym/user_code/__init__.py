"""Values returned and errors raised by users' code: numbers, coroutines, and errors as text."""
