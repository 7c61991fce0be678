"""Small parts that every folder may need: a dict that forgets, waits, optional packages, late names, JSON."""
