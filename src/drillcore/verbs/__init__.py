"""Verbs: what a person asks for, one file each. They return records and rows; nothing is drawn here."""
