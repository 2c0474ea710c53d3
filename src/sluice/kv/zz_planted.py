X: dict[int, int] = {}
