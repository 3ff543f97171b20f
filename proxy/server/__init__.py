"""The HTTP server: the protocol, the routes, and our own pages and API."""
