"""The client of a service: jobs, policies, datasets and training loops over HTTP."""
