"""Customer service: an agent with tools on a database, and a simulated customer."""
