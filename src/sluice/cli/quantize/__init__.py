"""`sluice quantize`: quantised checkpoints, and what quantisation costs."""
