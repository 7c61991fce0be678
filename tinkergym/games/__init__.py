"""Text games: written as a `TextGame`, played as a PettingZoo AEC environment or against an opponent."""
