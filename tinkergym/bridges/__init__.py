"""To and from other libraries: their games as our environments, our environments as theirs."""
