import pytest

from backend.planning.strict_settings import Settings
from backend.settings.gateway_limits import GatewayLimits
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.parsing import parse


@pytest.mark.parametrize(
    ("field", "limits"),
    [
        ("bodies_bytes", {"body_bytes": 4096, "bodies_bytes": 4095}),
        ("image_bytes", {"body_bytes": 4096, "image_bytes": 4097}),
    ],
)
def test_leaves_room_for_the_largest_body_and_image(field, limits):
    with pytest.raises(InvalidRequestError) as refused:
        parse(GatewayLimits, limits)
    assert refused.value.field == field
    assert isinstance(parse(GatewayLimits, {**limits, field: 4096}), Settings)
