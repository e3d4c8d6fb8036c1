"""Thresholds with a stated error rate, from drafts that people labelled; see `bounds`."""
