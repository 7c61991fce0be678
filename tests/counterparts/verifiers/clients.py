"""What asks a model."""


class Client:
    """The base of clients."""

    def __init__(self, client_or_config):
        self.client = client_or_config
