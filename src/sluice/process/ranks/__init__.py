"""The processes that compute one model together: started, joined, placed, ended."""
