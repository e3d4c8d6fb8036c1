"""Protocols over HTTP: what is sent to each kind of server, and how its replies are read."""
