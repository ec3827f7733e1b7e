"""What the server says of itself: the description of its routes, and the page for browsers."""
