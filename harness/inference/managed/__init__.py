"""Managed APIs: every provider that litellm knows, each with a protocol of its own."""
