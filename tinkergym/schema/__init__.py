"""What client and service send each other: job settings, events, episodes, sampling, and their errors."""
