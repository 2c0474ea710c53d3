"""Model families, one file each: the config, the layers, and the names of tensors. Families move here from `models`."""
