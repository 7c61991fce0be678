"""Three small games: for one player, for two in turns, and for two at once."""
