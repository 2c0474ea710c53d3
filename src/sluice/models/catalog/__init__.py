"""Sizes of models: memory and speed as far as sizes alone tell, and models to suggest."""
