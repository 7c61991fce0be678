from backend.gateway.renderer_cache import RendererCache
from tinkergym.testing.bundles import CHATML, byte_bundle


def test_builds_each_renderer_once():
    cache, bundle = RendererCache(), byte_bundle()
    assert cache.of(bundle) is cache.of(byte_bundle())
    other = bundle.model_copy(update={"chat_template": "{{ mood }}" + CHATML})
    glad, sad = (cache.of(other.with_settings({"mood": mood}, "")) for mood in ("glad", "sad"))
    ids = {
        renderer.decode(renderer.start([{"role": "user", "content": "a"}]))[:4] for renderer in (glad, sad)
    }
    assert ids == {"glad", "sad<"}
