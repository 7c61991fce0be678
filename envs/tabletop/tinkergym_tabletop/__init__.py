"""Games for several agents: hidden cards, simultaneous moves, cooperation, three players, free talk."""
