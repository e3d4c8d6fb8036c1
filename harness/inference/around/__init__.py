"""What a call passes on its way to a backend: each wraps one behind the same protocol."""
