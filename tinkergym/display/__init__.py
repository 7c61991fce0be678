"""Progress on a terminal, HTML in a notebook, pandas tables."""
