"""Carries out exlets primitive by primitive, and writes their decisions about the step."""
