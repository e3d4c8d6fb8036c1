"""Models inside this process."""
