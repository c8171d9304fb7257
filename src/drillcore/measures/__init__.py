"""Measures: plain functions of a source and its weights that return rows."""
