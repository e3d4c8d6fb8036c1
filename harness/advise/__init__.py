"""Advice on serving models; only the command line imports it, when a command needs it."""
