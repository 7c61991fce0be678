"""What is said."""


class Record:
    """Fields by name."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def model_dump(self):
        """Return the fields."""
        return dict(self.__dict__)


class ToolCall(Record):
    """A call."""


class ResponseMessage(Record):
    """A model's message."""


class Response(Record):
    """A model's answer."""
