"""What routers learn of cached pages: collected, encoded, published."""
