"""From a request's fields to an answer, whatever API asks."""
