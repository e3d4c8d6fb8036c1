"""Which model an endpoint really is."""
