"""Security: signatures, seals on messages, redaction, and the loopback check."""
