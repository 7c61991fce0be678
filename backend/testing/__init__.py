"""The service without a model, in this process, for tests of clients and training scripts."""
