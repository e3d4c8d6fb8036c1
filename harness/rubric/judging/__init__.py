"""Judging: what the evaluator model is asked, how its reply is read, and what becomes of both."""
