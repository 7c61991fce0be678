"""What a job's settings must be to each other, as data. Bounds of a single setting stand with it."""
