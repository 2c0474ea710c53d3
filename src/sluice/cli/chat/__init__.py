"""`sluice chat`: a conversation in a terminal, with the engine in this process or with a server."""
