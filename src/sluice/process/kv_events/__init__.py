"""What routers are told of cached pages: collected, encoded, published."""
