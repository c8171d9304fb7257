"""What a person can put right about data."""

from drillcore.errors import UserError


class DataError(UserError):
    """A data file is missing or is not what it should be; the message says what to do."""
