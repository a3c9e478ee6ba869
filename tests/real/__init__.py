"""Warmpath before real engines: see scripts/real."""
