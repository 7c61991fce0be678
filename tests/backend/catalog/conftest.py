from tests.backend.tiny_models import make_model, write_json

__all__ = ["make_model", "write_json"]
