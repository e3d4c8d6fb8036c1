"""What to serve models with: a room that only the command line knows, when it is called."""
