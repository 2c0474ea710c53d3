"""The runner's own drafter: a model that guesses what a target will sample, in the step that checks the guesses."""
