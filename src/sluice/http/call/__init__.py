"""From a request's fields to an answer, for every API."""
