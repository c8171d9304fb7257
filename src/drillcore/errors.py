"""The error that a user can put right: shown without a traceback, it says what was wrong, where, and what to do."""


class UserError(Exception):
    """Base of the errors that come from the input; anything else is a fault of ours and keeps its traceback."""
