"""Drafts of a step: who guesses, how many guesses a row has, and which rows have any."""
