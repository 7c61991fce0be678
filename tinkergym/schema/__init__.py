"""What client and service say to each other: job settings, events, episodes, sampling, and their errors."""
