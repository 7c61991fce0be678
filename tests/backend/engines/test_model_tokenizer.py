from backend.engines.failures import stops_refused
from backend.engines.model_tokenizer import stops_of
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.schema.sampling import SampleRequest


def request(*stop):
    return SampleRequest(request_id="r", policy="p", prompt_ids=[1], max_tokens=2, seed=0, stop=list(stop))


def test_requires_the_models_tokenizer_for_stop_strings(tmp_path):
    from pathlib import Path

    nano = Path(PACKAGED_MODELS["nano"])
    assert stops_refused(request(), None) is None
    assert stops_refused(request("END"), nano) is None
    for folder in (None, tmp_path):
        assert stops_refused(request("END"), folder).field == "stop"
    assert stops_of(request(), nano) is None
    assert stops_of(request("END"), nano) is not None
