"""Small parts that every folder may need: a dict that forgets, packages that may not be installed."""
