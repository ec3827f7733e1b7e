"""The process of `whiten serve`: sockets, signals, starting, draining and reloading around the ASGI application."""
