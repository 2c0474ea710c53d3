"""Model families, one file each: the config, the layers, and how tensors are named. Families move here from `models`."""
