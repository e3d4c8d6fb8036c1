"""Thresholds with a stated error rate, from drafts that people labeled; see `bounds`."""
