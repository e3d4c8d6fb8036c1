"""What servers say about themselves."""
