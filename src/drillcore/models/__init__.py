"""Models: small, readable networks that state their roles."""
