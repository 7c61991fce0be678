"""Small parts that every folder may need: a dict that forgets, optional packages, names imported late."""
