"""LoRA adapters: read from their files, checked against a model, and kept in slots beside it."""
