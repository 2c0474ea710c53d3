"""Routing: which replica serves a request. It knows what it has sent where, and what has come back.

Nothing here knows what a replica is, so the same code decides in front of servers and in a simulation.
"""
