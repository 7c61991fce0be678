"""Values returned and errors raised by users' code: numbers, coroutines, errors as text, and processes."""
