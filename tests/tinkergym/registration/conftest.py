from tests.tinkergym.registration.installed import install

__all__ = ["install"]
