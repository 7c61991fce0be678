"""Small parts that every folder may need: a dict that forgets, waits between tries, names imported late."""
