"""Model families: the config, the layers, and the names of tensors of each."""
