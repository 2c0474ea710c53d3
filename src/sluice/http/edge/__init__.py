"""Connections before a request is read: limits, time-outs, TLS, hosts and origins."""
