"""Library fusion: neighbouring ops that one kernel of a library computes."""
