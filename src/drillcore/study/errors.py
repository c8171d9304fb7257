"""The error of a study: what is wrong, where, and what to do."""

from drillcore.errors import UserError


class StudyError(UserError):
    """A study cannot do what was asked; the message says what to do."""
