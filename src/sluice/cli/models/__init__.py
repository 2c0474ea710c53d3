"""Models that one could serve: those on this machine, small ones to begin with, and what they need."""
