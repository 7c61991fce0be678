"""Tic-tac-toe and gomoku of any size as text games."""
