"""Library fusion: which neighbours one kernel of a library computes together."""
