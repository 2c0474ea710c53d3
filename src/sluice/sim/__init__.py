"""`sluice simulate`: the engine and the scheduler that serve, on a virtual clock and a model of the machine."""
