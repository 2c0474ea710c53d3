"""What operators see: health, metrics, traces, the page."""
