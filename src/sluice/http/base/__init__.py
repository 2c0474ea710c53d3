"""What every route uses: errors, bodies, routes, frames, keys, the backend."""
